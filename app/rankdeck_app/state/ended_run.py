"""Report of an ended run, built by a thread once the run's exit record has been read.

The run state is final by then. If the run is resumed, or its prediction arrives later, the report is built
again. Read rankdeck/compare/run_report.py first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, Signal

from rankdeck.compare.run_metrics import build_compared_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.run_report import RunReport, build_report
from rankdeck.compare.run_setup import read_run_setup
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.run_state import RunState
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.live_run import LiveRun


class EndedRun(QObject):
    """Report of an ended run; `changed` is emitted for a new `report`.

    `report` is None while the run is running, or if the run reported no step.
    """

    changed = Signal()

    def __init__(self, run: LiveRun, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._run = run
        self.report: RunReport | None = None
        self._requested: object = None
        # A thread of its own, because a report takes long.
        self._thread = IoThread(self, name="report", started=True)

    def update(self) -> None:
        """Request a new report if the run has changed."""
        run = self._run
        prediction = run.prediction
        request = (run.outcome, run.step, prediction) if run.is_over and run.step is not None else None
        if request == self._requested:
            return
        self._requested = request
        # A report of the previous state must not arrive after this request.
        self._thread.discard()
        if request is None:
            self._on_report(None)
            return
        at, state, outcome = RunRef(run.run_dir.path), run.state, run.outcome or ""
        work = partial(make_report, at, state, outcome, prediction)
        self._thread.submit(work, self._on_report, lambda _error: self._on_report(None))

    def _on_report(self, report: RunReport | None) -> None:
        self.report = report
        self.changed.emit()


def make_report(at: RunRef, state: RunState, outcome: str, prediction: PlanLine | None) -> RunReport:
    """Build the report of an ended run, with the same content as the HTML page of `rankdeck report`.

    Raises:
        OSError: the run directory cannot be read.
    """
    background = read_run_setup(at)
    if background.prediction is None:
        background = replace(background, prediction=prediction)
    return build_report(build_compared_run(at, state, background, outcome), state)
