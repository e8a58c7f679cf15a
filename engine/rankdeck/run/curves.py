"""What is drawn over the steps of one attempt: loss and pace, and their averages.

A configured run knows the loss of every step: all its curves are one series. A person's own script was
sampled: its losses are a series of their own, so that a line connects what is known. attempt.py feeds both.
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
"""Which curve of its series each one is."""
_STEP_CURVES = ("losses", "loss_ema", "rates", "rate_ema")
_SAMPLED_CURVES = ("losses", "loss_ema")
_NUM_PACE_CURVES = 5
_MAX_SNAPSHOTS = 64
_AVERAGED_STEPS = 50
_MAX_ALPHA = 0.2
"""What one sampled loss adds to the average at most, so that chance still cancels."""
_State = tuple[float, float, float]


class StepCurves:
    """Loss and throughput over steps, and their averages: of a configured run.

    The average of the loss goes on from `loss_before`, where the attempt before stood after step `after`;
    that of the throughput begins anew, since another strategy may be behind it.
    """

    def __init__(self, num_steps: int | None, after: int, loss_before: float | None) -> None:
        self._series = Series(num_curves=len(_STEP_CURVES))
        self.norms = Series()
        self._progress = StepProgress(after)
        self.loss_before = loss_before
        # A sixtieth of the run, so that the line is calm and still turns where the loss does.
        self._averages = Ema(1.0 / min(500.0, max(2.0, (num_steps or 3_000) / 60)), 3)
        if loss_before is not None:
            self._averages.resume_from(0, loss_before, after)

    def series_of(self, name: str) -> Series | None:
        """The series that holds a curve, as its curve number INDICES[name]."""
        if name in _STEP_CURVES:
            return self._series
        if name == "grad_norms":
            return self.norms
        return _progress_series(self._progress, name)

    def append(self, rows: Floats) -> None:
        """Rows of step_table.COLUMNS."""
        step, loss, lr, samples, step_s, ended = rows
        self._progress.append(step, lr, samples, ended)
        loss_ema, smooth_samples, smooth_s = self._averages.extend(np.stack([loss, samples, step_s]))
        rates, rate_ema = _divide(samples, step_s), _divide(smooth_samples, smooth_s)
        self._series.append_many(step, np.stack([loss, loss_ema, rates, rate_ema]))

    def append_norms(self, told: Sequence[tuple[Floats, Floats]]) -> None:
        """Norms of gradients, of steps that rise."""
        for steps, norms in told:
            is_new = steps > (self.norms.last_x or 0)
            self.norms.append_many(steps[is_new], norms[is_new])

    def cut(self, last: int) -> None:
        """Forget the steps beyond `last`; nothing is appended after that."""
        self.norms.cut(last)
        self._series.cut(last)
        self._progress.cut(last)

    def rewind(self, last: int) -> int | None:
        """A configured run's steps never change."""
        raise AssertionError(last)

    @property
    def smoothed_loss(self) -> float | None:
        return _last_finite(self._series)


class ScriptCurves:
    """The curves of a person's own script: losses and norms of gradients where they were sampled, the pace of
    every step, and the share of it that went by in the loader."""

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
        if (told := _progress_series(self._progress, name)) is not None:
            return told
        return self._sampled_series if name in _SAMPLED_CURVES else self._step_series

    def append(self, rows: Floats) -> None:
        """Rows of step_table.SCRIPT_COLUMNS, behind those that are there."""
        self._snapshots.append((self._last_step, self._loss_average.state(), self._averages.state()))
        step, loss, lr, samples, step_s, ended, wait_s, grad_norm = rows
        self._progress.append(step, lr, samples, ended)
        is_known = np.isfinite(loss)
        steps, known = step[is_known], loss[is_known]
        self._sampled_series.append_many(steps, np.stack([known, self._loss_average.extend(steps, known)]))
        has_norm = np.isfinite(grad_norm)
        self._norms.append_many(step[has_norm], grad_norm[has_norm])
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
        for told in (self._sampled_series, self._norms, self._step_series, self._progress):
            told.cut(last)

    def rewind(self, last: int) -> int | None:
        """Forget steps, so that all that follow step `last` can be appended again: the step that is now the
        last one here (`last`, or one before it), None where the averages are not known any more."""
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
    """An average over steps of losses that were sampled now and then: each stands for the steps since the one
    before it. Unbiased as Ema is."""

    def __init__(self) -> None:
        self._sum = self._weight = self._step = 0.0

    def resume_from(self, value: float, step: int) -> None:
        """From where the average of the attempt before stood."""
        self._weight = 1.0 - (1.0 - 1.0 / _AVERAGED_STEPS) ** step
        self._sum, self._step = value * self._weight, step

    def state(self) -> _State:
        return self._sum, self._weight, self._step

    def restore(self, state: _State) -> None:
        self._sum, self._weight, self._step = state

    def extend(self, steps: Floats, values: Floats) -> Floats:
        """The averages after each of `values`, all finite."""
        averages = np.empty(len(values))
        for place, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
            kept = (1.0 - 1.0 / _AVERAGED_STEPS) ** max(1.0, step - self._step)
            part = min(1.0 - kept, _MAX_ALPHA)
            self._sum += part * (value - self._sum)
            self._weight += part * (1.0 - self._weight)
            self._step = step
            averages[place] = self._sum / self._weight
        return averages


def _divide(above: Floats, below: Floats) -> Floats:
    """NaN where that is no finite number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = above / below
    finite: Floats = np.where(np.isfinite(quotient) & (below > 0), quotient, np.nan)
    return finite


def _last_finite(series: Series) -> float | None:
    newest = series.last_of(CURVE_INDICES["loss_ema"])
    return newest if newest is not None and math.isfinite(newest) else None


# When the steps of one attempt ended, how many samples were seen by then, and their learning rates.
#
# These change slowly: of many steps that arrive together a few hundred stand for all, so that it costs
# nothing beside the curves, which hold them. What draws a loss over time or samples looks
# steps up here.

_MAX_BATCH = 256
_CAPACITIES = (32_768, 4_096)


class StepProgress:
    """`steps_over_time` are over Unix time: (step, samples seen). `lrs` is over steps. An attempt that went
    on behind step `after` counts the samples of the steps before as those of its own first one.
    """

    def __init__(self, after: int) -> None:
        self.steps_over_time = Series(*_CAPACITIES, num_curves=2, keyed=True)
        self.lrs = Series(*_CAPACITIES)
        self._after = after

    def append(self, step: Floats, lr: Floats, samples: Floats, ended: Floats) -> None:
        seen = self.steps_over_time.last_of(1)
        known = np.nan_to_num(samples)
        before = seen if seen is not None else self._after * float(known[0]) if len(known) else 0.0
        total = before + np.cumsum(known)
        every = max(1, len(step) // _MAX_BATCH)
        places = np.unique(np.append(np.arange(0, len(step), every), len(step) - 1))
        places = places[np.isfinite(ended[places])]
        self.steps_over_time.append_many(ended[places], np.stack([step[places], total[places]]), step[places])
        has_lr = places[np.isfinite(lr[places])]
        self.lrs.append_many(step[has_lr], lr[has_lr])

    def cut(self, last: int) -> None:
        """Forget the steps beyond `last`."""
        self.steps_over_time.cut(last)
        self.lrs.cut(last)
