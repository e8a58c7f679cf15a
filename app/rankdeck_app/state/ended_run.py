"""What a run that is over came to: the figures of its report, made by a thread once its last word was read.

Its fold does not change any more then. Where it is resumed, or its prediction comes later, they are made
anew. Read rankdeck/compare/run_report.py before.
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
    """`changed`: `report` is another; it is None while the run goes on, and where it told of no step."""

    changed = Signal()

    def __init__(self, run: LiveRun, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._run = run
        self.report: RunReport | None = None
        self._requested: object = None
        self._thread = IoThread(self, name="report", started=True)

    def update(self) -> None:
        """Ask for the figures where there are others than those that are known."""
        run = self._run
        prediction = run.prediction
        asked = (run.outcome, run.step, prediction) if run.is_over and run.step is not None else None
        if asked == self._requested:
            return
        self._requested = asked
        self._thread.discard()
        if asked is None:
            self._on_report(None)
            return
        at, fold, outcome = RunRef(run.run_dir.path), run.state, run.outcome or ""
        work = partial(make_report, at, fold, outcome, prediction)
        self._thread.submit(work, self._on_report, lambda _error: self._on_report(None))

    def _on_report(self, report: RunReport | None) -> None:
        self.report = report
        self.changed.emit()


def make_report(at: RunRef, fold: RunState, outcome: str, prediction: PlanLine | None) -> RunReport:
    """As the page of a report has it. Raises OSError."""
    background = read_run_setup(at)
    if background.prediction is None:
        background = replace(background, prediction=prediction)
    return build_report(build_compared_run(at, fold, background, outcome), fold)
