"""Compute a run's metrics for its row in the list of runs, with the same values as in `rankdeck show`.

A run that is over is read once. For an active run, each call of `read_chunk` reads only new events.
"""

from __future__ import annotations

from rankdeck.base.garbage import pause_gc
from rankdeck.run.batch import Batch
from rankdeck.run.row import RunMetrics
from rankdeck.run.run_state import RunState
from rankdeck.run.summary_builder import finite_or_none, newest_loss
from rankdeck.run_dir import EventReader, RunDir

_CHUNK_BYTES = 1 << 17


def run_metrics(state: RunState) -> RunMetrics:
    evaluation, peaks = state.evaluation, [device.peak_bytes for device in state.devices.values()]
    return RunMetrics(
        loss=newest_loss(state),
        held_out=None if evaluation is None else finite_or_none(evaluation.loss),
        peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
        imbalance=state.imbalance(),
        samples_per_s=state.samples_per_s(),
        bubble=None if state.bubble is None else state.bubble[0],
    )


class RunMetricsReader:
    """Reader of one run's events in chunks, so that a caller can read other runs between two chunks."""

    def __init__(self, run: RunDir) -> None:
        # A row shows no curves, so none are built.
        self._state, self._reader = RunState(curves=False), EventReader(run)
        self._finished_metrics: RunMetrics | None = None

    def read_chunk(self, num_bytes: int = 8 << 20) -> bool:
        """Read a chunk; return whether there may be more to read."""
        batch = Batch()
        with pause_gc():
            for name, chunk in self._reader.batches(num_bytes, _CHUNK_BYTES):
                batch.add(name, chunk)
        if not batch.num_events:
            return False
        self._state.apply(batch)
        self._finished_metrics = None
        return True

    def metrics(self) -> RunMetrics:
        if self._finished_metrics is None:
            self._finished_metrics = run_metrics(self._state)
        return self._finished_metrics
