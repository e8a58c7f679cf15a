"""How parts of several devices are laid out on one axis."""

from __future__ import annotations

import pytest

from rankdeck.run.movement import RECEIVE, SEND, Movement, Part, merged, talks_alone, timeline


def gpipe(num_stages: int, microbatches: int) -> list[list[Part]]:
    """All forwards, then all backwards, each as long as the other."""
    devices = []
    for stage in range(num_stages):
        parts = []
        for number in range(microbatches):
            if stage:
                parts.append(Part(RECEIVE, stage, num_bytes=1, peers=[stage - 1]))
            parts.append(Part("forward", stage, flops=100, microbatch=number))
            if stage < num_stages - 1:
                parts.append(Part(SEND, stage, num_bytes=1, peers=[stage + 1]))
        for number in range(microbatches):
            if stage < num_stages - 1:
                parts.append(Part(RECEIVE, stage, num_bytes=1, peers=[stage + 1]))
            parts.append(Part("backward", stage, flops=100, microbatch=number))
            if stage:
                parts.append(Part(SEND, stage, num_bytes=1, peers=[stage - 1]))
        devices.append(parts)
    return devices


@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 4), (4, 8), (3, 1)])
def test_the_idle_share_of_a_pipeline_is_its_bubble(num_stages: int, microbatches: int) -> None:
    laid_out = timeline(gpipe(num_stages, microbatches))
    assert laid_out is not None and laid_out.is_whole
    for row in laid_out.intervals:
        idle = 1 - sum(one.end - one.start for one in row)
        assert idle == pytest.approx((num_stages - 1) / (microbatches + num_stages - 1))


def test_a_collective_begins_when_the_last_of_its_group_is_there() -> None:
    group = [0, 1]
    devices = [
        [Part("forward", 0, flops=100), Part("all-reduce", 0, num_bytes=8, peers=group)],
        [Part("forward", 1, flops=300), Part("all-reduce", 1, num_bytes=8, peers=group)],
        [Part("forward", 2, flops=100)],
    ]
    laid_out = timeline(devices)
    assert laid_out is not None and laid_out.is_whole
    (line,) = laid_out.lines
    assert (line.at, line.group, laid_out.moves()["all-reduce"].num_bytes) == (1.0, (0, 1), 16)


def test_what_nobody_sends_is_waited_for_and_said() -> None:
    devices = [[Part("forward", 0, flops=1)], [Part(RECEIVE, 1, num_bytes=1, peers=[0]), Part("step", 1)]]
    laid_out = timeline(devices)
    assert laid_out is not None and not laid_out.is_whole and not laid_out.intervals[1]


def test_a_step_of_too_many_parts_is_not_laid_out() -> None:
    assert timeline([[Part("forward", 0)] * 20_001]) is None
    assert timeline([]) is not None


def test_ranks_that_are_alike_have_the_same_parts_with_their_own_peers() -> None:
    parts = {
        0: [Part("all-reduce", 0, num_bytes=4, peers=[0, 2]), Part(SEND, 0, num_bytes=4, peers=[1])],
        1: [Part(RECEIVE, 1, num_bytes=4, peers=[0]), Part("all-reduce", 1, num_bytes=4, peers=[0, 1, 2, 3])],
    }
    sizes = [("data", 2), ("stage", 2)]
    devices = Movement(parts, [0, 1, 0, 1], sizes).by_device()
    assert [(part.name, part.device, part.peers) for part in devices[2]] == [
        ("all-reduce", 2, [0, 2]),
        (SEND, 2, [3]),
    ]
    assert [part.peers for part in devices[3]] == [[2], [0, 1, 2, 3]]
    assert not talks_alone(0, parts[0], sizes)
    assert talks_alone(0, [Part(SEND, 0, peers=[2])], sizes)


def test_parts_under_one_name_are_one_part() -> None:
    parts = [Part("step", 0, flops=1), Part("step", 0, flops=2), Part("step", 0, flops=4, microbatch=1)]
    assert [part.flops for part in merged(parts)] == [3, 4]
    moves = Part(SEND, 0, num_bytes=1, peers=[1])
    assert len(merged([moves, moves])) == 2


def test_what_moves_takes_the_share_of_its_bytes_where_that_is_asked_for() -> None:
    group = [0, 1]
    devices = [
        [Part("forward", rank, flops=300), Part("all-reduce", rank, num_bytes=8, peers=group)]
        for rank in group
    ]
    laid_out = timeline(devices, 0.25)
    assert laid_out is not None
    (line,) = laid_out.lines
    assert (line.left, line.at) == (pytest.approx(0.75), 1.0)


def test_a_device_sends_one_thing_after_another_beside_what_it_computes() -> None:
    devices = [
        [
            Part(SEND, 0, num_bytes=50, peers=[1]),
            Part(SEND, 0, num_bytes=50, peers=[2]),
            Part("step", 0, flops=100),
        ],
        [Part(RECEIVE, 1, num_bytes=50, peers=[0]), Part("step", 1, flops=100)],
        [Part(RECEIVE, 2, num_bytes=50, peers=[0]), Part("step", 2, flops=100)],
    ]
    laid_out = timeline(devices, 0.5)
    assert laid_out is not None
    first, second = laid_out.lines
    assert second.left == first.at > first.left == 0
    assert [row[0].start for row in laid_out.intervals] == [0.0, first.at, second.at]


def test_a_schedule_stays_as_it_is_whatever_share_what_moves_would_take() -> None:
    assert timeline(gpipe(2, 4), 0.5) == timeline(gpipe(2, 4))


def test_where_steps_overlap_nothing_is_waited_for() -> None:
    """An async pipeline: the second stage takes what came in the step before."""
    devices = [
        [Part("forward", 0, flops=100, microbatch=3), Part(SEND, 0, num_bytes=8, peers=[1])],
        [Part(RECEIVE, 1, num_bytes=8, peers=[0]), Part("forward", 1, flops=100, microbatch=2)],
    ]
    waits, flows = timeline(devices), timeline(devices, overlaps=True)
    assert waits is not None and flows is not None and flows.is_whole
    assert (waits.intervals[1][0].start, flows.intervals[1][0].start) == (0.5, 0.0)
    (line,) = flows.lines
    assert (line.source, line.target, line.left) == (0, 1, 1.0)
    assert flows.traffic() == waits.traffic()


def test_devices_send_together_what_is_said_to_move() -> None:
    laid_out = timeline(
        [
            [Part("all-gather", 0, num_bytes=8, peers=[0, 1]), Part(SEND, 0, num_bytes=3, peers=[1])],
            [Part("all-gather", 1, num_bytes=8, peers=[0, 1]), Part(RECEIVE, 1, num_bytes=3, peers=[0])],
        ]
    )
    assert laid_out is not None
    assert [(one.sent_bytes, one.received_bytes) for one in laid_out.traffic()] == [(11, 8), (8, 11)]
    assert sum(one.sent_bytes for one in laid_out.traffic()) == sum(
        moves.num_bytes for moves in laid_out.moves().values()
    )
    assert laid_out.in_words() == "all-gather 16 B in 1, send 3 B in 1"
    nothing = timeline([[Part("forward", 0, flops=1)]])
    assert nothing is not None and nothing.in_words() == "nothing"
