"""The rank that everybody waits for is the one that is behind."""

from __future__ import annotations

import pytest

from rankdeck.base.heartbeat import CHECK_PHASES, FIRST_STEP, Beat
from rankdeck.diagnose.hang import HangState, beat_location, find_laggard, hang_problem, hang_warning
from rankdeck.diagnose.stacks import CollectiveCall, Frame

WAITING_FRAMES = [
    Frame("/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"),
    Frame("train.py", 3, "step"),
]
COMPUTING_FRAMES = [Frame("mine.py", 11, "loss"), Frame("train.py", 2, "step")]

REDUCE = CollectiveCall("0", 58, "all_reduce", "650 Float")
BARRIER = CollectiveCall("0", 58, "barrier")
EARLIER = CollectiveCall("0", 57, "all_reduce", "650 Float", is_finished=True)
BOTH = {0: Beat(18, "step", 100.0), 1: Beat(18, "step", 101.0)}


@pytest.mark.parametrize(
    ("beats", "laggard"),
    [
        ({0: Beat(18, "step", 2.0), 1: Beat(17, "step", 1.0), 2: Beat(18, "step", 2.0)}, 1),
        ({0: Beat(18, "backward", 2.0), 1: Beat(18, "loading", 1.0), 2: Beat(18, "backward", 2.0)}, 1),
        ({0: Beat(18, "collective barrier", 1.0), 1: Beat(18, "step", 1.1)}, 1),
        ({0: Beat(18, "collective barrier", 1.0), 1: Beat(18, "collective reduce", 1.1)}, 0),
        ({0: Beat(18, "step", 1.0), 1: Beat(18, "step", 1.1)}, None),
        ({0: Beat(17, "step", 1.0), 1: Beat(17, "step", 1.0), 2: Beat(18, "step", 2.0)}, None),
        ({0: Beat(3, "step", 1.0)}, None),
    ],
)
def test_the_laggard_is_in_an_earlier_step_or_phase(beats: dict[int, Beat], laggard: int | None) -> None:
    assert find_laggard(HangState(beats)) == laggard


def test_stacks_find_the_laggard_in_the_same_phase() -> None:
    beats = {rank: Beat(18, "step", 1.0) for rank in range(3)}
    assert find_laggard(HangState(beats, {0: WAITING_FRAMES, 1: COMPUTING_FRAMES, 2: WAITING_FRAMES})) == 1
    assert find_laggard(HangState(beats, {0: WAITING_FRAMES, 1: WAITING_FRAMES, 2: WAITING_FRAMES})) is None
    assert (
        find_laggard(HangState(beats, {0: COMPUTING_FRAMES, 1: COMPUTING_FRAMES, 2: WAITING_FRAMES})) is None
    )


def test_stacks_outrank_phase_start_times() -> None:
    beats = {0: Beat(0, "building", 1.0), 1: Beat(0, "loading", 1.1), 2: Beat(0, "building", 1.2)}
    assert find_laggard(HangState(beats)) is None, "the oldest of two that are alike"
    assert find_laggard(HangState(beats, {0: WAITING_FRAMES, 1: COMPUTING_FRAMES, 2: WAITING_FRAMES})) == 1
    assert find_laggard(HangState(beats, {0: WAITING_FRAMES, 1: COMPUTING_FRAMES})) is None, (
        "of one nothing is known"
    )


def test_a_suspended_rank_is_the_laggard() -> None:
    hang_state = HangState(BOTH, suspended=[1])
    assert find_laggard(hang_state) == 1
    assert hang_warning(hang_state, 120.0, "").code == "rank-suspended"
    message = hang_warning(HangState(BOTH, suspended=[0, 1]), 120.0, "").message
    assert message.count("suspended by a signal") == 2


def test_a_missing_collective_finds_the_laggard_without_stacks() -> None:
    hang_state = HangState(
        BOTH, {0: COMPUTING_FRAMES, 1: COMPUTING_FRAMES}, calls={0: [EARLIER, REDUCE], 1: [EARLIER]}
    )
    assert find_laggard(hang_state) == 1 and hang_state.has_waiting_rank
    message = hang_warning(hang_state, 117.0, "").message
    assert "No progress for 16 s: it is in step 18" in message
    assert message.endswith("while the other ranks are waiting in all_reduce number 58 (650 Float).")
    assert (
        "the other ranks waited for it in all_reduce number 58 (650 Float)"
        in hang_problem(hang_state, 117.0).message
    )


def test_a_missing_rank_that_waits_is_not_the_laggard() -> None:
    beats = {rank: Beat(18, "step", 100.0) for rank in range(3)}
    calls = {0: [EARLIER, REDUCE], 1: [EARLIER], 2: [CollectiveCall("1", 3, "broadcast", is_finished=True)]}
    hang_state = HangState(beats, {0: WAITING_FRAMES, 1: WAITING_FRAMES, 2: COMPUTING_FRAMES}, calls=calls)
    assert find_laggard(hang_state) == 2
    hang_state = HangState(beats, {0: WAITING_FRAMES, 1: WAITING_FRAMES, 2: WAITING_FRAMES}, calls=calls)
    assert find_laggard(hang_state) is None


def test_mismatched_collectives_are_listed_without_a_laggard() -> None:
    frames = [
        Frame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "barrier"),
        Frame("/p/mine.py", 11, "loss"),
    ]
    hang_state = HangState(BOTH, {0: WAITING_FRAMES, 1: frames}, calls={0: [REDUCE], 1: [BARRIER]})
    assert find_laggard(hang_state) is None
    for problem in (hang_warning(hang_state, 117.0, ""), hang_problem(hang_state, 117.0)):
        assert problem.rank is None
        assert "in different collectives, with rank 0 in all_reduce number 58" in problem.message
        assert " at step (train.py, line 3), rank 1 in " in problem.message
        assert "rank 1 in barrier number 58 at loss (/p/mine.py, line 11)." in problem.message


SENT_CALL = CollectiveCall("0", 4, "broadcast", "85002 Double")
NEXT_CALL = CollectiveCall("0", 5, "broadcast", "10 Float")
FINISHED_CALL = CollectiveCall("0", 4, "broadcast", "85002 Double", is_finished=True)
TWO_HOSTS = {0: "box1", 1: "box2"}
ALL_WAIT = {0: WAITING_FRAMES, 1: WAITING_FRAMES}


@pytest.mark.parametrize(
    "calls", [{0: [FINISHED_CALL, NEXT_CALL], 1: [SENT_CALL]}, {0: [SENT_CALL], 1: [SENT_CALL]}]
)
def test_an_unfinished_collective_on_all_hosts_blames_the_network(
    calls: dict[int, list[CollectiveCall]],
) -> None:
    problem = hang_problem(HangState(BOTH, ALL_WAIT, calls=calls, hosts=TWO_HOSTS), 120.0)
    assert (problem.code, problem.rank) == ("hang", None)
    assert "every rank has reached broadcast number 4" in problem.message
    assert "the network between box1 and box2" in problem.message
    assert "doctor --hosts box1,box2" in str(problem.advice) and "MTU" in str(problem.advice)
    assert (
        "every rank has reached"
        in hang_warning(HangState(BOTH, ALL_WAIT, calls=calls, hosts=TWO_HOSTS), 120.0, "").message
    )


@pytest.mark.parametrize(
    "hang_state",
    [
        HangState(
            BOTH,
            ALL_WAIT,
            calls={0: [FINISHED_CALL, NEXT_CALL], 1: [SENT_CALL]},
            hosts={0: "box1", 1: "box1"},
        ),
        HangState(BOTH, ALL_WAIT, calls={0: [FINISHED_CALL, NEXT_CALL], 1: [SENT_CALL]}),
        HangState(
            BOTH,
            {0: WAITING_FRAMES, 1: COMPUTING_FRAMES},
            calls={0: [FINISHED_CALL, NEXT_CALL], 1: [SENT_CALL]},
            hosts=TWO_HOSTS,
        ),
        HangState(BOTH, ALL_WAIT, calls={0: [FINISHED_CALL, NEXT_CALL], 1: [FINISHED_CALL]}, hosts=TWO_HOSTS),
        HangState(BOTH, ALL_WAIT, calls={0: [REDUCE], 1: [BARRIER]}, hosts=TWO_HOSTS),
    ],
    ids=["one host", "hosts unknown", "a rank is away", "a rank is missing", "other collectives"],
)
def test_the_network_is_not_blamed_when_a_rank_may_be(hang_state: HangState) -> None:
    assert "network" not in hang_problem(hang_state, 120.0).message


def test_the_last_error_of_a_log_is_shown_with_advice() -> None:
    """A process that reads data died of it, and its rank waits for ever."""
    lines = {
        0: ("nothing",),
        1: ("Traceback (most recent call last):", "OSError: [Errno 24] Too many open files"),
    }
    for stacks in ({0: WAITING_FRAMES, 1: COMPUTING_FRAMES}, {}):
        hang_state = HangState(BOTH, stacks, last_lines=lines)
        for problem in (hang_warning(hang_state, 117.0, "Wait."), hang_problem(hang_state, 117.0)):
            assert problem.message.endswith(
                "The last line of rank 1's log: OSError: [Errno 24] Too many open files"
            )
            assert problem.advice is not None and "ulimit -n" in problem.advice
    silent = HangState(BOTH, {0: WAITING_FRAMES, 1: COMPUTING_FRAMES}, last_lines={1: ("step 18",)})
    assert "log" not in hang_problem(silent, 117.0).message


def test_a_single_rank_is_shown_with_its_location() -> None:
    hang_state = HangState({0: Beat(20, "step", 100.0)}, {0: COMPUTING_FRAMES})
    message = hang_warning(hang_state, 117.0, "").message
    assert message == "No progress for 17 s: it is in step 20, in loss (mine.py, line 11)."
    assert hang_problem(hang_state, 160.0).message == (
        "It made no progress for 60 s: it is in step 20, in loss (mine.py, line 11)."
    )


@pytest.mark.parametrize(
    ("beat", "text"),
    [
        (Beat(20, "step", 1.0), "in step 20"),
        (Beat(1, FIRST_STEP, 1.0), "in step 1"),
        (Beat(20, "evaluation", 1.0), 'in "evaluation" of step 20'),
        (Beat(0, "joining", 1.0), 'in "joining"'),
        *((Beat(0, phase, 1.0), "in the check before the first step") for phase in CHECK_PHASES),
        (Beat(20, "step", 1.0, is_step_complete=True), "after step 20"),
        (Beat(20, "script", 1.0, is_step_complete=True), "after step 20"),
        (Beat(20, "backward", 1.0, is_step_complete=True), 'in "backward" after step 20'),
        (Beat(0, "loading data", 1.0, is_step_complete=True), 'in "loading data"'),
        (Beat(0, "step", 1.0, is_step_complete=True), "after startup"),
    ],
)
def test_beat_locations_name_step_and_phase(beat: Beat, text: str) -> None:
    assert beat_location(beat) == text


def test_the_message_names_step_location_and_time() -> None:
    beats = {0: Beat(20, "step", 100.0), 1: Beat(20, "evaluation", 100.0)}
    warning = hang_warning(HangState(beats, {0: COMPUTING_FRAMES, 1: WAITING_FRAMES}), 112.0, "Look.")
    assert (warning.severity, warning.rank, warning.advice) == ("warning", 0, "Look.")
    for word in ("12 s", "step 20", "loss (mine.py, line 11)", "while the other ranks are waiting."):
        assert word in warning.message
    cause = hang_problem(HangState(beats, suspended=[1]), 160.0)
    assert cause.code == "hang" and "SIGSTOP" in cause.message and '"evaluation" of step 20' in cause.message
