"""Pages that say why runs ran out of memory, opened from a problem, a banner or the palette, and saved.

A page follows its run as a tab does, and the run is read for as long as either is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.cures import Cures
from rankdeck_app.controllers.run_tabs import RUN, SCRIPT, RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.shell.window import MainWindow

if TYPE_CHECKING:
    from rankdeck_app.state.memory_why import MemoryWhy

PAGE_KIND = "why"
OpenCode = Callable[[Path, int, str], object]


class MemoryWhys(QObject):
    """`open_code` shows a line of a file; it is set once whoever does that is there."""

    def __init__(
        self, window: MainWindow, session: Session, tabs: RunTabs, cures: Cures, comparisons: Comparisons
    ) -> None:
        super().__init__(window)
        self._window, self._session, self._tabs = window, session, tabs
        self._cures, self._comparisons = cures, comparisons
        self.open_code: OpenCode | None = None
        self._known: dict[Path, MemoryWhy] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        window.closing.connect(self._close)

    def rows(self) -> list[Command]:
        return [
            Command(
                "run.why",
                phrase("Run: Why Out of Memory"),
                self._open_active,
                (),
                "activeRunOutOfMemory",
                "Run/3_this",
            )
        ]

    def open(self, path: Path) -> None:
        self._window.editor.open(f"{PAGE_KIND}:{path}")

    def _open_active(self) -> None:
        run = self._tabs.active()
        if run is not None:
            self.open(run.run.path)

    def _make_page(self, wanted_id: str) -> Page:
        path = Path(wanted_id.partition(":")[2])
        if self._tabs.kind_of(path) not in (RUN, SCRIPT):
            raise PageUnavailable(tr("The run's folder is gone: {folder}", folder=path))
        from rankdeck_app.state.memory_why import MemoryWhy
        from rankdeck_app.views.memory_why import MemoryWhyPage

        run = self._tabs.open_runs.acquire(path)
        why = self._known[path] = MemoryWhy(run, self._session.planner, self)
        acts: Mapping[str, Callable[..., Any]] = {
            "label": partial(self._cures.label, run),
            "take": partial(self._cures.take, path),
            "open_code": self._show_code,
            "save": partial(self._comparisons.ask_report, path),
            "closed": partial(self._leave, path),
        }
        return MemoryWhyPage(wanted_id, self._window.theme, self._window.clock, why, acts)

    def _show_code(self, file: Path, line: int, said: str) -> None:
        if self.open_code is not None:
            self.open_code(file, line, said)

    def _leave(self, path: Path) -> None:
        why = self._known.pop(path, None)
        if why is not None:
            why.close()
            why.deleteLater()
            self._tabs.open_runs.release(path)

    def _close(self) -> None:
        for why in self._known.values():
            why.close()
