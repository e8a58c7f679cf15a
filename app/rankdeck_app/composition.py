"""Adds the views to the window once, after the first paint; only this module imports both window and views.

Each part of the app is registered by a line or a small function here. Factories import a view when it is
first shown. Shortly after the first paint, never before it, preload.py imports the modules that the views
share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.chart_commands import ChartCommands, Exports
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.desktop_notifications import DesktopNotifications
from rankdeck_app.controllers.device_monitor import DeviceMonitor, DoctorTab
from rankdeck_app.controllers.fixes import Fixes
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.problem_navigator import HangCommands, ProblemNavigator
from rankdeck_app.controllers.race_tabs import RaceTabs
from rankdeck_app.controllers.run_actions import COMPARE_COMMAND
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_lists import RunLists
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.scripts import InterpreterPicker, Scripts
from rankdeck_app.controllers.session import Session
from rankdeck_app.controllers.time_travel import TimeTravel
from rankdeck_app.controllers.view_commands import AppCommands
from rankdeck_app.language import tr
from rankdeck_app.preload import preload_modules
from rankdeck_app.shell.keys_page import KeysPage
from rankdeck_app.shell.notifications_page import NotificationsPage
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.panel import PanelTab
from rankdeck_app.shell.shell_commands import preview_theme
from rankdeck_app.shell.side_bar import Activity
from rankdeck_app.shell.toasts import ToastAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.views import config_page, settings_page, welcome

if TYPE_CHECKING:
    from rankdeck.run.row import RunInfo

_ALIVE_TOAST_KEY = "runs alive"
MAX_NAMED_RUNS = 3
_MAX_BUTTON_LENGTH = 32


def alive_runs_text(titles: list[str]) -> str:
    """Return a sentence such as '2 runs are still running: GPT · DP · 4 and GPT · DDP · 4.'"""
    n, more = len(titles), len(titles) - MAX_NAMED_RUNS
    if more > 0:
        return tr(
            "{n} runs are still running: {runs} and {more} more.",
            "{n} run is still running: {runs} and {more} more.",
            n,
            runs=", ".join(titles[:MAX_NAMED_RUNS]),
            more=more,
        )
    return tr(
        "{n} runs are still running: {runs} and {last}.",
        "{n} run is still running: {last}.",
        n,
        runs=", ".join(titles[:-1]),
        last=titles[-1],
    )


def shorten_title(title: str) -> str:
    """Shorten a title to fit on a button."""
    return title if len(title) <= _MAX_BUTTON_LENGTH else f"{title[: _MAX_BUTTON_LENGTH - 1].rstrip()}…"


class App:
    """The controllers of one window and their connections to the views."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self.session = Session(window.services, window)
        self.tabs = RunTabs(window, self.session)
        self.launcher = Launcher(window, self.session, self.tabs)
        self.alerts = RunAlerts(window, self.session, self.tabs)
        self.desktop_notifications = DesktopNotifications(window, self.session.runs, self.tabs)
        self.device_monitor = DeviceMonitor(window, self.session, self.tabs)
        self.scripts = Scripts(window, self.session, self.launcher)
        self.race_tabs = RaceTabs(window, self.session, self.tabs, self.launcher)
        self.interpreter_picker = InterpreterPicker(window, self.session)
        self.exports = Exports(window, self.session, self.tabs.reveal)
        self.comparisons = Comparisons(window, self.session, self.tabs, self.exports, self.launcher)
        self.actions = AppCommands(
            window, self.session, self.tabs, self.launcher, self.scripts, self.device_monitor
        )
        self.doctor_tab = DoctorTab(window, self.session, self.launcher)
        self.problem_navigator = ProblemNavigator(
            window, self.session.problems, self.actions.show_config, self.tabs.open
        )
        self.hang_commands = HangCommands(
            window, self.session, self.tabs, self.problem_navigator.open_location
        )
        self.fixes = Fixes(
            window, self.session, self.tabs, self.launcher, self.comparisons, self.alerts,
            self.device_monitor, self.doctor_tab, self.hang_commands, self.problem_navigator.open_location,
            self.actions.show_config,
        )  # fmt: skip
        self.run_lists = RunLists(window, self.session, self.tabs, self.launcher, self.scripts, self.actions)
        self.chart_commands = ChartCommands(window, self.exports)
        self.time_travel = TimeTravel(window, self.tabs)
        self._has_announced_runs = False

    def start(self) -> None:
        with self.window.commands.batch_changes():
            self._register_commands()
        self.session.problems.changed.connect(self._show_problems)
        self.session.workspace.changed.connect(self._show_workspace)
        self.session.runs.changed.connect(self._show_alive_runs)
        self.launcher.blocked.connect(self._show_blocker)
        self.window.closing.connect(self._on_window_closing)
        self.window.files_dropped.connect(self.actions.open_dropped)
        self.session.workspace.failed.connect(self.window.toasts.warn)
        self._show_workspace()
        self._show_problems()
        # After the registrations: restored tabs need their page kinds.
        self.window.start()
        self._show_first_page()
        self.session.start()
        self.session.io_thread.start()
        preload_modules(self.window)

    def _register_commands(self) -> None:
        self._register_pages()
        self._register_views()
        sources = (
            self.run_lists, self.problem_navigator, self.race_tabs, self.comparisons, self.fixes,
            self.chart_commands, self.time_travel, self.doctor_tab, self.hang_commands,
        )  # fmt: skip
        rows = [
            row
            for source in (self.actions, self.scripts, self.interpreter_picker, *sources)
            for row in source.commands()
        ]
        for provider in self.actions.providers():
            self.window.command_palette.add_provider(provider)
        self.window.commands.register(*rows, self._compare_command())

    def _compare_command(self) -> Command:
        """Return the command that compares the runs selected in a list."""

        # Set here, because comparisons are created before the run lists.
        self.comparisons.selected_runs = self.run_lists.current_selection

        def compare() -> None:
            self.comparisons.open_comparison([info.path for info in self.run_lists.selected_runs])

        return Command(COMPARE_COMMAND, phrase("Runs: Compare"), compare, when="runsComparable")

    # Views

    def _register_pages(self) -> None:
        window, session = self.window, self.session
        register = window.editor.register_page_kind
        register("keys", lambda page_id: KeysPage(page_id, window), tr("Keyboard Shortcuts"))
        register("notifications", lambda page_id: NotificationsPage(page_id, window), tr("Notifications"))
        register("welcome", lambda _id: self._welcome_page(), tr("Welcome"))
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
        activity(Activity("runs", runs, "history", self.run_lists.make_side_view, 80, ("Ctrl+Shift+R",)))
        activity(Activity("compare", compare, "git-compare", self._compare_view, 70, ("Ctrl+Shift+C",)))
        activity(Activity("strategies", strategies, "circuit-board", self._strategies_view, 60))
        panel(PanelTab("problems", problems, self._problems_view, None, 90, ("Ctrl+Shift+M",)))
        panel(PanelTab("output", output, self._output_view, self._output_tools, 80, ("Ctrl+Shift+U",)))

    def _launch_view(self) -> QWidget:
        from rankdeck_app.views.launch.side_bar import LaunchView

        window, session = self.window, self.session
        # A function, because the user may change the keys.
        keys = partial(window.keymap.text_for, "run.launch")
        view = LaunchView(
            window.theme, session.draft, session.script, session.scripts, session.device_choice,
            session.hosts, session.presets, session.plan, keys,
        )  # fmt: skip
        view.footer.estimate.opened.connect(self.actions.show_plan)
        view.footer.fix_requested.connect(session.draft.apply_fix)
        view.footer.location_requested.connect(self._show_blocker)
        view.launch_requested.connect(self.actions.launch)
        view.preset_picked.connect(self.actions.use_preset)
        view.strategy.list.details_requested.connect(self.actions.explain_strategy)
        view.devices.details_requested.connect(self.device_monitor.show_host)
        view.script.browse_requested.connect(self.scripts.browse)
        view.script.interpreter_requested.connect(self.interpreter_picker.pick)
        view.script.save_requested.connect(self.scripts.ask_entry_name)
        view.script.entry_picked.connect(self.scripts.load_entry)
        view.script.remove_requested.connect(self.scripts.remove_entry)

        def show_state() -> None:
            view.show_state(self.launcher.blocker(), self.launcher.num_pending, self.scripts.launch_text())

        self.launcher.changed.connect(show_state)
        session.scripts.changed.connect(show_state)
        window.keymap.changed.connect(show_state)
        self.tabs.metrics_changed.connect(lambda: view.devices.set_usages(*self.tabs.usages()))
        show_state()
        view.devices.set_usages(*self.tabs.usages())
        return view

    def _compare_view(self) -> QWidget:
        from rankdeck_app.views.compare.side_bar import CompareView

        comparisons = self.comparisons
        acts: dict[str, Callable[..., object]] = {
            "add": comparisons.add,
            "open": comparisons.open_comparison,
            "pick": comparisons.pick,
        }
        view = CompareView(self.window.theme, self.session.runs, comparisons.recent, acts)
        comparisons.current_changed.connect(view.set_comparing)
        view.set_comparing(comparisons.current)
        return view

    def _show_blocker(self, problem: Problem) -> None:
        """Show where the user can fix the problem that blocks a launch: in the form if it has a field for the
        problem, or else in the configuration."""
        from rankdeck_app.views.launch.side_bar import LaunchView

        view = self.window.show_activity("launch")
        if not (isinstance(view, LaunchView) and view.reveal(problem)):
            self.actions.show_config(problem.line)

    def _strategies_view(self) -> QWidget:
        from rankdeck_app.widgets.strategy_list import StrategyList

        view = StrategyList(self.window.theme, two_lines=True)
        view.itemClicked.connect(lambda item: self.actions.explain_strategy(StrategyList.get_name(item)))
        view.details_requested.connect(self.actions.explain_strategy)
        return view

    def _problems_view(self) -> QWidget:
        from rankdeck_app.views.problems import ProblemsView

        view = ProblemsView(
            self.window.theme,
            self.session.problems,
            self.fixes.actions_of,
            self.problem_navigator.open_location,
            self.fixes.preview_fix,
        )
        self.fixes.changed.connect(view.refresh)
        return view

    def _output_view(self) -> QWidget:
        from rankdeck_app.views.output import OutputView

        view = OutputView(self.window.theme)
        self.tabs.current_changed.connect(view.set_run)
        self.window.closing.connect(view.close_tail)
        view.set_run(self.tabs.current)
        self.time_travel.moved.connect(view.set_until)
        view.set_until(self.time_travel.viewed_time)
        return view

    def _output_tools(self, view: QWidget) -> QWidget:
        from rankdeck_app.views.output import OutputTools, OutputView

        assert isinstance(view, OutputView)
        return OutputTools(self.window.theme, view)

    def _settings_page(self) -> Page:
        window = self.window
        previews = {"theme.name": partial(preview_theme, window)}
        return settings_page.SettingsPage(window.theme, window.settings, self.session.trust, previews)

    def _welcome_page(self) -> Page:
        window, session = self.window, self.session

        def hint(command_id: str) -> tuple[str, str]:
            is_registered = command_id in window.commands
            label = window.commands[command_id].label if is_registered else ""
            return label, window.keymap.text_for(command_id)

        page = welcome.WelcomePage(window.theme, session.runs, session.gpus, session.presets, hint)
        page.launch_suggested.connect(self.launcher.launch_suggestion)
        page.preset_picked.connect(self.actions.use_preset)
        page.run_opened.connect(self.tabs.open)
        page.script_requested.connect(self.scripts.pick)
        return page

    def _strategy_page(self, page_id: str) -> Page:
        from rankdeck_app.views.strategy.page import StrategyPage

        page = StrategyPage(page_id, self.window.theme, self.session.step_movement)
        page.chosen.connect(self.actions.choose_strategy)
        page.trust_requested.connect(lambda: self.launcher.ask_trust_for_draft(page.step_movement.plan_now))
        return page

    def _plan_page(self) -> Page:
        from rankdeck_app.views.plan.page import PlanPage

        session = self.session
        page = PlanPage(
            self.window.theme,
            session.draft,
            session.plan,
            session.target_plan,
            session.draft_race,
            self.window.settings,
        )
        page.trust_requested.connect(lambda: self.launcher.ask_trust_for_draft(page.plan_again))
        page.race_requested.connect(self.race_tabs.race_draft)
        page.race_opened.connect(self.tabs.open)
        page.winner_used.connect(self.race_tabs.use_winner)
        return page

    # Parts of the frame

    def _show_problems(self) -> None:
        problems = self.session.problems
        errors, warnings = problems.num_errors, problems.num_warnings
        self.window.panel.set_badge("problems", errors + warnings, "error" if errors else "normal")
        item, show = self.window.status_bar.item, "view.panel.problems"
        tooltip = tr("{n} errors", "{n} error", errors)
        item("errors", "left", 80).show_text(str(errors), "error", tooltip=tooltip, command=show)
        tooltip = tr("{n} warnings", "{n} warning", warnings)
        item("warnings", "left", 79).show_text(str(warnings), "warning", tooltip=tooltip, command=show)

    def _show_workspace(self) -> None:
        self.window.title_bar.set_command_center_text(self.session.workspace.name)

    def _show_alive_runs(self) -> None:
        """Show the number of live runs on the Runs icon. On the first call, also name them in a toast if any
        of them is not in the active tab."""
        alive = self.session.runs.alive_runs
        self.window.activity_bar.get_button("runs").set_badge(len(alive))
        active = self.tabs.active()
        # The active tab's run needs no announcement.
        waiting = [info for info in alive if active is None or active.run_dir.path != info.path]
        if self._has_announced_runs:
            if not waiting:
                self.window.toasts.dismiss(_ALIVE_TOAST_KEY)
            return
        self._has_announced_runs = True
        if waiting:
            text, actions = alive_runs_text([info.title for info in alive]), self._open_buttons(alive)
            self.window.toasts.show(text, actions=actions, key=_ALIVE_TOAST_KEY)

    def _open_buttons(self, infos: list[RunInfo]) -> list[ToastAction]:
        if len(infos) > MAX_NAMED_RUNS:
            return [(tr("Show Runs"), partial(self.window.show_activity, "runs"))]
        return [
            (tr("Open {run}", run=shorten_title(info.title)), partial(self.tabs.open, info.path))
            for info in infos
        ]

    def _show_first_page(self) -> None:
        path = self.window.services.open_path
        if path is not None:
            self.tabs.open(path)
        elif not self.window.editor.pages():
            self.window.editor.open(welcome.PAGE_ID)

    def _on_window_closing(self) -> None:
        # A requested launch must reach its guard first; the disk and the engine may take seconds. The io
        # thread comes first, because a launch asks it for consent and would otherwise start in a closed app.
        self.window.hide()
        self.session.io_thread.wait_for_done()
        self.run_lists.close()
        self.comparisons.close()
        self.tabs.close()
        self.session.close()
        self.session.io_thread.close()


def compose(window: MainWindow) -> App:
    """Register all controllers and views with the window, and start the app."""
    app = App(window)
    app.start()
    return app
