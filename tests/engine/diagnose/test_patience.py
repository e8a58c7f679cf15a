"""What is slow by nature is given time, and nothing is ended before twice the time after which it is told."""

from __future__ import annotations

import pytest

from rankdeck.base.heartbeat import CHECK_BUILD, CHECK_STEP, FIRST_STEP, SAVING, VERIFYING, Beat
from rankdeck.diagnose.hang import COMPILE_S, OTHER_S, STEP_S, Patience


def told_after_s(
    *beats: Beat, slowest_s: float = 0.0, timeout_s: float = 60.0, compiles: bool = False
) -> float:
    by_rank = dict(enumerate(beats))
    return Patience(timeout_s, compiles).until_told_s(by_rank, dict.fromkeys(by_rank, slowest_s))


@pytest.mark.parametrize(
    ("beat", "until_s"),
    [
        (Beat(5, "step", 1.0), STEP_S),
        (Beat(1, FIRST_STEP, 1.0), OTHER_S),
        (Beat(5, SAVING, 1.0), OTHER_S),
        (Beat(5, "evaluation", 1.0), OTHER_S),
        (Beat(0, "loading data", 1.0), OTHER_S),
        (Beat(0, CHECK_BUILD, 1.0), OTHER_S),
        (Beat(0, CHECK_STEP, 1.0), STEP_S),
        (Beat(5, "backward", 1.0, is_after=True), STEP_S),
        (Beat(0, "script", 1.0, is_after=True), OTHER_S),
    ],
)
def test_each_phase_has_its_limit(beat: Beat, until_s: float) -> None:
    assert told_after_s(beat) == until_s


def test_slow_steps_and_compiling_get_more() -> None:
    assert told_after_s(Beat(5, "step", 1.0), slowest_s=20.0) == 60.0
    assert told_after_s(Beat(1, FIRST_STEP, 1.0), compiles=True) == COMPILE_S
    one_of_each = Beat(4, "evaluation", 1.0), Beat(4, SAVING, 1.0), Beat(5, "step", 1.0)
    assert told_after_s(*one_of_each, slowest_s=25.0) == 75.0


def test_whom_the_others_wait_for_counts() -> None:
    assert told_after_s(Beat(5, "step", 1.0), Beat(5, SAVING, 1.0)) == STEP_S, "it has not come to the save"
    assert told_after_s(Beat(6, "step", 1.0), Beat(5, SAVING, 1.0)) == OTHER_S, "it waits for who saves"
    assert told_after_s(Beat(6, "step", 1.0), Beat(5, "evaluation", 1.0)) == OTHER_S
    waits = Beat(0, VERIFYING, 1.0)
    assert told_after_s(Beat(0, CHECK_STEP, 1.0), waits) == STEP_S, "of the check"
    assert told_after_s(Beat(0, CHECK_STEP, 1.0), Beat(0, CHECK_BUILD, 1.0)) == OTHER_S, "it builds"
    script = Beat(5, "backward", 1.0, is_after=True), Beat(0, "script", 1.0, is_after=True)
    assert told_after_s(*script) == OTHER_S


@pytest.mark.parametrize(("timeout_s", "until_told_s"), [(60.0, 15.0), (6.0, 3.0), (600.0, 15.0)])
def test_a_short_timeout_is_told_of_in_time(timeout_s: float, until_told_s: float) -> None:
    assert told_after_s(Beat(5, "step", 1.0), timeout_s=timeout_s) == until_told_s
    assert Patience(timeout_s).until_ended_s(until_told_s) == timeout_s
    assert Patience(timeout_s).until_ended_s(2 * timeout_s) == 4 * timeout_s
