"""Races: begun from the draft, shown in a tab, stopped; and the winner as what Launch would start.

The race belongs to a process of its own, which the engine leaves behind as it does a run's guard: a tab, or
the app, may be closed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.config import RunConfig
from rankdeck.config.naming import race_title
from rankdeck.run.race import RaceEntry, entry_run
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.run_tabs import RACE, RACE_KIND, RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.plan import choose
from rankdeck_app.state.race import RaceWatch


class RaceTabs(QObject):
    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs, launching: Launching) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._launching = launching
        self._watches: dict[Path, RaceWatch] = {}
        self._num_shown: Counter[Path] = Counter()
        window.editor.register_page_kind(RACE_KIND, self._make_page)
        session.runs.changed.connect(self._follow_names)
        window.closing.connect(self._close)

    def rows(self) -> list[Command]:
        title, menu = "Run: Race What Fits", "Run/1_control"
        return [Command("race.start", title, self.race_draft, ("Ctrl+K F5",), "raceable", menu)]

    def race_draft(self) -> None:
        """Race every strategy that fits on the draft's devices, asking first whether its code is trusted."""
        config, blocker = self._session.draft.config, self._launching.blocker()
        if blocker is not None:
            self._launching.refused("The race", [blocker])
        elif config is not None:
            self._launching.when_trusted(config.code_folders, partial(self._begin, config))

    def _begin(self, config: RunConfig) -> None:
        workspace = self._session.workspace
        title = race_title(config, config.selection.known_count)
        launch = self._session.engine.race(
            title, config.to_toml(), runs=workspace.runs_folder, workspace=workspace.folder
        )
        self._launching.show_starting(launch, self._tabs.open)

    def _make_page(self, page_id: str) -> Page:
        path = Path(page_id.partition(":")[2])
        if self._tabs.kind_of(path) != RACE:
            raise PageUnavailable(f"The race's folder is gone: {path}")
        from rankdeck_app.views.race.page import RacePage

        if path not in self._watches:
            self._watches[path] = RaceWatch(path, self)
        self._num_shown[path] += 1
        watch = self._watches[path]
        page = RacePage(page_id, watch, self._window.theme, closed=partial(self._leave, path))
        page.stop_asked.connect(partial(self._stop, watch))
        page.entry_opened.connect(partial(self._open_entry, watch))
        page.winner_used.connect(self.use)
        return page

    def _stop(self, watch: RaceWatch) -> None:
        call = self._session.engine.stop(watch.folder.path)
        call.answered.connect(lambda code, out, err: self._stopped(code, err))

    def _stopped(self, code: int, err: str) -> None:
        if code:
            self._window.toasts.error(err.strip() or "The race could not be stopped.")

    def _open_entry(self, watch: RaceWatch, entry: RaceEntry) -> None:
        run = entry_run(watch.folder, entry)
        if entry.state == "waiting":
            self._window.toasts.info(f"{entry.label} has not raced yet.")
        else:
            self._tabs.open(run.path)

    def use(self, entry: RaceEntry) -> None:
        """Make the winner's strategy the draft's, and say so where it is seen."""
        choose(self._session.draft, entry.predicted)
        self._window.show_activity("launch")

    def _follow_names(self) -> None:
        """A race that was renamed is called so in its tab."""
        for path, watch in self._watches.items():
            info = self._session.runs.info_of(path)
            if info is not None and watch.race is not None and watch.race.title != info.title:
                watch.look()

    def _leave(self, path: Path) -> None:
        """A tab of a race is gone; the last one of it takes its watch along."""
        self._num_shown[path] -= 1
        watch = None if self._num_shown[path] else self._watches.pop(path, None)
        if watch is not None:
            watch.close()
            watch.deleteLater()

    def _close(self) -> None:
        for watch in self._watches.values():
            watch.close()
