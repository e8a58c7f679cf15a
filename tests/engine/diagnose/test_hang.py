"""The rank that everybody waits for is the one that is behind."""

from __future__ import annotations

import pytest

from rankdeck.base.heartbeat import Beat
from rankdeck.diagnose.hang import (
    PATIENCE_S,
    WARM_UP_PATIENCE_S,
    Frame,
    find_laggard,
    hang,
    is_still,
    parse_stack,
    place,
    suspicion,
)

WAITING = [Frame("/lib/torch/autograd/graph.py", 979, "_engine_run_backward"), Frame("train.py", 3, "step")]
AWAY = [Frame("mine.py", 11, "loss"), Frame("train.py", 2, "step")]

STACKS = """Thread 0x00007f0000000001 (most recent call first):
  File "/lib/threading.py", line 331 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/home/me/mine.py", line 11 in loss
  File "/lib/train.py", line 140 in _step
"""


def test_a_run_is_still_when_no_rank_of_several_has_beaten_for_long() -> None:
    old, new = Beat(5, "step", 100.0), Beat(6, "step", 105.0)
    assert not is_still({0: old, 1: new}, 105.0 + PATIENCE_S - 1, 0.1)
    assert is_still({0: old, 1: new}, 105.0 + PATIENCE_S + 1, 0.1)
    assert not is_still({0: old}, 1000.0, 0.1)
    assert not is_still({}, 1000.0, 0.0)


def test_slow_steps_and_the_time_before_the_first_step_get_more_patience() -> None:
    beats = {0: Beat(5, "step", 100.0), 1: Beat(5, "step", 100.0)}
    assert not is_still(beats, 100.0 + 40, longest_gap_s=20.0)
    assert is_still(beats, 100.0 + 61, longest_gap_s=20.0)
    warming_up = {0: Beat(0, "loading data", 100.0), 1: Beat(0, "joining", 100.0)}
    assert not is_still(warming_up, 100.0 + WARM_UP_PATIENCE_S - 1, 0.0)
    assert is_still(warming_up, 100.0 + WARM_UP_PATIENCE_S + 1, 0.0)


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
    assert find_laggard(beats) == laggard


def test_in_the_same_phase_stacks_tell_who_waits() -> None:
    beats = {rank: Beat(18, "step", 1.0) for rank in range(3)}
    assert find_laggard(beats, stacks={0: WAITING, 1: AWAY, 2: WAITING}) == 1
    assert find_laggard(beats, stacks={0: WAITING, 1: WAITING, 2: WAITING}) is None
    assert find_laggard(beats, stacks={0: AWAY, 1: AWAY, 2: WAITING}) is None


def test_a_suspended_rank_is_the_laggard() -> None:
    assert find_laggard({0: Beat(3, "step", 1.0), 1: Beat(3, "step", 2.0)}, suspended=[1]) == 1


def test_the_current_thread_of_a_report_is_read() -> None:
    assert parse_stack(STACKS) == [
        Frame("/home/me/mine.py", 11, "loss"),
        Frame("/lib/train.py", 140, "_step"),
    ]
    assert parse_stack(STACKS + STACKS.replace("line 11", "line 12"))[0].line == 12
    assert parse_stack("") == []


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        (Beat(20, "step", 1.0), "in step 20"),
        (Beat(20, "evaluation", 1.0), 'in "evaluation" of step 20'),
        (Beat(0, "joining", 1.0), 'in "joining"'),
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
    warning = suspicion(0, beats, 112.0, suspended=False, frames=AWAY)
    assert warning.severity == "warning" and warning.rank == 0
    assert (
        "12 s" in warning.message
        and "step 20" in warning.message
        and "loss (mine.py, line 11)" in warning.message
    )
    cause = hang(1, beats, 160.0, suspended=True)
    assert cause.code == "hang" and "SIGSTOP" in cause.message and '"evaluation" of step 20' in cause.message
