"""Give access to the table rows of all attempts of a run, in step order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankdeck.run.merged_attempts import RunPace
from rankdeck.run.series import Floats
from rankdeck.run.step_table import Row


class AttemptRows(RunPace):
    """Rows of a run's attempts; the base class of `RunState`."""

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
        """Return the row of a step, None if it is not held."""
        for attempt in self.attempts.values():
            steps = attempt.table.column("step")
            index = int(np.searchsorted(steps, step))
            if index < len(steps) and steps[index] == step:
                return attempt.table.row(index)
        return None

    def rows(self) -> Iterator[Row]:
        """Yield the rows held, in step order."""
        for attempt in self.attempts.values():
            yield from map(attempt.table.row, range(attempt.table.rows.shape[1]))

    def column(self, name: str) -> Floats:
        """Return one column of the rows held (step_table.COLUMNS)."""
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
        """Check whether rates and step times cover every row; otherwise they are estimates (StepTable)."""
        return not any(attempt.table.num_dropped for attempt in self.attempts.values())

    def newest_value(self, name: str) -> tuple[int, float] | None:
        """Return (step, value) of the newest row held that has a value: a script's steps are sampled."""
        for attempt in reversed(self.attempts.values()):
            indices = np.flatnonzero(np.isfinite(attempt.table.column(name)))
            if len(indices):
                return int(attempt.table.column("step")[indices[-1]]), float(
                    attempt.table.column(name)[indices[-1]]
                )
        return None
