"""Store one attempt's curves by step: loss, pace and their averages.

A configured run reports the loss of every step, so all its curves share one series. A user script's
losses are sampled, so they have a separate series, in which a line connects the known losses. attempt.py
appends the rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from rankdeck.run.series import Ema, Floats, Series

CURVE_INDICES = {
    "losses": 0,
    "loss_ema": 1,
    "rates": 2,
    "rate_ema": 3,
    "step_rates": 0,
    "step_rate_ema": 1,
    "waits": 4,
    "grad_norms": 0,
    "lrs": 0,
    "moments": 0,
    "samples_seen": 1,
}
"""Index of each curve within its series."""
_STEP_CURVES = ("losses", "loss_ema", "rates", "rate_ema")
_SAMPLED_CURVES = ("losses", "loss_ema")
_NUM_PACE_CURVES = 5
_MAX_SNAPSHOTS = 64
_AVERAGED_STEPS = 50
_MAX_ALPHA = 0.2
"""Maximum weight of one sampled loss in the average, so that noise still averages out."""
_State = tuple[float, float, float]


class StepCurves:
    """Loss and throughput of a configured run over its steps, and their averages.

    The loss average continues from `loss_before`, the previous attempt's average after step `after`. The
    throughput average restarts, since the strategy may have changed.
    """

    def __init__(self, num_steps: int | None, after: int, loss_before: float | None) -> None:
        # One series with four curves holds 24 bytes a step; four series hold 30 and need four appends per
        # batch.
        self._series = Series(num_curves=len(_STEP_CURVES))
        self.norms = Series()
        self._progress = StepProgress(after)
        self.loss_before = loss_before
        # A sixtieth of the run, so that the line is smooth and still follows the loss.
        self._averages = Ema(1.0 / min(500.0, max(2.0, (num_steps or 3_000) / 60)), 3)
        if loss_before is not None:
            # Weighted like an average of one value per finished step, so no other state has to be stored.
            self._averages.resume_from(0, loss_before, after)

    def series_of(self, name: str) -> Series | None:
        """Return the series that contains the curve `name`, at index CURVE_INDICES[name]."""
        if name in _STEP_CURVES:
            return self._series
        if name == "grad_norms":
            return self.norms
        return _progress_series(self._progress, name)

    def append(self, rows: Floats) -> None:
        """Append rows whose columns are step_table.COLUMNS."""
        step, loss, lr, samples, step_s, ended = rows
        self._progress.append(step, lr, samples, ended)
        loss_ema, smooth_samples, smooth_s = self._averages.extend(np.stack([loss, samples, step_s]))
        rates, rate_ema = _divide(samples, step_s), _divide(smooth_samples, smooth_s)
        self._series.append_many(step, np.stack([loss, loss_ema, rates, rate_ema]))

    def append_norms(self, chunks: Sequence[tuple[Floats, Floats]]) -> None:
        """Append gradient norms, in ascending order of steps."""
        for steps, norms in chunks:
            is_new = steps > (self.norms.last_x or 0)
            self.norms.append_many(steps[is_new], norms[is_new])

    def cut(self, last: int) -> None:
        """Discard the steps after `last`; nothing is appended afterwards."""
        self.norms.cut(last)
        self._series.cut(last)
        self._progress.cut(last)

    def rewind(self, last: int) -> int | None:
        """Raise an error: the steps of a configured run never change."""
        raise AssertionError(last)

    @property
    def smoothed_loss(self) -> float | None:
        return _last_finite(self._series)


class ScriptCurves:
    """Curves of a script: sampled losses and gradient norms, and each step's pace and data-loading share."""

    def __init__(self, after: int, loss_before: float | None) -> None:
        self._sampled_series = Series(num_curves=len(_SAMPLED_CURVES))
        self._norms = Series()
        self._step_series = Series(num_curves=_NUM_PACE_CURVES)
        self._progress = StepProgress(after)
        self.loss_before = loss_before
        self._loss_average, self._averages = _SampledAverage(), Ema(1 / _AVERAGED_STEPS, 3)
        if loss_before is not None:
            self._loss_average.resume_from(loss_before, after)
        self._last_step = 0
        self._snapshots: deque[tuple[int, _State, tuple[Floats, Floats]]] = deque(maxlen=_MAX_SNAPSHOTS)

    def series_of(self, name: str) -> Series | None:
        if name == "grad_norms":
            return self._norms
        if (series := _progress_series(self._progress, name)) is not None:
            return series
        return self._sampled_series if name in _SAMPLED_CURVES else self._step_series

    def append(self, rows: Floats) -> None:
        """Append rows that follow the existing rows; their columns are step_table.SCRIPT_COLUMNS."""
        # For rewind(), which restores the averages when rows change.
        self._snapshots.append((self._last_step, self._loss_average.state(), self._averages.state()))
        step, loss, lr, samples, step_s, ended, wait_s, grad_norm = rows
        self._progress.append(step, lr, samples, ended)
        is_known = np.isfinite(loss)
        steps, losses = step[is_known], loss[is_known]
        self._sampled_series.append_many(steps, np.stack([losses, self._loss_average.extend(steps, losses)]))
        has_norm = np.isfinite(grad_norm)
        self._norms.append_many(step[has_norm], grad_norm[has_norm])
        # Samples per second are divided by the time of those steps only that have a sample count.
        counted_s = np.where(np.isfinite(samples), step_s, np.nan)
        smooth_s, smooth_samples, smooth_counted_s = self._averages.extend(
            np.stack([step_s, samples, counted_s])
        )
        paces = [
            _divide(np.ones_like(step_s), step_s),
            _divide(np.ones_like(step_s), smooth_s),
            _divide(samples, step_s),
            _divide(smooth_samples, smooth_counted_s),
            _divide(wait_s, step_s),
        ]
        self._step_series.append_many(step, np.stack(paces))
        self._last_step = int(step[-1])

    def cut(self, last: int) -> None:
        for series in (self._sampled_series, self._norms, self._step_series, self._progress):
            series.cut(last)

    def rewind(self, last: int) -> int | None:
        """Discard steps so that all steps after `last` can be appended again.

        Return the last step that remains (`last` or an earlier step), or None if the averages can no longer
        be restored.
        """
        while self._snapshots:
            step, of_loss, others = self._snapshots.pop()
            if step <= last:
                self.cut(step)
                self._loss_average.restore(of_loss)
                self._averages.restore(others)
                self._last_step = step
                return step
        return None

    @property
    def smoothed_loss(self) -> float | None:
        return _last_finite(self._sampled_series)


def _progress_series(progress: StepProgress, name: str) -> Series | None:
    return {
        "lrs": progress.lrs,
        "moments": progress.steps_over_time,
        "samples_seen": progress.steps_over_time,
    }.get(name)


class _SampledAverage:
    """Moving average of losses that were sampled only at some steps.

    Each loss counts for all steps since the previous loss. The average is bias-corrected like Ema.
    """

    def __init__(self) -> None:
        self._sum = self._weight = self._step = 0.0

    def resume_from(self, value: float, step: int) -> None:
        """Continue from `value`, the previous attempt's average after `step`."""
        self._weight = 1.0 - (1.0 - 1.0 / _AVERAGED_STEPS) ** step
        self._sum, self._step = value * self._weight, step

    def state(self) -> _State:
        return self._sum, self._weight, self._step

    def restore(self, state: _State) -> None:
        self._sum, self._weight, self._step = state

    def extend(self, steps: Floats, values: Floats) -> Floats:
        """Return the running average after each of `values`, all of which must be finite."""
        averages = np.empty(len(values))
        for index, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
            decay = (1.0 - 1.0 / _AVERAGED_STEPS) ** max(1.0, step - self._step)
            weight = min(1.0 - decay, _MAX_ALPHA)
            self._sum += weight * (value - self._sum)
            self._weight += weight * (1.0 - self._weight)
            self._step = step
            averages[index] = self._sum / self._weight
        return averages


def _divide(above: Floats, below: Floats) -> Floats:
    """Divide `above` by `below`; results that are not finite become NaN."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = above / below
    finite: Floats = np.where(np.isfinite(quotient) & (below > 0), quotient, np.nan)
    return finite


def _last_finite(series: Series) -> float | None:
    newest = series.last_of(CURVE_INDICES["loss_ema"])
    return newest if newest is not None and math.isfinite(newest) else None


# End times, sample counts and learning rates of one attempt's steps.
#
# They change slowly: of many steps that arrive together, a few hundred are stored, which costs almost nothing
# compared with the curves. Charts of a loss over time or samples look up steps here.

_MAX_BATCH = 256
_CAPACITIES = (32_768, 4_096)


class StepProgress:
    """Steps and samples of one attempt over time, and its learning rates by step (`lrs`).

    `steps_over_time` contains (step, samples so far) by Unix time. If the attempt continued after step
    `after`, each earlier step is assumed to have as many samples as the attempt's first step.
    """

    def __init__(self, after: int) -> None:
        self.steps_over_time = Series(*_CAPACITIES, num_curves=2, keyed=True)
        self.lrs = Series(*_CAPACITIES)
        self._after = after

    def append(self, step: Floats, lr: Floats, samples: Floats, ended: Floats) -> None:
        samples_before = self.steps_over_time.last_of(1)
        counts = np.nan_to_num(samples)
        before = (
            samples_before
            if samples_before is not None
            else self._after * float(counts[0])
            if len(counts)
            else 0.0
        )
        total = before + np.cumsum(counts)
        every = max(1, len(step) // _MAX_BATCH)
        indices = np.unique(np.append(np.arange(0, len(step), every), len(step) - 1))
        indices = indices[np.isfinite(ended[indices])]
        self.steps_over_time.append_many(
            ended[indices], np.stack([step[indices], total[indices]]), step[indices]
        )
        has_lr = indices[np.isfinite(lr[indices])]
        self.lrs.append_many(step[has_lr], lr[has_lr])

    def cut(self, last: int) -> None:
        """Discard the steps after `last`."""
        self.steps_over_time.cut(last)
        self.lrs.cut(last)
