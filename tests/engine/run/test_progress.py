"""What steps are called in time and in samples, and their learning rates: thinned, and right where kept."""

from __future__ import annotations

import numpy as np

from rankdeck.run.curves import StepProgress


def test_many_steps_are_thinned_and_the_last_is_kept() -> None:
    progress = StepProgress(0)
    steps = np.arange(1.0, 10_001.0)
    progress.append(steps, np.full(10_000, 0.1), np.full(10_000, 32.0), 100 + steps / 10)
    window = progress.steps_over_time.window(0, 1e9, 100_000)
    assert 200 < len(window.x) < 400
    np.testing.assert_allclose(window.x, 100 + window.low / 10)
    full_window = progress.steps_over_time.window(0, 1e9, 100_000, 1)
    np.testing.assert_allclose(full_window.low, 32 * window.low)
    assert progress.steps_over_time.last_y == 10_000 and progress.lrs.last_x == 10_000


def test_a_resumed_attempt_counts_earlier_samples_and_drops_cut_steps() -> None:
    progress = StepProgress(100)
    for start in (101.0, 111.0):
        steps = np.arange(start, start + 10)
        progress.append(steps, np.full(10, 0.1), np.full(10, 8.0), 50 + steps)
    assert progress.steps_over_time.last_of(1) == 120 * 8
    progress.cut(105)
    assert progress.steps_over_time.last_y == 105 and progress.steps_over_time.last_of(1) == 105 * 8
    assert progress.lrs.last_x == 105


def test_unknown_values_are_left_out() -> None:
    progress = StepProgress(0)
    unknown = np.full(3, np.nan)
    progress.append(np.arange(1.0, 4.0), unknown, unknown, np.array([1.0, np.nan, 3.0]))
    assert progress.steps_over_time.window(0, 10, 10).low.tolist() == [1.0, 3.0] and not len(progress.lrs)
