"""Store the step rows of one attempt in bounded memory.

Rows are (columns, steps) arrays of doubles with NaN for unknown values. step_blocks.py and script_steps.py
make the rows, and attempt_rows.py reads them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rankdeck.run.series import ColumnBuffer, Floats

# 12 MB instead of 48 for a million steps.
MAX_ROWS = 1 << 18
"""Maximum number of an attempt's rows stored individually; older rows are reduced to marks and bins
(StepTable)."""


class Row(NamedTuple):
    """One complete step. NaN means unknown; `ended` is Unix time, `step_s` the time since the previous step.

    Only user scripts fill the last two fields: `wait_s`, the part of `step_s` spent in the data loader, and
    `grad_norm`, known if the step was sampled.
    """

    step: int
    loss: float
    lr: float
    samples: float
    step_s: float
    ended: float
    wait_s: float = math.nan
    grad_norm: float = math.nan


COLUMNS = Row._fields[:6]
SCRIPT_COLUMNS = Row._fields


class Mark(NamedTuple):
    """Progress of an attempt after row number `row`; `samples` counts the samples up to that row."""

    row: int
    step: float
    ended: float
    samples: float

    def __deepcopy__(self, _memo: object) -> Mark:
        return self  # immutable, so copies share it


class StepTable:
    """The newest `max_rows` rows of one attempt, and the data on older rows that whole-run metrics need.

    Dropped rows leave marks at regular intervals (at most 4096 marks), and their step times are counted in
    bins that are 1 % wide. So metrics of an attempt of at most `max_rows` steps are exact. In a longer
    attempt, a rate since a dropped row is measured from the next mark, at most 1/2048 of the rows later; a
    median or percentile of step times is off by at most 1 %. `cut` leaves dropped rows in the bins.
    """

    _MAX_MARKS = 4096
    # 2800 bins of 1 % cover step times from 0.1 µs to 35 hours.
    _LEAST_S, _BIN, _NUM_BINS = 1e-7, np.log(1.01), 2800

    def __init__(self, max_rows: int | None = MAX_ROWS, columns: tuple[str, ...] = COLUMNS) -> None:
        self._max_rows = max_rows
        self.columns = columns
        self._buffer = ColumnBuffer([(len(columns), np.float64)])
        self._stride = 1
        self.num_dropped = 0
        self.dropped_samples = 0.0
        self.last_dropped_end = np.nan
        """Unix time at which the newest dropped row ended; NaN if no row was dropped."""
        self.marks: list[Mark] = []
        self.dropped_times = np.zeros(0, dtype=np.int64)
        self.first: Row | None = None
        self.first_loss: tuple[float, float] | None = None
        """(step, loss) of the first row with a finite loss."""

    def __len__(self) -> int:
        return self.num_dropped + len(self._buffer)

    @property
    def rows(self) -> Floats:
        """The rows in memory, as an array of shape (columns, steps)."""
        return self._buffer[0]

    def column(self, name: str) -> Floats:
        """Return one column of the rows in memory; all values are NaN if the table has no such column."""
        if name not in self.columns:
            return np.full(len(self._buffer), np.nan)
        column: Floats = self.rows[self.columns.index(name)]
        return column

    def row(self, index: int) -> Row:
        """Return one of the rows in memory; negative indices count from the end."""
        return _row(self.rows[:, index])

    def append(self, rows: Floats) -> None:
        if self.first is None and rows.shape[1]:
            self.first = _row(rows[:, 0])
        if self.first_loss is None:
            indices = np.flatnonzero(np.isfinite(rows[1]))
            if len(indices):
                self.first_loss = (float(rows[0, indices[0]]), float(rows[1, indices[0]]))
        self._buffer.append(rows.shape[1], rows)
        if self._max_rows is not None:
            # Drop many rows at once, at indices that do not depend on the batches.
            together = max(1, self._max_rows // 1000)
            surplus = math.ceil((len(self) - self._max_rows) / together) * together - self.num_dropped
            if surplus > 0:
                self._drop_rows(self.rows[:, :surplus])
                self._buffer.forget(surplus)

    def _drop_rows(self, rows: Floats) -> None:
        """Add the data of `rows`, which are about to be dropped from memory, to the marks and bins."""
        steps, _, _, samples, _, ended = rows[: len(COLUMNS)]
        times = np.diff(ended, prepend=self.last_dropped_end)
        self.last_dropped_end = float(ended[-1])
        if not len(self.dropped_times):
            self.dropped_times = np.zeros(self._NUM_BINS, dtype=np.int64)
        times = times[np.isfinite(times)]
        bins = np.log(np.maximum(times, self._LEAST_S) / self._LEAST_S) / self._BIN
        self.dropped_times += np.bincount(
            np.minimum(bins, self._NUM_BINS - 1).astype(np.int64), minlength=self._NUM_BINS
        )
        totals = self.dropped_samples + np.cumsum(np.nan_to_num(samples))
        self.dropped_samples = float(totals[-1])
        self._thin_marks(self.num_dropped + len(steps))
        for at in range(-self.num_dropped % self._stride, len(steps), self._stride):
            self.marks.append(
                Mark(self.num_dropped + at, float(steps[at]), float(ended[at]), float(totals[at]))
            )
        self.num_dropped += len(steps)

    def _thin_marks(self, num_gone: int) -> None:
        """Thin out the marks, so that there are at most `_MAX_MARKS` marks for `num_gone` dropped rows."""
        stride = self._stride
        while num_gone > self._stride * self._MAX_MARKS:
            self._stride *= 2
        if self._stride > stride:
            self.marks = [mark for mark in self.marks if mark.row % self._stride == 0]

    def bin_times(self) -> Floats:
        """Return the step times in seconds that the bins of `dropped_times` represent."""
        middles: Floats = self._LEAST_S * np.exp((np.arange(len(self.dropped_times)) + 0.5) * self._BIN)
        return middles

    def cut(self, last: int) -> None:
        """Discard the steps after `last`."""
        num_kept = int(np.searchsorted(self.column("step"), last, side="right"))
        self._buffer.truncate(self._buffer.first + num_kept)
        if self.num_dropped and not num_kept:
            self.marks = [mark for mark in self.marks if mark.step <= last]
            # All rows held are cut: continue from the last mark that remains.
            newest = self.marks[-1] if self.marks else Mark(-1, 0.0, np.nan, 0.0)
            self.num_dropped, self.last_dropped_end = newest.row + 1, newest.ended
            self.dropped_samples = newest.samples
        if self.first is not None and self.first.step > last:
            self.first = None
        if self.first_loss is not None and self.first_loss[0] > last:
            self.first_loss = None


def _row(column: Floats) -> Row:
    step, *values = column.tolist()
    return Row(int(step), *values)
