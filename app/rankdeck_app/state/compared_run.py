"""One run of a comparison as it goes on, or one of its attempts alone: a live run with its column of figures.

Its tail reads the background (configuration, versions, prediction) before the first event: the window never
waits for a disk. Figures are made anew at most once a second, and seldom where that takes long.
"""

from __future__ import annotations

import time
from dataclasses import replace

from PySide6.QtCore import QObject

from rankdeck.compare.background import Background, read_background
from rankdeck.compare.curves import StepAxis, step_axis
from rankdeck.compare.figures import ComparedRun, figures_of, outcome_of
from rankdeck.compare.naming import RunAt
from rankdeck.compare.reading import reader_of
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_tail import RunTail

_LEAST_EVERY_S = 1.0
_LARGEST_SHARE = 0.005
"""Of the window's time that may go into making figures."""


class _Tail(RunTail):
    def __init__(self, at: RunAt) -> None:
        super().__init__(at.run)
        self._at = at
        self._reader = reader_of(at)
        self.background: Background | None = None

    def run(self) -> None:
        self.background = read_background(self._at)
        super().run()


class FollowedRun(LiveRun):
    """`figures` is None until the run's files have been read once: before, nobody knows how it ended."""

    def __init__(self, at: RunAt, parent: QObject | None = None) -> None:
        super().__init__(at.path, parent)
        self.at = at
        self._tail = self._background_tail = _Tail(at)
        self.figures: ComparedRun | None = None
        self._is_stale = True
        self._due_s = 0.0
        self._axes: dict[str, tuple[object, StepAxis]] = {}
        self.changed.connect(self._note)
        self.outcome_changed.connect(self._hurry)

    def _note(self, _changed: object) -> None:
        self._is_stale = True

    def _hurry(self, _outcome: str) -> None:
        self._due_s = 0.0

    def make_figures(self) -> bool:
        """Make them anew where something changed and it is time to; whether that was done."""
        now_s, background = time.monotonic(), self._background_tail.background
        if not self._is_stale or background is None or self.outcome is None or now_s < self._due_s:
            return False
        self._is_stale = False
        background = replace(background, title=self.title if self._title else background.title)
        outcome = outcome_of(self.at, self.fold, background, self.outcome)
        self.figures = figures_of(self.at, self.fold, background, outcome)
        self._due_s = now_s + max(_LEAST_EVERY_S, (time.monotonic() - now_s) / _LARGEST_SHARE)
        return True

    def axis(self, by: str) -> StepAxis:
        """Where its steps lie (curves.BY), made anew where there are more."""
        key = [(number, len(one.table)) for number, one in self.fold.attempts.items()]
        known = self._axes.get(by)
        if known is None or known[0] != key:
            known = self._axes[by] = (key, step_axis(self.fold, by))
        return known[1]

    @property
    def other_attempts(self) -> list[int]:
        """Those that have told something, where there are several."""
        numbers = list(self.fold.attempts)
        return numbers if len(numbers) > 1 else []
