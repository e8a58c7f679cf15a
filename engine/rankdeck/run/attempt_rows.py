"""Read the table rows of a run's attempts, and compute the run's pace from the rows.

The pace excludes the time between attempts, when the user may be away or the run may be in a queue: the
first step of an attempt is counted with its own `step_s`. step_table.py describes when the metrics are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rankdeck.run.attempt import Attempt
from rankdeck.run.series import Floats
from rankdeck.run.step_table import Mark, Row, StepTable

WARM_UP_SHARE = 0.2
_RECENT_SHARE = 0.75


class AttemptRows:
    """Rows of a run's attempts in step order, and the run's pace; the base class of `RunState`."""

    attempts: dict[int, Attempt]

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return None if self.last_row is None else self.last_row.step

    @property
    def last_row(self) -> Row | None:
        """The row of the last complete step."""
        return next(
            (
                attempt.table.row(-1)
                for attempt in reversed(self.attempts.values())
                if attempt.table.rows.shape[1]
            ),
            None,
        )

    def row_at(self, step: int) -> Row | None:
        """Return the row of a step, or None if that row is not in memory."""
        for attempt in self.attempts.values():
            steps = attempt.table.column("step")
            index = int(np.searchsorted(steps, step))
            if index < len(steps) and steps[index] == step:
                return attempt.table.row(index)
        return None

    def rows(self) -> Iterator[Row]:
        """Yield the rows in memory, in step order."""
        for attempt in self.attempts.values():
            yield from map(attempt.table.row, range(attempt.table.rows.shape[1]))

    def column(self, name: str) -> Floats:
        """Return one column (step_table.COLUMNS) of the rows in memory."""
        return np.concatenate(
            [np.empty(0), *(attempt.table.column(name) for attempt in self.attempts.values())]
        )

    def first_row(self) -> Row | None:
        return next(
            (attempt.table.first for attempt in self.attempts.values() if attempt.table.first is not None),
            None,
        )

    def first_loss(self) -> float | None:
        """Return the first finite loss."""
        first_losses = (attempt.table.first_loss for attempt in self.attempts.values())
        return next((row[1] for row in first_losses if row is not None), None)

    def is_exact(self) -> bool:
        """Check whether rates and step times are computed from every row; otherwise they are estimates
        (StepTable)."""
        return not any(attempt.table.num_dropped for attempt in self.attempts.values())

    def newest_value(self, name: str) -> tuple[int, float] | None:
        """Return (step, value) of the newest row in memory that has a value in column `name`.

        A script's steps are sampled, so the newest row may lack a value.
        """
        for attempt in reversed(self.attempts.values()):
            indices = np.flatnonzero(np.isfinite(attempt.table.column(name)))
            if len(indices):
                return int(attempt.table.column("step")[indices[-1]]), float(
                    attempt.table.column(name)[indices[-1]]
                )
        return None

    # Pace

    def _attempts_with_rows(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if len(attempt.table)]

    def samples_per_s(self) -> float | None:
        """Return samples per second after the first 20 % of the run's steps, evaluation time included."""
        attempts = self._attempts_with_rows()
        return _samples_per_s_from(attempts, _warm_up_end(attempts))

    def recent_samples_per_s(self, window_s: float = 5.0) -> float | None:
        """Return samples per second over the `window_s` seconds before the end of the newest step."""
        attempts = self._attempts_with_rows()
        return _samples_per_s_from(attempts, _window_start(attempts, window_s))

    def steps_per_s(self) -> float | None:
        """Return steps per second after the first 20 % of the run's steps, evaluation time included."""
        attempts = self._attempts_with_rows()
        return _steps_per_s_from(attempts, _warm_up_end(attempts))

    def recent_steps_per_s(self, window_s: float = 5.0) -> float | None:
        """Return steps per second over the `window_s` seconds before the end of the newest step."""
        attempts = self._attempts_with_rows()
        return _steps_per_s_from(attempts, _window_start(attempts, window_s))

    def step_times(self) -> dict[str, float | None]:
        """Return the median and 99th percentile of the seconds between the ends of consecutive steps.

        The first step of each attempt is omitted, because no step of that attempt ended before it.
        """
        attempts = self._attempts_with_rows()
        # `last_dropped_end` is NaN until rows have been dropped, so an attempt's first step has no duration.
        durations = [
            np.diff(attempt.table.column("ended"), prepend=attempt.table.last_dropped_end)
            for attempt in attempts
        ]
        times = np.sort(np.concatenate([np.empty(0), *(array[np.isfinite(array)] for array in durations)]))
        cut_tables = [attempt.table for attempt in attempts if attempt.table.num_dropped]
        if not len(times):
            return {"median": None, "p99": None}
        if cut_tables:
            return _percentiles_with_bins(times, cut_tables)
        middle = len(times) // 2
        median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
        p99 = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
        return {"median": float(median), "p99": float(p99)}


def remaining_s(attempts: Sequence[Attempt], num_steps: int, step: int) -> float | None:
    """Return the seconds from `step` to `num_steps` at the pace of the last quarter of completed steps."""
    num_rows = _num_rows(attempts)
    start = max(1, int(num_rows * _RECENT_SHARE))
    seconds = _seconds_from(attempts, start)
    return None if seconds is None else max(0, num_steps - step) * seconds / (num_rows - start)


def _warm_up_end(attempts: Sequence[Attempt]) -> int:
    # At least one row, as a step is timed from the end of the row before it.
    return max(1, int(_num_rows(attempts) * WARM_UP_SHARE))


def _window_start(attempts: Sequence[Attempt], window_s: float) -> int:
    """Return the index of the first row in the `window_s` seconds before the end of the newest step.

    If the newest attempt has no rows in memory, return the index after the last row, because the recent pace
    is unknown.
    """
    num_rows = _num_rows(attempts)
    if not attempts or not len(attempts[-1].table.rows[0]):
        return num_rows
    ended = attempts[-1].table.column("ended")
    num_recent = len(ended) - int(np.searchsorted(ended, ended[-1] - window_s))
    return max(1, min(num_rows - num_recent, num_rows - 2) + 1)


def _num_rows(attempts: Sequence[Attempt]) -> int:
    return sum(len(attempt.table) for attempt in attempts)


def _samples_per_s_from(attempts: Sequence[Attempt], start: int) -> float | None:
    seconds = _seconds_from(attempts, start)
    if seconds is None:
        return None
    samples = sum(_samples_after(*row_range) for row_range in _row_ranges(attempts, start))
    return samples / seconds if math.isfinite(samples) else None


def _steps_per_s_from(attempts: Sequence[Attempt], start: int) -> float | None:
    seconds = _seconds_from(attempts, start)
    return None if seconds is None else (_num_rows(attempts) - start) / seconds


def _seconds_from(attempts: Sequence[Attempt], start: int) -> float | None:
    """Return the seconds from the end of row `start - 1` to the end of the last row; None if not positive."""
    seconds = sum(_seconds_after(attempt.table, row) for attempt, row in _row_ranges(attempts, start))
    return seconds if seconds > 0 and math.isfinite(seconds) else None


def _row_ranges(attempts: Sequence[Attempt], start: int) -> Iterator[tuple[Attempt, int]]:
    """Yield each attempt that has rows at or after `start`, an index into the rows of all attempts.

    The second item is the index, within the attempt, of its last row before `start`; -1 if it has none.
    """
    for attempt in attempts:
        if start < len(attempt.table):
            yield attempt, max(-1, start - 1)
        start -= len(attempt.table)


def _seconds_after(table: StepTable, row: int) -> float:
    ended = table.column("ended")
    last = float(ended[-1]) if len(ended) else table.last_dropped_end
    if row < 0:
        assert table.first is not None
        # fmax turns an unknown (NaN) first step time into 0.
        return last - table.first.ended + float(np.fmax(0.0, table.first.step_s))
    is_held = row >= table.num_dropped
    return last - (float(ended[row - table.num_dropped]) if is_held else _mark_at(table, row).ended)


def _samples_after(attempt: Attempt, row: int) -> float:
    table = attempt.table
    samples = table.column("samples")[max(0, row + 1 - table.num_dropped) :]
    total = float(np.where(np.isnan(samples), attempt.samples_per_step(), samples).sum())
    if row >= table.num_dropped:
        return total
    return total + table.dropped_samples - (_mark_at(table, row).samples if row >= 0 else 0.0)


def _mark_at(table: StepTable, row: int) -> Mark:
    """Return the first mark at or after the dropped row `row`; if there is none, the last mark."""
    return next((mark for mark in table.marks if mark.row >= row), table.marks[-1])


def _percentiles_with_bins(times: Floats, cut_tables: Sequence[StepTable]) -> dict[str, float | None]:
    """Return the median and 99th percentile of the step times in `times` together with those of the rows that
    `cut_tables` have dropped and counted in bins."""
    values = np.concatenate([times, *(table.bin_times() for table in cut_tables)])
    counts = np.concatenate([np.ones(len(times)), *(table.dropped_times for table in cut_tables)])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    indices = np.searchsorted(reached, [0.5 * reached[-1], 0.99 * reached[-1]])
    median, p99 = values[order][indices].tolist()
    return {"median": median, "p99": p99}
