"""How parts of several devices are laid out on one axis."""

from __future__ import annotations

import pytest

from rankdeck.run.movement import (
    RECEIVE,
    SEND,
    Movement,
    Operation,
    build_timeline,
    has_private_peers,
    merge_operations,
)


def gpipe(num_stages: int, microbatches: int) -> list[list[Operation]]:
    """All forwards, then all backwards, each as long as the other."""
    devices = []
    for stage in range(num_stages):
        operations = []
        for number in range(microbatches):
            if stage:
                operations.append(Operation(RECEIVE, stage, num_bytes=1, peers=[stage - 1]))
            operations.append(Operation("forward", stage, flops=100, microbatch=number))
            if stage < num_stages - 1:
                operations.append(Operation(SEND, stage, num_bytes=1, peers=[stage + 1]))
        for number in range(microbatches):
            if stage < num_stages - 1:
                operations.append(Operation(RECEIVE, stage, num_bytes=1, peers=[stage + 1]))
            operations.append(Operation("backward", stage, flops=100, microbatch=number))
            if stage:
                operations.append(Operation(SEND, stage, num_bytes=1, peers=[stage - 1]))
        devices.append(operations)
    return devices


@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 4), (4, 8), (3, 1)])
def test_the_idle_share_of_a_pipeline_is_its_bubble(num_stages: int, microbatches: int) -> None:
    laid_out = build_timeline(gpipe(num_stages, microbatches))
    assert laid_out is not None and laid_out.is_whole
    for row in laid_out.intervals:
        idle = 1 - sum(interval.end - interval.start for interval in row)
        assert idle == pytest.approx((num_stages - 1) / (microbatches + num_stages - 1))


def test_a_collective_starts_when_its_last_rank_arrives() -> None:
    group = [0, 1]
    devices = [
        [Operation("forward", 0, flops=100), Operation("all-reduce", 0, num_bytes=8, peers=group)],
        [Operation("forward", 1, flops=300), Operation("all-reduce", 1, num_bytes=8, peers=group)],
        [Operation("forward", 2, flops=100)],
    ]
    laid_out = build_timeline(devices)
    assert laid_out is not None and laid_out.is_whole
    (line,) = laid_out.lines
    assert (line.at, line.group, laid_out.traffic_by_operation()["all-reduce"].num_bytes) == (1.0, (0, 1), 16)


def test_a_receive_without_a_send_is_incomplete() -> None:
    devices = [
        [Operation("forward", 0, flops=1)],
        [Operation(RECEIVE, 1, num_bytes=1, peers=[0]), Operation("step", 1)],
    ]
    laid_out = build_timeline(devices)
    assert laid_out is not None and not laid_out.is_whole and not laid_out.intervals[1]


def test_a_step_with_too_many_operations_has_no_timeline() -> None:
    assert build_timeline([[Operation("forward", 0)] * 20_001]) is None
    assert build_timeline([]) is not None


def test_equal_ranks_have_the_same_operations_with_their_own_peers() -> None:
    operations = {
        0: [
            Operation("all-reduce", 0, num_bytes=4, peers=[0, 2]),
            Operation(SEND, 0, num_bytes=4, peers=[1]),
        ],
        1: [
            Operation(RECEIVE, 1, num_bytes=4, peers=[0]),
            Operation("all-reduce", 1, num_bytes=4, peers=[0, 1, 2, 3]),
        ],
    }
    sizes = [("data", 2), ("stage", 2)]
    devices = Movement(operations, [0, 1, 0, 1], sizes).by_device()
    assert [(operation.name, operation.device, operation.peers) for operation in devices[2]] == [
        ("all-reduce", 2, [0, 2]),
        (SEND, 2, [3]),
    ]
    assert [operation.peers for operation in devices[3]] == [[2], [0, 1, 2, 3]]
    assert not has_private_peers(0, operations[0], sizes)
    assert has_private_peers(0, [Operation(SEND, 0, peers=[2])], sizes)


def test_consecutive_operations_of_one_name_are_merged() -> None:
    operations = [
        Operation("step", 0, flops=1),
        Operation("step", 0, flops=2),
        Operation("step", 0, flops=4, microbatch=1),
    ]
    assert [operation.flops for operation in merge_operations(operations)] == [3, 4]
    moves = Operation(SEND, 0, num_bytes=1, peers=[1])
    assert len(merge_operations([moves, moves])) == 2


def test_communication_takes_its_configured_share() -> None:
    group = [0, 1]
    devices = [
        [Operation("forward", rank, flops=300), Operation("all-reduce", rank, num_bytes=8, peers=group)]
        for rank in group
    ]
    laid_out = build_timeline(devices, 0.25)
    assert laid_out is not None
    (line,) = laid_out.lines
    assert (line.left, line.at) == (pytest.approx(0.75), 1.0)


def test_a_device_sends_in_sequence_while_it_computes() -> None:
    devices = [
        [
            Operation(SEND, 0, num_bytes=50, peers=[1]),
            Operation(SEND, 0, num_bytes=50, peers=[2]),
            Operation("step", 0, flops=100),
        ],
        [Operation(RECEIVE, 1, num_bytes=50, peers=[0]), Operation("step", 1, flops=100)],
        [Operation(RECEIVE, 2, num_bytes=50, peers=[0]), Operation("step", 2, flops=100)],
    ]
    laid_out = build_timeline(devices, 0.5)
    assert laid_out is not None
    first, second = laid_out.lines
    assert second.left == first.at > first.left == 0
    assert [row[0].start for row in laid_out.intervals] == [0.0, first.at, second.at]


def test_the_schedule_does_not_depend_on_the_communication_share() -> None:
    assert build_timeline(gpipe(2, 4), 0.5) == build_timeline(gpipe(2, 4))


def test_overlapping_steps_do_not_wait() -> None:
    """An async pipeline: the second stage takes what came in the step before."""
    devices = [
        [Operation("forward", 0, flops=100, microbatch=3), Operation(SEND, 0, num_bytes=8, peers=[1])],
        [Operation(RECEIVE, 1, num_bytes=8, peers=[0]), Operation("forward", 1, flops=100, microbatch=2)],
    ]
    waits, flows = build_timeline(devices), build_timeline(devices, overlaps=True)
    assert waits is not None and flows is not None and flows.is_whole
    assert (waits.intervals[1][0].start, flows.intervals[1][0].start) == (0.5, 0.0)
    (line,) = flows.lines
    assert (line.source, line.target, line.left) == (0, 1, 1.0)
    assert flows.traffic() == waits.traffic()


def test_sent_bytes_of_devices_add_up_to_the_traffic() -> None:
    laid_out = build_timeline(
        [
            [
                Operation("all-gather", 0, num_bytes=8, peers=[0, 1]),
                Operation(SEND, 0, num_bytes=3, peers=[1]),
            ],
            [
                Operation("all-gather", 1, num_bytes=8, peers=[0, 1]),
                Operation(RECEIVE, 1, num_bytes=3, peers=[0]),
            ],
        ]
    )
    assert laid_out is not None
    assert [(entry.sent_bytes, entry.received_bytes) for entry in laid_out.traffic()] == [(11, 8), (8, 11)]
    assert sum(entry.sent_bytes for entry in laid_out.traffic()) == sum(
        moves.num_bytes for moves in laid_out.traffic_by_operation().values()
    )
    assert laid_out.text() == "all-gather 16 B (1×), send 3 B (1×)"
    nothing = build_timeline([[Operation("forward", 0, flops=1)]])
    assert nothing is not None and nothing.text() == "nothing"
