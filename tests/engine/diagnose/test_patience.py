"""What is slow by nature is given time, and nothing is ended before twice the time after which it is told."""

from __future__ import annotations

import pytest

from rankdeck.base.heartbeat import CHECK_BUILD, CHECK_STEP, FIRST_STEP, SAVING, VERIFYING, Beat
from rankdeck.diagnose.hang import COMPILE_WARNING_S, PHASE_WARNING_S, STEP_WARNING_S, HangTimeouts


def warning_after_s(
    *beats: Beat, slowest_s: float = 0.0, timeout_s: float = 60.0, compiles: bool = False
) -> float:
    by_rank = dict(enumerate(beats))
    return HangTimeouts(timeout_s, compiles).warning_after_s(by_rank, dict.fromkeys(by_rank, slowest_s))


@pytest.mark.parametrize(
    ("beat", "until_s"),
    [
        (Beat(5, "step", 1.0), STEP_WARNING_S),
        (Beat(1, FIRST_STEP, 1.0), PHASE_WARNING_S),
        (Beat(5, SAVING, 1.0), PHASE_WARNING_S),
        (Beat(5, "evaluation", 1.0), PHASE_WARNING_S),
        (Beat(0, "loading data", 1.0), PHASE_WARNING_S),
        (Beat(0, CHECK_BUILD, 1.0), PHASE_WARNING_S),
        (Beat(0, CHECK_STEP, 1.0), STEP_WARNING_S),
        (Beat(5, "backward", 1.0, is_step_complete=True), STEP_WARNING_S),
        (Beat(0, "script", 1.0, is_step_complete=True), PHASE_WARNING_S),
    ],
)
def test_each_phase_has_its_warning_time(beat: Beat, until_s: float) -> None:
    assert warning_after_s(beat) == until_s


def test_slow_steps_and_compiling_get_more_time() -> None:
    assert warning_after_s(Beat(5, "step", 1.0), slowest_s=20.0) == 60.0
    assert warning_after_s(Beat(1, FIRST_STEP, 1.0), compiles=True) == COMPILE_WARNING_S
    one_of_each = Beat(4, "evaluation", 1.0), Beat(4, SAVING, 1.0), Beat(5, "step", 1.0)
    assert warning_after_s(*one_of_each, slowest_s=25.0) == 75.0


def test_the_awaited_rank_sets_the_limit() -> None:
    assert warning_after_s(Beat(5, "step", 1.0), Beat(5, SAVING, 1.0)) == STEP_WARNING_S, (
        "it has not come to the save"
    )
    assert warning_after_s(Beat(6, "step", 1.0), Beat(5, SAVING, 1.0)) == PHASE_WARNING_S, (
        "it waits for who saves"
    )
    assert warning_after_s(Beat(6, "step", 1.0), Beat(5, "evaluation", 1.0)) == PHASE_WARNING_S
    waits = Beat(0, VERIFYING, 1.0)
    assert warning_after_s(Beat(0, CHECK_STEP, 1.0), waits) == STEP_WARNING_S, "of the check"
    assert warning_after_s(Beat(0, CHECK_STEP, 1.0), Beat(0, CHECK_BUILD, 1.0)) == PHASE_WARNING_S, (
        "it builds"
    )
    script = Beat(5, "backward", 1.0, is_step_complete=True), Beat(0, "script", 1.0, is_step_complete=True)
    assert warning_after_s(*script) == PHASE_WARNING_S


@pytest.mark.parametrize(("timeout_s", "until_told_s"), [(60.0, 15.0), (6.0, 3.0), (600.0, 15.0)])
def test_a_short_timeout_warns_earlier(timeout_s: float, until_told_s: float) -> None:
    assert warning_after_s(Beat(5, "step", 1.0), timeout_s=timeout_s) == until_told_s
    assert HangTimeouts(timeout_s).stop_after_s(until_told_s) == timeout_s
    assert HangTimeouts(timeout_s).stop_after_s(2 * timeout_s) == 4 * timeout_s
