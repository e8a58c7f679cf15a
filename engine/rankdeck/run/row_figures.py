"""The figures of a run's row, from its fold: those that `show` says.

A run that is over is folded once. One that goes on is followed: each call reads what is new.
"""

from __future__ import annotations

from rankdeck.base.garbage import collector_paused
from rankdeck.run.batch import Batch
from rankdeck.run.fold import Fold
from rankdeck.run.row import RunFigures
from rankdeck.run.summarising import finite, newest_loss
from rankdeck.rundir import EventReader, RunDir

_CHUNK_BYTES = 1 << 17


def figures_of(fold: Fold) -> RunFigures:
    evaluation, peaks = fold.evaluation, [device.peak_bytes for device in fold.devices.values()]
    return RunFigures(
        loss=newest_loss(fold),
        held_out=None if evaluation is None else finite(evaluation.loss),
        peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
        imbalance=fold.imbalance(),
        samples_per_s=fold.samples_per_s(),
        bubble=None if fold.bubble is None else fold.bubble[0],
    )


class FollowedFigures:
    """A run being folded, some bytes at a time, so that whoever waits for another run waits no longer."""

    def __init__(self, run: RunDir) -> None:
        self._fold, self._reader = Fold(curves=False), EventReader(run)
        self._told: RunFigures | None = None

    def read_on(self, num_bytes: int = 8 << 20) -> bool:
        """Whether there may be more to read."""
        batch = Batch()
        with collector_paused():
            for name, chunk in self._reader.batches(num_bytes, _CHUNK_BYTES):
                batch.add(name, chunk)
        if not batch.num_events:
            return False
        self._fold.apply(batch)
        self._told = None
        return True

    def figures(self) -> RunFigures:
        if self._told is None:
            self._told = figures_of(self._fold)
        return self._told
