"""The one place that knows both the frame and the views: called once, after the first paint.

Each part of the app is plugged in by a line or a small function here. Views are imported inside the
factories, so that a view costs nothing until somebody looks at it; what they all need comes in a moment after
the window is there (ahead.py), and never before the first paint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck_app.ahead import import_ahead
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.chart_commands import ChartCommands, Exports
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.desktop_notices import DesktopNotices
from rankdeck_app.controllers.device_watch import DeviceWatch, DoctorTab
from rankdeck_app.controllers.fixes import Fixes
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.places import Places, Standstills
from rankdeck_app.controllers.race_tabs import RaceTabs
from rankdeck_app.controllers.run_acts import COMPARE
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_lists import RunLists
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.scripts import InterpreterPicker, Scripts
from rankdeck_app.controllers.session import Session
from rankdeck_app.controllers.time_travel import TimeTravel
from rankdeck_app.controllers.view_commands import AppCommands
from rankdeck_app.language import tr
from rankdeck_app.shell.keys_page import KeysPage
from rankdeck_app.shell.notifications_page import NotificationsPage
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.panel import PanelTab
from rankdeck_app.shell.shell_commands import show_theme
from rankdeck_app.shell.side_bar import Activity
from rankdeck_app.shell.toasts import Action
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.views import config_page, settings_page, welcome

if TYPE_CHECKING:
    from rankdeck.run.row import RunInfo

_ALIVE = "runs alive"
MAX_NAMED = 3
_MOST_ON_BUTTON = 32


def alive_in_words(titles: list[str]) -> str:
    """'2 runs are alive: GPT · DP · 4 and GPT · DDP · 4.'"""
    n, more = len(titles), len(titles) - MAX_NAMED
    if more > 0:
        return tr(
            "{n} runs are alive: {runs} and {more} more.",
            "{n} run is alive: {runs} and {more} more.",
            n,
            runs=", ".join(titles[:MAX_NAMED]),
            more=more,
        )
    return tr(
        "{n} runs are alive: {runs} and {last}.",
        "{n} run is alive: {last}.",
        n,
        runs=", ".join(titles[:-1]),
        last=titles[-1],
    )


def shortened(title: str) -> str:
    """What of a title there is room for on a button."""
    return title if len(title) <= _MOST_ON_BUTTON else f"{title[: _MOST_ON_BUTTON - 1].rstrip()}…"


class App:
    """The controllers of one window, and how they meet the views."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self.session = Session(window.services, window)
        self.tabs = RunTabs(window, self.session)
        self.launching = Launching(window, self.session, self.tabs)
        self.alerts = RunAlerts(window, self.session, self.tabs)
        self.notices = DesktopNotices(window, self.session.runs, self.tabs)
        self.watch = DeviceWatch(window, self.session, self.tabs)
        self.scripts = Scripts(window, self.session, self.launching)
        self.races = RaceTabs(window, self.session, self.tabs, self.launching)
        self.picker = InterpreterPicker(window, self.session)
        self.exports = Exports(window, self.session, self.tabs.reveal)
        self.comparisons = Comparisons(window, self.session, self.tabs, self.exports, self.launching)
        self.actions = AppCommands(window, self.session, self.tabs, self.launching, self.scripts, self.watch)
        self.doctor = DoctorTab(window, self.session, self.launching)
        self.places = Places(window, self.session.problems, self.actions.show_config, self.tabs.open)
        self.standstills = Standstills(window, self.session, self.tabs, self.places.open)
        self.fixes = Fixes(
            window, self.session, self.tabs, self.launching, self.comparisons, self.alerts, self.watch,
            self.doctor, self.standstills, self.places.open, self.actions.show_config,
        )  # fmt: skip
        self.lists = RunLists(window, self.session, self.tabs, self.launching, self.scripts, self.actions)
        self.charts = ChartCommands(window, self.exports)
        self.times = TimeTravel(window, self.tabs)
        self._greeted = False

    def start(self) -> None:
        with self.window.commands.together():
            self._register_all()
        self.session.problems.changed.connect(self._show_problems)
        self.session.workspace.changed.connect(self._show_workspace)
        self.session.runs.changed.connect(self._show_alive)
        self.launching.blocked.connect(self._show_blocker)
        self.window.closing.connect(self._close)
        self.window.files_dropped.connect(self.actions.open_dropped)
        self.session.workspace.failed.connect(self.window.toasts.warn)
        self._show_workspace()
        self._show_problems()
        self.window.start()
        self._show_first_page()
        self.session.start()
        self.session.disk.start()
        import_ahead(self.window)

    def _register_all(self) -> None:
        self._register_pages()
        self._register_views()
        found = (
            self.lists, self.places, self.races, self.comparisons, self.fixes, self.charts,
            self.times, self.doctor, self.standstills,
        )  # fmt: skip
        rows = [row for source in (self.actions, self.scripts, self.picker, *found) for row in source.rows()]
        for provider in self.actions.providers():
            self.window.palette_box.add_provider(provider)
        self.window.commands.register(*rows, self._compare_row())

    def _compare_row(self) -> Command:
        """Where a list of runs and comparisons meet."""

        self.comparisons.selected_runs = self.lists.runs_in_use

        def compare() -> None:
            self.comparisons.open_compare([info.path for info in self.lists.selected_runs])

        return Command(COMPARE, phrase("Runs: Compare"), compare, when="runsComparable")

    # Views

    def _register_pages(self) -> None:
        window, session = self.window, self.session
        register = window.editor.register_page_kind
        register("keys", lambda page_id: KeysPage(page_id, window), tr("Keyboard Shortcuts"))
        register("notifications", lambda page_id: NotificationsPage(page_id, window), tr("Notifications"))
        register("welcome", lambda _id: self._welcome(), tr("Welcome"))
        register("config", lambda _id: config_page.ConfigPage(window.theme, session.draft))
        register("settings", lambda _id: self._settings_page(), tr("Settings"))
        register("strategy", self._strategy_page)
        register("plan", lambda _id: self._plan_page(), tr("VRAM Plan"))

    def _register_views(self) -> None:
        activity, panel = self.window.add_activity, self.window.add_panel_tab
        launch, runs = phrase("Run Configuration"), phrase("Runs")
        compare, strategies = phrase("Compare"), phrase("Strategies")
        problems, output = phrase("Problems"), phrase("Output")
        activity(Activity("launch", launch, "rocket", self._launch_view, 90, ("Ctrl+Shift+L",)))
        activity(Activity("runs", runs, "history", self.lists.side_view, 80, ("Ctrl+Shift+R",)))
        activity(Activity("compare", compare, "git-compare", self._compare_view, 70, ("Ctrl+Shift+C",)))
        activity(Activity("strategies", strategies, "circuit-board", self._strategies_view, 60))
        panel(PanelTab("problems", problems, self._problems_view, None, 90, ("Ctrl+Shift+M",)))
        panel(PanelTab("output", output, self._output_view, self._output_tools, 80, ("Ctrl+Shift+U",)))

    def _launch_view(self) -> QWidget:
        from rankdeck_app.views.launch.side_bar import LaunchView

        window, session = self.window, self.session
        keys = partial(window.keymap.text_for, "run.launch")
        view = LaunchView(
            window.theme, session.draft, session.script, session.scripts, session.choice, session.hosts,
            session.presets, session.plan, keys,
        )  # fmt: skip
        view.footer.estimate.opened.connect(self.actions.show_plan)
        view.footer.fix_taken.connect(session.draft.apply_fix)
        view.footer.asked_where.connect(self._show_blocker)
        view.launch_requested.connect(self.actions.launch)
        view.preset_picked.connect(self.actions.use_preset)
        view.strategy.list.explained.connect(self.actions.explain_strategy)
        view.devices.opened.connect(self.watch.show_host)
        view.script.browse_asked.connect(self.scripts.browse)
        view.script.interpreter_asked.connect(self.picker.pick)
        view.script.save_asked.connect(self.scripts.ask_entry_name)
        view.script.entry_picked.connect(self.scripts.fill)
        view.script.remove_asked.connect(self.scripts.remove_entry)

        def show_state() -> None:
            view.show_state(self.launching.blocker(), self.launching.num_pending, self.scripts.in_words())

        self.launching.changed.connect(show_state)
        session.scripts.changed.connect(show_state)
        window.keymap.changed.connect(show_state)
        self.tabs.figures_changed.connect(lambda: view.devices.set_usages(*self.tabs.usages()))
        show_state()
        view.devices.set_usages(*self.tabs.usages())
        return view

    def _compare_view(self) -> QWidget:
        from rankdeck_app.views.compare.side_bar import CompareView

        comparisons = self.comparisons
        acts: dict[str, Callable[..., object]] = {
            "add": comparisons.add,
            "open": comparisons.open_compare,
            "pick": comparisons.pick,
        }
        view = CompareView(self.window.theme, self.session.runs, comparisons.recent, acts)
        comparisons.current_changed.connect(view.follow)
        view.follow(comparisons.current)
        return view

    def _show_blocker(self, problem: Problem) -> None:
        """Where what stands in the way can be fixed: its field, else its line."""
        from rankdeck_app.views.launch.side_bar import LaunchView

        view = self.window.show_activity("launch")
        if not (isinstance(view, LaunchView) and view.reveal(problem)):
            self.actions.show_config(problem.line)

    def _strategies_view(self) -> QWidget:
        from rankdeck_app.widgets.strategy_list import StrategyList

        view = StrategyList(self.window.theme, two_lines=True)
        view.itemClicked.connect(lambda item: self.actions.explain_strategy(StrategyList.name_of(item)))
        view.explained.connect(self.actions.explain_strategy)
        return view

    def _problems_view(self) -> QWidget:
        from rankdeck_app.views.problems import ProblemsView

        view = ProblemsView(
            self.window.theme,
            self.session.problems,
            self.fixes.actions_of,
            self.places.open,
            self.fixes.look_at,
        )
        self.fixes.changed.connect(view.refresh)
        return view

    def _output_view(self) -> QWidget:
        from rankdeck_app.views.output import OutputView

        view = OutputView(self.window.theme)
        self.tabs.current_changed.connect(view.follow)
        self.window.closing.connect(view.close_tail)
        view.follow(self.tabs.current)
        self.times.moved.connect(view.set_until)
        view.set_until(self.times.moment)
        return view

    def _output_tools(self, view: QWidget) -> QWidget:
        from rankdeck_app.views.output import OutputTools, OutputView

        assert isinstance(view, OutputView)
        return OutputTools(self.window.theme, view)

    def _settings_page(self) -> Page:
        window = self.window
        previews = {"theme.name": partial(show_theme, window)}
        return settings_page.SettingsPage(window.theme, window.settings, self.session.trust, previews)

    def _welcome(self) -> Page:
        window, session = self.window, self.session

        def hint(command_id: str) -> tuple[str, str]:
            known = command_id in window.commands
            label = window.commands[command_id].label if known else ""
            return label, window.keymap.text_for(command_id)

        page = welcome.WelcomePage(window.theme, session.runs, session.gpus, session.presets, hint)
        page.launch_suggested.connect(self.launching.launch_suggestion)
        page.preset_picked.connect(self.actions.use_preset)
        page.run_opened.connect(self.tabs.open)
        page.script_asked.connect(self.scripts.pick)
        return page

    def _strategy_page(self, page_id: str) -> Page:
        from rankdeck_app.views.strategy.page import StrategyPage

        page = StrategyPage(page_id, self.window.theme, self.session.step_of)
        page.chosen.connect(self.actions.choose_strategy)
        page.trust_asked.connect(lambda: self.launching.ask_trust_of_draft(page.step.ask))
        return page

    def _plan_page(self) -> Page:
        from rankdeck_app.views.plan.page import PlanPage

        session = self.session
        page = PlanPage(
            self.window.theme,
            session.draft,
            session.plan,
            session.elsewhere,
            session.raced,
            self.window.settings,
        )
        page.trust_asked.connect(lambda: self.launching.ask_trust_of_draft(page.ask_again))
        page.race_asked.connect(self.races.race_draft)
        page.race_opened.connect(self.tabs.open)
        page.winner_used.connect(self.races.use)
        return page

    # What the frame shows

    def _show_problems(self) -> None:
        problems = self.session.problems
        errors, warnings = problems.num_errors, problems.num_warnings
        self.window.panel.set_badge("problems", errors + warnings, "error" if errors else "normal")
        item, show = self.window.status.item, "view.panel.problems"
        told = tr("{n} errors", "{n} error", errors)
        item("errors", "left", 80).show_text(str(errors), "error", tooltip=told, command=show)
        told = tr("{n} warnings", "{n} warning", warnings)
        item("warnings", "left", 79).show_text(str(warnings), "warning", tooltip=told, command=show)

    def _show_workspace(self) -> None:
        self.window.title_bar.set_center_text(self.session.workspace.name)

    def _show_alive(self) -> None:
        """A number on the Runs symbol; at the first look, runs that are alive are named, each with its
        button.
        """
        alive = self.session.runs.alive
        self.window.activity_bar.button("runs").set_badge(len(alive))
        active = self.tabs.active()
        waiting = [info for info in alive if active is None or active.run.path != info.path]
        if self._greeted:
            if not waiting:
                self.window.toasts.withdraw(_ALIVE)
            return
        self._greeted = True
        if waiting:
            words, actions = alive_in_words([info.title for info in alive]), self._open_buttons(alive)
            self.window.toasts.show(words, actions=actions, key=_ALIVE)

    def _open_buttons(self, infos: list[RunInfo]) -> list[Action]:
        if len(infos) > MAX_NAMED:
            return [(tr("Show Runs"), partial(self.window.show_activity, "runs"))]
        return [
            (tr("Open {run}", run=shortened(info.title)), partial(self.tabs.open, info.path))
            for info in infos
        ]

    def _show_first_page(self) -> None:
        wanted = self.window.services.open_path
        if wanted is not None:
            self.tabs.open(wanted)
        elif not self.window.editor.pages():
            self.window.editor.open(welcome.PAGE_ID)

    def _close(self) -> None:
        # A launch that was asked for reaches its guard first, which may take the disk and the engine seconds.
        self.window.hide()
        self.session.disk.settle()
        self.lists.close()
        self.comparisons.close()
        self.tabs.close()
        self.session.close()
        self.session.disk.close()


def compose(window: MainWindow) -> App:
    """Register everything, then let the window show it."""
    app = App(window)
    app.start()
    return app
