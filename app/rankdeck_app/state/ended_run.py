"""What a run that is over came to: the figures of its report, made by a thread once its last word was read.

Its fold does not change any more then. Where it is resumed, or its prediction comes later, they are made
anew. Read rankdeck/compare/reported.py before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, Signal

from rankdeck.compare.background import read_background
from rankdeck.compare.figures import figures_of
from rankdeck.compare.naming import RunAt
from rankdeck.compare.reported import Reported, reported
from rankdeck.run.fold import Fold
from rankdeck.run.plan_lines import PlanLine
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.live_run import LiveRun


class EndedRun(QObject):
    """`changed`: `report` is another; it is None while the run goes on, and where it told of no step."""

    changed = Signal()

    def __init__(self, run: LiveRun, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._run = run
        self.report: Reported | None = None
        self._asked: object = None
        self._thread = IoThread(self, name="report", started=True)

    def look(self) -> None:
        """Ask for the figures where there are others than those that are known."""
        run = self._run
        prediction = run.prediction
        asked = (run.outcome, run.step, prediction) if run.is_over and run.step is not None else None
        if asked == self._asked:
            return
        self._asked = asked
        self._thread.drop()
        if asked is None:
            self._found(None)
            return
        at, fold, outcome = RunAt(run.run.path), run.fold, run.outcome or ""
        work = partial(report_of, at, fold, outcome, prediction)
        self._thread.do(work, self._found, lambda _error: self._found(None))

    def _found(self, report: Reported | None) -> None:
        self.report = report
        self.changed.emit()


def report_of(at: RunAt, fold: Fold, outcome: str, prediction: PlanLine | None) -> Reported:
    """As the page of a report has it. Raises OSError."""
    background = read_background(at)
    if background.prediction is None:
        background = replace(background, prediction=prediction)
    return reported(figures_of(at, fold, background, outcome), fold)
