"""The rank that everybody waits for is the one that is behind."""

from __future__ import annotations

import pytest

from rankdeck.base.heartbeat import CHECK, FIRST_STEP, Beat
from rankdeck.diagnose.hang import Standing, find_laggard, hang, place, suspicion
from rankdeck.diagnose.stacks import CollectiveCall, Frame

WAITING = [
    Frame("/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"),
    Frame("train.py", 3, "step"),
]
AWAY = [Frame("mine.py", 11, "loss"), Frame("train.py", 2, "step")]

REDUCE = CollectiveCall("0", 58, "all_reduce", "650 Float")
BARRIER = CollectiveCall("0", 58, "barrier")
EARLIER = CollectiveCall("0", 57, "all_reduce", "650 Float", is_over=True)
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
    assert find_laggard(Standing(beats)) == laggard


def test_in_the_same_phase_stacks_tell_who_waits() -> None:
    beats = {rank: Beat(18, "step", 1.0) for rank in range(3)}
    assert find_laggard(Standing(beats, {0: WAITING, 1: AWAY, 2: WAITING})) == 1
    assert find_laggard(Standing(beats, {0: WAITING, 1: WAITING, 2: WAITING})) is None
    assert find_laggard(Standing(beats, {0: AWAY, 1: AWAY, 2: WAITING})) is None


def test_phases_begin_at_odd_times_and_stacks_know_better() -> None:
    beats = {0: Beat(0, "building", 1.0), 1: Beat(0, "loading", 1.1), 2: Beat(0, "building", 1.2)}
    assert find_laggard(Standing(beats)) is None, "the oldest of two that are alike"
    assert find_laggard(Standing(beats, {0: WAITING, 1: AWAY, 2: WAITING})) == 1
    assert find_laggard(Standing(beats, {0: WAITING, 1: AWAY})) is None, "of one nothing is known"


def test_a_suspended_rank_is_the_laggard() -> None:
    standing = Standing(BOTH, suspended=[1])
    assert find_laggard(standing) == 1
    assert suspicion(standing, 120.0, "").code == "rank-suspended"
    told = suspicion(Standing(BOTH, suspended=[0, 1]), 120.0, "").message
    assert told.count("suspended by a signal") == 2


def test_whoever_has_not_come_to_a_collective_is_the_laggard_where_stacks_tell_nothing() -> None:
    standing = Standing(BOTH, {0: AWAY, 1: AWAY}, calls={0: [EARLIER, REDUCE], 1: [EARLIER]})
    assert find_laggard(standing) == 1 and standing.is_waited
    told = suspicion(standing, 117.0, "").message
    assert "No progress for 16 s: it stands in step 18" in told
    assert told.endswith("while the others wait in all_reduce number 58 (650 Float).")
    assert "wait, in all_reduce number 58 (650 Float)" in hang(standing, 117.0).message


def test_who_is_missing_because_it_waits_for_another_is_not_the_laggard() -> None:
    beats = {rank: Beat(18, "step", 100.0) for rank in range(3)}
    calls = {0: [EARLIER, REDUCE], 1: [EARLIER], 2: [CollectiveCall("1", 3, "broadcast", is_over=True)]}
    standing = Standing(beats, {0: WAITING, 1: WAITING, 2: AWAY}, calls=calls)
    assert find_laggard(standing) == 2
    standing = Standing(beats, {0: WAITING, 1: WAITING, 2: WAITING}, calls=calls)
    assert find_laggard(standing) is None


def test_ranks_in_different_collectives_are_told_side_by_side_and_none_is_the_laggard() -> None:
    own = [
        Frame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "barrier"),
        Frame("/p/mine.py", 11, "loss"),
    ]
    standing = Standing(BOTH, {0: WAITING, 1: own}, calls={0: [REDUCE], 1: [BARRIER]})
    assert find_laggard(standing) is None
    for problem in (suspicion(standing, 117.0, ""), hang(standing, 117.0)):
        assert problem.rank is None
        assert "in different collectives, rank 0 in step (train.py, line 3): all_reduce number 58" in (
            problem.message
        )
        assert "rank 1 in loss (/p/mine.py, line 11): barrier number 58." in problem.message


SENT = CollectiveCall("0", 4, "broadcast", "85002 Double")
NEXT = CollectiveCall("0", 5, "broadcast", "10 Float")
OVER = CollectiveCall("0", 4, "broadcast", "85002 Double", is_over=True)
ELSEWHERE = {0: "box1", 1: "box2"}
ALL_WAIT = {0: WAITING, 1: WAITING}


@pytest.mark.parametrize("calls", [{0: [OVER, NEXT], 1: [SENT]}, {0: [SENT], 1: [SENT]}])
def test_what_all_have_come_to_and_does_not_end_is_the_network_of_their_hosts(
    calls: dict[int, list[CollectiveCall]],
) -> None:
    told = hang(Standing(BOTH, ALL_WAIT, calls=calls, hosts=ELSEWHERE), 120.0)
    assert (told.code, told.rank) == ("hang", None)
    assert "every rank has come to broadcast number 4" in told.message
    assert "the network between box1 and box2" in told.message
    assert "doctor --hosts box1,box2" in str(told.advice) and "MTU" in str(told.advice)
    assert (
        "every rank has come to"
        in suspicion(Standing(BOTH, ALL_WAIT, calls=calls, hosts=ELSEWHERE), 120.0, "").message
    )


@pytest.mark.parametrize(
    "standing",
    [
        Standing(BOTH, ALL_WAIT, calls={0: [OVER, NEXT], 1: [SENT]}, hosts={0: "box1", 1: "box1"}),
        Standing(BOTH, ALL_WAIT, calls={0: [OVER, NEXT], 1: [SENT]}),
        Standing(BOTH, {0: WAITING, 1: AWAY}, calls={0: [OVER, NEXT], 1: [SENT]}, hosts=ELSEWHERE),
        Standing(BOTH, ALL_WAIT, calls={0: [OVER, NEXT], 1: [OVER]}, hosts=ELSEWHERE),
        Standing(BOTH, ALL_WAIT, calls={0: [REDUCE], 1: [BARRIER]}, hosts=ELSEWHERE),
    ],
    ids=["one host", "hosts unknown", "a rank is away", "a rank is missing", "other collectives"],
)
def test_no_network_is_named_where_a_rank_may_be_the_cause(standing: Standing) -> None:
    assert "network" not in hang(standing, 120.0).message


def test_an_error_that_a_log_ends_with_is_told_with_what_to_do() -> None:
    """A process that reads data died of it, and its rank waits for ever."""
    lines = {
        0: ("nothing",),
        1: ("Traceback (most recent call last):", "OSError: [Errno 24] Too many open files"),
    }
    for stacks in ({0: WAITING, 1: AWAY}, {}):
        standing = Standing(BOTH, stacks, last_lines=lines)
        for problem in (suspicion(standing, 117.0, "Wait."), hang(standing, 117.0)):
            assert problem.message.endswith(
                "The last line of rank 1's log: OSError: [Errno 24] Too many open files"
            )
            assert problem.advice is not None and "ulimit -n" in problem.advice
    silent = Standing(BOTH, {0: WAITING, 1: AWAY}, last_lines={1: ("step 18",)})
    assert "log" not in hang(silent, 117.0).message


def test_an_only_rank_is_told_where_it_stands() -> None:
    standing = Standing({0: Beat(20, "step", 100.0)}, {0: AWAY})
    message = suspicion(standing, 117.0, "").message
    assert message == "No progress for 17 s: it stands in step 20, in loss (mine.py, line 11)."
    assert hang(standing, 160.0).message == (
        "It made no progress for 60 s: it stands in step 20, in loss (mine.py, line 11)."
    )


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        (Beat(20, "step", 1.0), "in step 20"),
        (Beat(1, FIRST_STEP, 1.0), "in step 1"),
        (Beat(20, "evaluation", 1.0), 'in "evaluation" of step 20'),
        (Beat(0, "joining", 1.0), 'in "joining"'),
        *((Beat(0, phase, 1.0), "in the check before the first step") for phase in CHECK),
        (Beat(20, "step", 1.0, is_after=True), "after step 20"),
        (Beat(20, "script", 1.0, is_after=True), "after step 20"),
        (Beat(20, "backward", 1.0, is_after=True), 'in "backward" after step 20'),
        (Beat(0, "loading data", 1.0, is_after=True), 'in "loading data"'),
        (Beat(0, "step", 1.0, is_after=True), "after its start"),
    ],
)
def test_a_script_tells_the_last_step_that_has_ended(beat: Beat, words: str) -> None:
    assert place(beat) == words


def test_the_words_name_step_place_and_time() -> None:
    beats = {0: Beat(20, "step", 100.0), 1: Beat(20, "evaluation", 100.0)}
    warning = suspicion(Standing(beats, {0: AWAY, 1: WAITING}), 112.0, "Look.")
    assert (warning.severity, warning.rank, warning.advice) == ("warning", 0, "Look.")
    for word in ("12 s", "step 20", "loss (mine.py, line 11)", "while the others wait."):
        assert word in warning.message
    cause = hang(Standing(beats, suspended=[1]), 160.0)
    assert cause.code == "hang" and "SIGSTOP" in cause.message and '"evaluation" of step 20' in cause.message
