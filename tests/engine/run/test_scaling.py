"""Steps that fp16's loss scaling left out are the run's, but for those that a later attempt took again."""

from __future__ import annotations

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.scaling import Scaled, scaled

SCALES = [(1, 8.0), (4, 4.0), (6, 2.0), (7, 1.0), (9, 2.0)]
"""After steps 3, 5 and 6 it fell."""


def first_attempt(cut_after: int) -> Attempt:
    """Cut at step 5 once so many of its events were read."""
    one = Attempt(0)
    for place, (step, scale) in enumerate(SCALES):
        if place == cut_after:
            one.cut(5)
        one.scaling.take(events.LossScale(rank=0, step=step, scale=scale), one.last)
    one.cut(5)
    return one


def test_a_lower_factor_says_that_the_step_before_was_left_out() -> None:
    one = Attempt(0)
    assert scaled([one.scaling]) is None
    for step, scale in SCALES:
        one.scaling.take(events.LossScale(rank=0, step=step, scale=scale), one.last)
        one.scaling.take(events.LossScale(rank=1, step=step, scale=scale / 7), one.last)
    assert list(one.scaling.left_out) == [3, 5, 6]
    one.scaling.take(events.LossScale(rank=0, step=12, scale=float("nan")), one.last)
    assert scaled([one.scaling]) == Scaled(2.0, 3)


def test_what_was_trained_again_is_history_whichever_file_is_read_first() -> None:
    later = Attempt(1)
    later.scaling.take(events.LossScale(rank=0, step=6, scale=0.5), None)
    for cut_after in range(len(SCALES) + 1):
        one = first_attempt(cut_after)
        assert list(one.scaling.left_out) == [3, 5], cut_after
        assert scaled([one.scaling, later.scaling]) == Scaled(0.5, 2)
