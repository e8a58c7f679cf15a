"""Why a run ran out of memory, as its page shows it: what the run told, and the planner's ways out.

The facts are made anew when the run tells more; the planner is asked once, by `rankdeck why`, which keeps
what it finds in the run's directory.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from rankdeck.diagnose.why import Why, told
from rankdeck.run.batch import Changed
from rankdeck.run.plan_lines import PlanLine
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.plan_process import Asker, Planner

_TELLING = Changed.STATE | Changed.PROBLEMS | Changed.MEMORY


class MemoryWhy(Asker):
    """`changed`: the facts, the ways out or `state` (what the planner is busy with, or why it is not) are
    new."""

    changed = Signal()

    def __init__(self, run: LiveRun, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run = run
        self.why: Why | None = None
        self.state = ""
        self._planner = planner
        self._lines: list[PlanLine] = []
        self._is_stale, self._was_asked = True, False
        run.changed.connect(self._note)

    def _note(self, changed: Changed) -> None:
        self._is_stale = self._is_stale or bool(changed & _TELLING)

    def look(self) -> None:
        """Take what is new; the planner is asked once it is known that memory ran out."""
        self.run.drain()
        if not self._is_stale or self.run.outcome is None:
            return
        self._is_stale = False
        capacity = None if self.run.config is None else self.run.config.capacity_bytes
        self.why = told(self.run.fold, capacity)
        if self.why is not None and not self._was_asked and self.run.config is not None:
            self.state = tr("Looking for ways out: every strategy is planned…")
            self._planner.look_at_trust(self.run.config, self._ask, key=self, run=self.run.run.path)
        self._tell()

    def _ask(self, needs_trust: bool) -> None:
        """Ask the planner, unless that would run code that nobody trusts."""
        if self._was_asked:
            return
        if needs_trust:
            self.state = tr("Ways out are planned once the run's own code is trusted: Resume asks for it.")
            self._tell()
            return
        self._was_asked = True
        self._process = self._planner.ways_out(self.run.run.path, self)
        self._process.line_came.connect(self._take)
        self._process.ended.connect(self._ended)
        self._process.start()

    def close(self) -> None:
        self._was_asked = True
        self._end_processes()

    def _take(self, line: PlanLine) -> None:
        self._lines.append(line)
        self._tell()

    def _ended(self, reason: str) -> None:
        self._process = None
        self.state = reason
        self._tell()

    def _tell(self) -> None:
        if self.why is not None and self._lines:
            self.why = self.why.with_ways(self._lines)
        self.changed.emit()
