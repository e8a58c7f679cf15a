"""Launches and resumes runs: checks for blockers, asks for trust, starts the engine and opens the tab.

A launch never stops another run, and user code runs only after its folder is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.config import RunConfig, load
from rankdeck.config.naming import title_of
from rankdeck.remote.ssh import is_local_host
from rankdeck.run_dir import RunDir
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.shell.toasts import OneTimeAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.device_choice import devices_path, find_gpu_problem
from rankdeck_app.state.draft import DraftSnapshot
from rankdeck_app.state.engine_process import NOT_SHOWN_CODE, Launch
from rankdeck_app.state.plan_text import strategy_name
from rankdeck_app.state.problem_list import DRAFT_OWNER, LAUNCH_OWNER, SCRIPT_OWNER
from rankdeck_app.state.script_draft import NO_DEVICES_CHOSEN
from rankdeck_app.views.launch.trust_dialog import TrustDialog
from rankdeck_app.views.starting import PAGE_KIND, StartingPage
from rankdeck_app.views.welcome import Suggestion

_RESUME_PREFIX = "resume"


class Launcher(QObject):
    """Launches runs and tracks pending launches.

    `changed` is emitted when the result of `blocker` or the pending launches have changed. `blocked` carries
    the Problem that prevents a requested launch.
    """

    changed = Signal()
    blocked = Signal(object)

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._num_launches = 0
        self._pending: dict[str, Launch] = {}
        self.trust_dialog: TrustDialog | None = None
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        session.device_choice.changed.connect(self._on_draft_changed)
        session.hosts.devices_changed.connect(self._on_draft_changed)
        session.draft.text_discarded.connect(self._offer_undo)
        session.plan.changed.connect(self._on_plan_changed)
        self._refusal: Problem | None = None
        self._on_draft_changed()

    # Blockers

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def blocker(self) -> Problem | None:
        """Return the problem that prevents launching the current draft or script, or None."""
        problem = self.form_blocker()
        if problem is None and not self._session.script.is_chosen:
            return self._session.plan.refusal
        return problem

    def form_blocker(self) -> Problem | None:
        """Return the problem that prevents launching, or None. A chosen strategy that the plan refuses is no
        problem here, because the user can still race other strategies."""
        draft, script = self._session.draft, self._session.script
        choice, hosts = self._session.device_choice, self._session.hosts
        if script.is_chosen:
            problem = next(iter(script.problems), None)
            return problem or find_gpu_problem(choice.use, hosts.local, can_rehearse=False)
        hosts_used = choice.hosts or [""]
        for host in hosts_used:
            if choice.get_use(host) == NO_DEVICES_CHOSEN:
                advice, path = tr("Choose at least one GPU."), ".".join(devices_path(host))
                return Problem("no-device", tr("No GPU is chosen."), path=path, advice=advice)
        if draft.problems:
            return draft.problems[0]
        for host in hosts_used:
            gpus = hosts.get(host) if host else hosts.local
            if gpus is not None and gpus.refusal:
                return Problem("no-host", gpus.refusal, path="hosts.use")
            problem = None if gpus is None else find_gpu_problem(choice.get_use(host), gpus)
            if problem is not None and host:
                message = tr("{host}: {message}", host=host, message=problem.message)
                return msgspec.structs.replace(problem, message=message, path=".".join(devices_path(host)))
            if problem is not None:
                return problem
        return None

    def _on_draft_changed(self) -> None:
        if self._session.draft.is_typing and not self._session.script.is_chosen:
            return  # an unfinished line is not reported
        blocker, script = self.blocker(), self._session.script
        problems = list(script.problems if script.is_chosen else self._session.draft.problems)
        if blocker is not None and blocker not in problems:
            problems.insert(0, blocker)
        # An empty form is not listed as a problem: the button says what is missing.
        listed = [problem for problem in problems if script.form.run or problem.path != "script.run"]
        self._session.problems.set(DRAFT_OWNER, tr("configuration"), [] if script.is_chosen else problems)
        self._session.problems.set(SCRIPT_OWNER, tr("script"), listed if script.is_chosen else [])
        is_of_one_host = not script.is_chosen and not self._session.device_choice.hosts
        self._window.context.set("raceable", self.form_blocker() is None and is_of_one_host)
        self.changed.emit()

    def _on_plan_changed(self) -> None:
        refusal = self._session.plan.refusal
        # The plan changes with every result, but only a new refusal affects the blocker.
        if refusal != self._refusal:
            self._refusal = refusal
            self._on_draft_changed()

    def _offer_undo(self, before: DraftSnapshot) -> None:
        bring_back = (
            tr("Undo"),
            OneTimeAction(lambda: self._session.draft.restore_snapshot(before)),
        )
        text = tr(
            "The edited configuration was not valid TOML, so the change was applied to its "
            "last valid version."
        )
        self._window.toasts.show(text, actions=[bring_back])

    # Launching

    def launch_draft(self) -> None:
        config = self._session.draft.config
        if not self.report_if_blocked() and config is not None:
            self._warn_of_difference()
            self.launch(config)

    def _warn_of_difference(self) -> None:
        """Warn if verification has found that the chosen strategy's result differs from that of a single
        device."""
        plan, line = self._session.plan, self._session.plan.chosen_line
        if line is not None and plan.verification.is_different(line):
            values = {"strategy": strategy_name(line), "found": plan.verification.get_text(line)}
            self._window.toasts.warn(tr("{strategy}: {found}.", **values))

    def report_if_blocked(self) -> bool:
        """Return whether launching is blocked; if it is, report the problem that blocks it."""
        blocker = self.blocker()
        if blocker is not None:
            self.blocked.emit(blocker)
            # The user may have corrected the file that the refusal is about.
            self._session.plan.recheck_refusal()
        return blocker is not None

    def launch_suggestion(self, suggestion: Suggestion) -> None:
        """Launch a preset on its suggested devices; the draft stays as it is."""
        try:
            config = load(suggestion.preset.path, devices=suggestion.devices)
        except ConfigError as error:
            self.show_refusal(suggestion.preset.name, error.problems)
        else:
            self.launch(config)

    def launch(self, config: RunConfig, then: Callable[[Path], object] | None = None) -> None:
        """Start a run with this configuration, asking for trust in its code if needed. Once the run exists,
        `then` is called with the run's path."""
        self.when_trusted(config.code_folders, partial(self._start, config, then))

    def launch_again(self, path: Path, config: RunConfig) -> None:
        """Start a new run with the configuration of the run at `path`; first ask the user to trust its code
        if needed."""
        trust = self._session.trust
        self.when_trusted(partial(trust.untrusted_folders_of_run, path, config), partial(self._start, config))

    def ask_trust_for_draft(self, go_on: Callable[[], object]) -> None:
        """Ask for trust in the draft's code, and call `go_on` if the user grants it."""
        config = self._session.draft.config
        if config is not None:
            self.when_trusted(config.code_folders, go_on)

    def resume(self, path: Path) -> None:
        """Resume an ended run; first ask the user to trust its code if needed."""
        self.when_run_trusted(path, partial(self.start_resume, path))

    def when_run_trusted(self, path: Path, go_on: Callable[[], object]) -> None:
        """Call `go_on` once the user trusts the run's code (see `when_trusted`). If the run cannot be read,
        show the reason instead."""

        def untrusted() -> list[Path]:
            return self._session.trust.untrusted_folders_of_run(path, RunDir(path).config())

        self.when_trusted(untrusted, go_on, lambda error: self.show_refusal(path.name, error.problems))

    def start_resume(self, path: Path, options: Sequence[str] = ()) -> Launch | None:
        """Resume a run whose code is trusted; return None if a resume of this run is already pending."""
        key = f"{_RESUME_PREFIX}:{path}"
        if key in self._pending:
            return None
        name, workspace = self._session.runs.get_title(path), self._session.workspace.folder
        launch = self._session.engine.resume(name, path, workspace=workspace, options=options)
        self._add_pending(key, launch)
        return launch

    def when_trusted(
        self,
        code_folders: Callable[[], list[Path]],
        go_on: Callable[[], object],
        failed: Callable[[ConfigError], object] | None = None,
    ) -> None:
        """Call `go_on` once the user trusts the code in the folders that `code_folders` returns; if the user
        refuses, `go_on` is never called.

        The io thread calls `code_folders`; if that raises a ConfigError, `failed` is called with the error.
        """

        def untrusted() -> list[Path]:
            return self._session.trust.untrusted_folders(code_folders())

        self._session.io_thread.submit(untrusted, partial(self._ask_trust, go_on), failed)

    def _ask_trust(self, go_on: Callable[[], object], folders: list[Path]) -> None:
        if not folders:
            go_on()
            return
        question = TrustDialog(folders, self._window)
        self.trust_dialog = question

        def answered(trusted: int) -> None:
            self.trust_dialog = None
            question.deleteLater()
            if not trusted:
                return
            # The io thread runs its jobs in order, so any job that `go_on` submits finds these folders
            # trusted.
            self._session.io_thread.submit(partial(self._trust_all, folders), on_error=self._warn_not_saved)
            go_on()

        question.finished.connect(answered)
        question.open()

    def _trust_all(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            self._session.trust.add(folder)

    def _warn_not_saved(self, error: OSError) -> None:
        self._window.toasts.warn(tr("Your trust decision could not be saved: {why}.", why=error))

    def _start(self, config: RunConfig, then: Callable[[Path], object] | None = None) -> None:
        workspace = self._session.workspace
        title = title_of(config, self._session.hosts.count_devices(config))
        # The first host is the coordinator and keeps the run directory.
        is_ours = not config.hosts.use or is_local_host(config.hosts.use[0])
        runs, folder = workspace.runs_folder if is_ours else None, workspace.folder
        launch = self._session.engine.launch(title, config.to_toml(), runs=runs, workspace=folder)
        self.show_starting_page(launch)
        if then is not None:
            launch.arrived.connect(then)

    def show_starting_page(self, launch: Launch, show: Callable[..., object] | None = None) -> None:
        """Open a starting page for a launch; the run's tab replaces it later. If something other than a run
        is launched, such as a race, `show` opens its tab."""
        self._num_launches += 1
        page_id = f"{PAGE_KIND}:{self._num_launches}"
        # Before the page is opened: _make_page looks the launch up.
        self._add_pending(page_id, launch, show)
        self._window.editor.open(page_id)

    def _add_pending(self, key: str, launch: Launch, show: Callable[..., object] | None = None) -> None:
        """Track a launch. `key` is the id of its starting page, if it has one. `show` opens a
        tab for a race, for example; if it is None, a run's tab is opened."""
        self._pending[key] = launch
        # A new launch replaces the problems of the previous one.
        self._session.problems.set(LAUNCH_OWNER, launch.name, [])
        launch.arrived.connect(lambda path: self._on_arrived(key, launch.name, path, show))
        launch.refused.connect(lambda problems: self._on_refused(key, launch, problems))
        self.changed.emit()

    def _make_page(self, page_id: str) -> Page:
        launch = self._pending.get(page_id)
        if launch is None:
            raise PageUnavailableError(tr("This launch has ended."))
        return StartingPage(page_id, launch)

    def _on_arrived(self, key: str, name: str, path: Path, show: Callable[..., object] | None) -> None:
        """Replace the starting page `key` with the tab of the run at `path`, or with the tab that `show`
        opens."""
        self._pending.pop(key, None)
        editor = self._window.editor
        active = editor.active_page()
        # A run that arrives while another tab is active must not take the focus.
        in_front = active is not None and active.page_id == key
        if show is None:
            self._tabs.launched[path] = name
            show = self._tabs.open
        close = partial(editor.close_page, key)
        show(path, focus=in_front or key.startswith(_RESUME_PREFIX), then=close)
        self._session.runs.rescan()
        self.changed.emit()

    def _on_refused(self, key: str, launch: Launch, problems: list[Problem]) -> None:
        self._pending.pop(key, None)
        # The user cancelled it, so there is no problem to list.
        if problems[0].code == "cancelled":
            self._window.editor.close_page(key)
            self._window.toasts.info(problems[0].message)
        else:
            self.show_refusal(launch.name, problems)
        self.changed.emit()

    def show_refusal(self, name: str, problems: list[Problem]) -> None:
        """Show why a launch did not start."""
        self._session.problems.set(LAUNCH_OWNER, name, problems)
        show = (tr("Show Problems"), lambda: self._window.show_panel("problems"))
        message = translate_problem(problems[0]).message
        if problems[0].code != NOT_SHOWN_CODE:
            message = tr("{name} did not start: {why}", name=name, why=message)
        self._window.toasts.show(message, "error", [show])
        self._window.show_panel("problems")
