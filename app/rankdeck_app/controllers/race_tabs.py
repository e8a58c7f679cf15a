"""Starts races from the draft, shows them in tabs, stops them, and applies the winner to the draft.

A race runs in its own process, which the engine detaches from the app, like the guard process of a run. The
user can therefore close the tab or the app during the race.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.base.files import read_text
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig, from_text
from rankdeck.config.naming import race_title
from rankdeck.run.race import RUNNING, RaceEntry, entry_run
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.run_tabs import RACE, RACE_KIND, RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.draft_race import RaceMonitor
from rankdeck_app.state.plan import choose_line


class RaceTabs(QObject):
    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs, launching: Launcher) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._launcher = launching
        self._watches: dict[Path, RaceMonitor] = {}
        window.editor.register_page_kind(RACE_KIND, self._make_page)
        window.editor.active_page_changed.connect(self._update_context)
        session.runs.changed.connect(self._update_titles)
        window.closing.connect(self._close)

    def commands(self) -> list[Command]:
        title, stop, menu = phrase("Run: Race Strategies That Fit"), phrase("Run: Stop Race"), "Run/1_control"
        return [
            Command("race.start", title, self.race_draft, ("Ctrl+K F5",), "raceable", menu),
            Command("race.stop", stop, self._stop_active, ("Shift+F5",), "activeRaceAlive", menu),
        ]

    def race_draft(self) -> None:
        """Race all strategies that fit on the draft's devices; ask for trust in the draft's code if
        needed."""
        # The plan may refuse the chosen strategy while others can still be raced.
        config, blocker = self._session.draft.config, self._launcher.form_blocker()
        if blocker is not None:
            self._launcher.show_refusal(tr("The race"), [blocker])
        elif config is not None:
            self._launcher.when_trusted(config.code_folders, partial(self._start, config))

    def _start(self, config: RunConfig, options: Sequence[str] = ()) -> None:
        workspace = self._session.workspace
        title = race_title(config, self._session.hosts.count_devices(config))
        launch = self._session.engine.race(
            title, config.to_toml(), runs=workspace.runs_folder, workspace=workspace.folder, options=options
        )
        # The result is a race and not a run, so it is opened here.
        self._launcher.show_starting_page(launch, self._tabs.open)

    def _race_again(self, watch: RaceMonitor) -> None:
        """Repeat a race with the same strategies and number of steps."""
        race, folder = watch.race, watch.folder
        if race is None:
            return
        names = ",".join(dict.fromkeys(entry.strategy for entry in race.unique_entries))
        options = ("--only", names, "--steps", str(race.steps))

        def start(config: RunConfig) -> None:
            self._launcher.when_trusted(config.code_folders, partial(self._start, config, options))

        self._session.io_thread.submit(
            lambda: from_text(read_text(folder.request_file), folder=folder.path),
            start,
            lambda error: self._window.toasts.error(tr("The race could not be started: {why}", why=error)),
        )

    def _make_page(self, page_id: str) -> Page:
        path = Path(page_id.partition(":")[2])
        if self._tabs.kind_of(path) != RACE:
            raise PageUnavailableError(tr("The race's folder no longer exists: {folder}", folder=path))
        from rankdeck_app.views.race.page import RacePage

        watch = self._watches[path] = RaceMonitor(path, self)
        watch.changed.connect(self._update_context)
        page = RacePage(page_id, watch, self._window.theme, on_closed=partial(self._on_page_closed, watch))
        page.again_requested.connect(partial(self._race_again, watch))
        page.stop_requested.connect(partial(self._stop, watch))
        page.entry_opened.connect(partial(self._open_entry, watch))
        page.winner_used.connect(self.use_winner)
        return page

    def _update_context(self, _page: object = None) -> None:
        page = self._window.editor.active_page()
        kind, _, path = ("" if page is None else page.page_id).partition(":")
        watch = self._watches.get(Path(path)) if kind == RACE_KIND else None
        race = None if watch is None else watch.race
        self._window.context.set("activeRaceAlive", race is not None and race.outcome == RUNNING)

    def _stop_active(self) -> None:
        from rankdeck_app.views.race.page import RacePage

        page = self._window.editor.active_page()
        if isinstance(page, RacePage):
            page.stop()

    def _stop(self, watch: RaceMonitor) -> None:
        # No toast on success: the page shows that the race is stopping, and its monitor shows the end.
        call = self._session.engine.stop(watch.folder.path)
        self._tabs.report_answer(call, tr("The race could not be stopped."))

    def _open_entry(self, watch: RaceMonitor, entry: RaceEntry) -> None:
        run = entry_run(watch.folder, entry)
        if entry.state == "waiting":
            self._window.toasts.info(tr("{entry} has not started yet.", entry=entry.label))
        else:
            self._tabs.open(run.path)

    def use_winner(self, entry: RaceEntry) -> None:
        """Set the draft's strategy to the winner's and show the launch view."""
        choose_line(self._session.draft, entry.predicted)
        self._window.show_activity("launch")

    def _update_titles(self) -> None:
        """Update the tab titles of renamed races."""
        for path, watch in self._watches.items():
            info = self._session.runs.find_info(path)
            if info is not None and watch.race is not None and watch.race.title != info.title:
                watch.poll()

    def _on_page_closed(self, watch: RaceMonitor) -> None:
        """Close the monitor of a closed tab; a newer tab of the same race keeps its own monitor."""
        if self._watches.get(watch.folder.path) is watch:
            del self._watches[watch.folder.path]
        watch.close()
        watch.deleteLater()

    def _close(self) -> None:
        for watch in self._watches.values():
            watch.close()
