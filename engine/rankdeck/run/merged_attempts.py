"""The attempts of a run put together: their curves as one, and what those that are measured together say of
the devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.curves import CURVE_INDICES
from rankdeck.run.devices import HISTORIES, DeviceState
from rankdeck.run.series import Curve, Floats, Series
from rankdeck.run.step_table import Mark, StepTable


class DeviceHistories:
    """The histories of a run's devices over seconds since its start (devices.HISTORIES)."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._attempts = attempts
        self._curves: dict[tuple[int, float], dict[str, Curve]] = {}

    def for_device(self, index: int, zero: float) -> dict[str, Curve]:
        """Of one device, `zero` being the start of the run."""
        if (index, zero) not in self._curves:
            self._curves[index, zero] = {name: self._curve(index, name, zero) for name in HISTORIES}
        return self._curves[index, zero]

    def _curve(self, index: int, name: str, zero: float) -> Curve:
        def parts() -> list[Series]:
            return [getattr(one.devices[index], name) for one in self._attempts() if index in one.devices]

        return Curve(parts, zero=zero)


def step_curve(attempts: Callable[[], Sequence[Attempt]], name: str) -> Curve:
    """One curve (curves.INDICES) of all attempts, whose steps follow each other."""

    def parts() -> list[Series]:
        drawn = [one.curves for one in attempts() if one.curves is not None]
        return [series for curves in drawn if (series := curves.series_of(name)) is not None]

    return Curve(parts, CURVE_INDICES[name])


def attempts_measured_together(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The newest attempt that restored, or the latest one, after those before it with the same set-up."""
    known = [one for one in attempts if one.started is not None] or list(attempts)
    restored = [one for one in known if one.restored is not None]
    shown = (restored or known)[-1:]
    for one in reversed(known[: known.index(shown[0])] if shown else []):
        if one.setup() != shown[0].setup():
            break
        shown.insert(0, one)
    return shown


def merge_devices(
    measured: Sequence[Attempt], histories: DeviceHistories, zero: float
) -> dict[int, DeviceState]:
    """The devices of attempts that are measured together, by place in the run, which began at `zero`."""
    infos = _device_infos(measured[-1]) if measured else {}
    indices = sorted(infos.keys() | {index for one in measured for index in one.devices})
    figures = {
        index: DeviceState(index, infos.get(index), histories.for_device(index, zero)) for index in indices
    }
    for one in measured:
        for index, device in one.devices.items():
            figures[index].add_attempt(device)
    return figures


def _device_infos(latest: Attempt) -> dict[int, events.DeviceInfo]:
    """The devices as they were announced; on CPUs a rank that nobody announced, as a script may start some
    itself, has one too."""
    announced = latest.started.devices if latest.started is not None else []
    infos = {info.index: info for info in announced}
    if announced and all(info.kind == "virtual" for info in announced):
        for index in sorted(latest.devices.keys() - infos.keys()):
            infos[index] = events.DeviceInfo(index=index, name=f"CPU {index}", kind="virtual")
    return infos


# How fast a run goes: figures over the steps of consecutive attempts, without the time between them.
#
# Between the end of one attempt and the start of the next a person slept or a scheduler queued: the first
# step of an attempt takes its own `step_s`, not the time since the attempt before. step_blocks.py says when
# the figures are exact.

WARM_UP_SHARE = 0.2
_RECENT_SHARE = 0.75


class RunPace:
    """How fast a run of these attempts goes; `Fold` is one."""

    attempts: dict[int, Attempt]

    def _attempts_with_rows(self) -> list[Attempt]:
        return [one for one in self.attempts.values() if len(one.table)]

    def samples_per_s(self) -> float | None:
        """Over the whole run after the first 20 % of its steps, evaluations included."""
        attempts = self._attempts_with_rows()
        return _samples_per_s_from(attempts, _warm_up_end(attempts))

    def recent_samples_per_s(self, window_s: float = 5.0) -> float | None:
        """Samples a second over the last `window_s` seconds of steps."""
        attempts = self._attempts_with_rows()
        return _samples_per_s_from(attempts, _window_start(attempts, window_s))

    def steps_per_s(self) -> float | None:
        """Over the whole run after the first 20 % of its steps, evaluations included."""
        attempts = self._attempts_with_rows()
        return _steps_per_s_from(attempts, _warm_up_end(attempts))

    def recent_steps_per_s(self, window_s: float = 5.0) -> float | None:
        """Steps a second over the last `window_s` seconds of steps."""
        attempts = self._attempts_with_rows()
        return _steps_per_s_from(attempts, _window_start(attempts, window_s))

    def step_times(self) -> dict[str, float | None]:
        """Median and 99th percentile of the seconds from a step's end to the next one's within an attempt.

        The first step is left out: no step ended before it.
        """
        attempts = self._attempts_with_rows()
        held = [np.diff(one.table.column("ended"), prepend=one.table.last_dropped_end) for one in attempts]
        times = np.sort(np.concatenate([np.empty(0), *(part[np.isfinite(part)] for part in held)]))
        gone = [one.table for one in attempts if one.table.num_dropped]
        if not len(times):
            return {"median": None, "p99": None}
        if gone:
            return _percentiles_with_bins(times, gone)
        middle = len(times) // 2
        median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
        p99 = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
        return {"median": float(median), "p99": float(p99)}


def remaining_s(attempts: Sequence[Attempt], num_steps: int, step: int) -> float | None:
    """Seconds from `step` to `num_steps` at the pace of the last quarter of the steps done."""
    num_rows = _num_rows(attempts)
    start = max(1, int(num_rows * _RECENT_SHARE))
    seconds = _seconds_from(attempts, start)
    return None if seconds is None else max(0, num_steps - step) * seconds / (num_rows - start)


def _warm_up_end(attempts: Sequence[Attempt]) -> int:
    return max(1, int(_num_rows(attempts) * WARM_UP_SHARE))


def _window_start(attempts: Sequence[Attempt], window_s: float) -> int:
    """Behind the last row, where nothing is known, if the newest attempt holds none."""
    num_rows = _num_rows(attempts)
    if not attempts or not len(attempts[-1].table.rows[0]):
        return num_rows
    ended = attempts[-1].table.column("ended")
    num_recent = len(ended) - int(np.searchsorted(ended, ended[-1] - window_s))
    return max(1, min(num_rows - num_recent, num_rows - 2) + 1)


def _num_rows(attempts: Sequence[Attempt]) -> int:
    return sum(len(one.table) for one in attempts)


def _samples_per_s_from(attempts: Sequence[Attempt], start: int) -> float | None:
    seconds = _seconds_from(attempts, start)
    if seconds is None:
        return None
    samples = sum(_samples_after(*stretch) for stretch in _row_ranges(attempts, start))
    return samples / seconds if math.isfinite(samples) else None


def _steps_per_s_from(attempts: Sequence[Attempt], start: int) -> float | None:
    seconds = _seconds_from(attempts, start)
    return None if seconds is None else (_num_rows(attempts) - start) / seconds


def _seconds_from(attempts: Sequence[Attempt], start: int) -> float | None:
    """From the end of the row before index `start` to the last row's end; None where that is no time."""
    seconds = sum(_seconds_after(one.table, row) for one, row in _row_ranges(attempts, start))
    return seconds if seconds > 0 and math.isfinite(seconds) else None


def _row_ranges(attempts: Sequence[Attempt], start: int) -> Iterator[tuple[Attempt, int]]:
    """The attempts with rows from index `start` on, each with the row behind which they count, or -1."""
    for one in attempts:
        if start < len(one.table):
            yield one, max(-1, start - 1)
        start -= len(one.table)


def _seconds_after(table: StepTable, row: int) -> float:
    ended = table.column("ended")
    last = float(ended[-1]) if len(ended) else table.last_dropped_end
    if row < 0:
        assert table.first is not None
        return last - table.first.ended + float(np.fmax(0.0, table.first.step_s))
    is_held = row >= table.num_dropped
    return last - (float(ended[row - table.num_dropped]) if is_held else _mark_at(table, row).ended)


def _samples_after(one: Attempt, row: int) -> float:
    table = one.table
    samples = table.column("samples")[max(0, row + 1 - table.num_dropped) :]
    held = float(np.where(np.isnan(samples), one.samples_per_step(), samples).sum())
    if row >= table.num_dropped:
        return held
    return held + table.dropped_samples - (_mark_at(table, row).samples if row >= 0 else 0.0)


def _mark_at(table: StepTable, row: int) -> Mark:
    """The first mark from a row that is gone on."""
    return next((mark for mark in table.marks if mark.row >= row), table.marks[-1])


def _percentiles_with_bins(times: Floats, gone: Sequence[StepTable]) -> dict[str, float | None]:
    """The same with the bins of rows that are not held any more."""
    values = np.concatenate([times, *(table.bin_times() for table in gone)])
    counts = np.concatenate([np.ones(len(times)), *(table.dropped_times for table in gone)])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    places = np.searchsorted(reached, [0.5 * reached[-1], 0.99 * reached[-1]])
    median, p99 = values[order][places].tolist()
    return {"median": median, "p99": p99}
