"""What was predicted for the runs on show, so that it stands beside what they measure.

A prediction is of one attempt: an attempt that brings a configuration of its own is asked about anew. It is
in the run's directory (run/prediction.py), or the form has just shown it, or the engine is asked to
predict the run and keeps it there: one run after the other, and none whose code is not trusted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from rankdeck.config import RunConfig
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import read_prediction
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.plan import DraftPlan, is_choice_of
from rankdeck_app.state.plan_process import Asker, Planner
from rankdeck_app.state.plan_words import is_virtual

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun


class Predictions(Asker):
    """Tells each run that is followed what was predicted for it, as soon as that is known."""

    def __init__(
        self,
        planner: Planner,
        plan: DraftPlan,
        parent: QObject | None = None,
        *,
        disk: IoThread | None = None,
    ) -> None:
        super().__init__(parent)
        self._disk = disk or IoThread(self)
        self._planner, self._plan = planner, plan
        self._followed: dict[LiveRun, RunConfig | None] = {}
        """The configuration that each run was last asked about with."""
        self._waiting: list[LiveRun] = []
        plan.changed.connect(self._go_on)

    def follow(self, run: LiveRun) -> None:
        """A run is looked at; its configuration and devices are known by now or a little later."""
        if run not in self._followed:
            self._followed[run] = None
            run.changed.connect(partial(self._look, run))
            self._look(run, None)

    def forget(self, run: LiveRun) -> None:
        self._followed.pop(run, None)
        self._drop(run)

    def _drop(self, run: LiveRun) -> None:
        if run in self._waiting:
            self._waiting.remove(run)

    def close(self) -> None:
        self._followed.clear()
        self._waiting.clear()
        self._end_processes()

    def _look(self, run: LiveRun, _changed: object) -> None:
        if run in self._followed and run.config is not self._followed[run] and run.devices:
            self._followed[run] = run.config
            self._drop(run)
            self._waiting.append(run)
            self._disk.do(partial(read_prediction, run.run), partial(self._found, run))

    def _found(self, run: LiveRun, line: PlanLine | None) -> None:
        self._tell(run, line)
        self._go_on()

    def _tell(self, run: LiveRun, line: PlanLine | None) -> None:
        if line is not None and run in self._waiting and _is_of(line, run):
            self._waiting.remove(run)
            run.predict(line)

    def _go_on(self) -> None:
        """Take what the form knows; ask about the next run when the form has no question open."""
        for run in list(self._waiting):
            assert run.config is not None
            self._tell(run, self._plan.line_for(run.config))
        is_free = self._process is None and not self._plan.is_asking and self._planner.is_automatic()
        if is_free and self._waiting:
            run = self._waiting[0]
            assert run.config is not None
            self._planner.look_at_trust(run.config, partial(self._predict, run), key=self, run=run.run.path)

    def _predict(self, run: LiveRun, needs_trust: bool) -> None:
        if run not in self._waiting or self._process is not None:
            return
        if needs_trust:
            self._waiting.remove(run)
            self._go_on()
            return
        config = run.config
        self._process = self._planner.predict(run.run.path, self)
        self._process.ended.connect(lambda _reason: self._answered(run, config))
        self._process.start()

    def _answered(self, run: LiveRun, config: RunConfig | None) -> None:
        self._process = None

        def found(line: PlanLine | None) -> None:
            self._tell(run, line)
            if run.config is config:  # else it was asked about an attempt that another one follows
                self._drop(run)
            self._go_on()

        self._disk.do(partial(read_prediction, run.run), found)


def _is_of(line: PlanLine, run: LiveRun) -> bool:
    """Whether a line is of what the attempt trains with, on devices like its own: a run that was resumed may
    have others."""
    are_virtual = all(map(is_virtual, line.devices))
    if run.config is None or not is_choice_of(line, run.config):
        return False
    return len(line.devices) == len(run.devices) and are_virtual == run.is_rehearsal
