"""Registers the app's commands and provides the items of quick open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtWidgets import QFileDialog

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.presets import Preset
from rankdeck.config.script import ScriptConfig
from rankdeck.run_dir import RunDir, slug
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.device_monitor import DeviceMonitor
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.scripts import Scripts
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_text, tr
from rankdeck_app.shell.floating_list import QuickPickItem
from rankdeck_app.shell.palette import QuickProvider
from rankdeck_app.shell.toasts import OneTimeAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.views import config_page
from rankdeck_app.widgets.run_list import details_text, outcome_style, strategy_title

MAX_FILES = 500
_TOML_FILTER = tr_noop("Configurations (*.toml)")


class AppCommands:
    """The app's commands and the methods that implement them; the views' signals are connected to the methods
    too."""

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launcher,
        scripts: Scripts,
        watch: DeviceMonitor,
    ) -> None:
        self.window = window
        self.session = session
        self.tabs = tabs
        self.launcher = launching
        self.scripts = scripts
        self.device_monitor = watch
        self._files: dict[Path, list[Path]] = {}
        """Configurations found by the last scan, keyed by workspace folder."""
        window.editor.active_page_changed.connect(self._update_context)

    def commands(self) -> list[Command]:
        return [
            *self._control_commands(),
            *self._configure_commands(),
            *self._active_run_commands(),
            *self._file_commands(),
            *self._other_commands(),
        ]

    def _control_commands(self) -> list[Command]:
        """Return the commands that start, resume or stop a run, or save a checkpoint of it."""
        row, tabs, of = partial(Command, menu="Run/1_control"), self.tabs, self.tabs.on_active
        alive, stop_now = partial(row, when="activeRunAlive"), of(partial(tabs.stop, now=True))
        return [
            row("run.launch", phrase("Run: Launch"), self.launch, ("Ctrl+F5",)),
            alive("run.stop", phrase("Run: Stop"), of(tabs.stop), ("Shift+F5",)),
            alive("run.stopNow", phrase("Run: Stop Now"), stop_now, ("Ctrl+Shift+F5",)),
            row(
                "run.checkpoint",
                phrase("Run: Save Checkpoint Now"),
                of(tabs.save_checkpoint),
                when="activeRunAlive && !activeRunScript",
            ),
            row("run.resume", phrase("Run: Resume"), of(self.launcher.resume), when="activeRunResumable"),
            row("run.again", phrase("Run: Run Again"), of(self.scripts.run_again), when="activeRunAgain"),
        ]

    def _configure_commands(self) -> list[Command]:
        """Return the commands that configure the next run."""
        row = partial(Command, menu="Run/2_configure")
        return [
            row("run.startFrom", phrase("Run: Start From Preset…"), self._pick_preset, ("Ctrl+K P",)),
            row(
                "strategy.choose",
                phrase("Run: Change Strategy…"),
                lambda: self._pick_strategy(self.choose_strategy, tr("Strategy of the next run")),
                ("Ctrl+K S",),
            ),
            row("config.show", phrase("Run: Edit Configuration"), self.show_config, ("Ctrl+K Ctrl+E",)),
            row("devices.refresh", phrase("Run: Refresh GPUs"), self.session.hosts.refresh),
        ]

    def _active_run_commands(self) -> list[Command]:
        """Return the commands for the run in the active tab."""
        row, tabs, of = partial(Command, when="activeRun", menu="Run/3_this"), self.tabs, self.tabs.on_active
        return [
            row("run.reuse", phrase("Run: Use the Configuration of This Run"), of(self.use_configuration)),
            row("run.reveal", phrase("Run: Open the Folder of This Run"), of(tabs.reveal)),
            row("run.copyPath", phrase("Run: Copy the Path of This Run"), of(tabs.copy_path)),
        ]

    def _file_commands(self) -> list[Command]:
        suggest = partial(Command, menu="Edit/3_suggest")
        open_row, save_row = partial(Command, menu="File/1_open"), partial(Command, menu="File/2_save")
        return [
            open_row("run.open", phrase("File: Open Run…"), self._open_run, ("Ctrl+O",)),
            open_row(
                "config.open", phrase("File: Open Configuration…"), self._open_config, ("Ctrl+K Ctrl+O",)
            ),
            open_row("workspace.open", phrase("File: Open Folder…"), self._open_folder, ("Ctrl+K Ctrl+F",)),
            suggest(
                "config.suggest",
                phrase("Edit: Trigger Suggest"),
                self._suggest,
                ("Ctrl+Space",),
                "canSuggest",
            ),
            save_row("config.save", phrase("File: Save Configuration"), self._save, ("Ctrl+S",)),
            save_row(
                "config.saveAs", phrase("File: Save Configuration As…"), self._save_as, ("Ctrl+Shift+S",)
            ),
        ]

    def _other_commands(self) -> list[Command]:
        row, welcome = (
            partial(Command, menu="View/3_activities"),
            partial(self.window.editor.open, "welcome:"),
        )
        return [
            row("devices.show", phrase("View: Devices"), self.device_monitor.show, ("Ctrl+Shift+D",)),
            row("plan.show", phrase("View: VRAM Plan"), self.show_plan, ("Ctrl+K V",)),
            Command(
                "plan.verify",
                phrase("Run: Verify Strategies"),
                self.verify_plan,
                ("Ctrl+K Ctrl+V",),
                menu="Run/2_configure",
            ),
            Command(
                "strategy.explain",
                phrase("Help: Explain Strategy…"),
                lambda: self._pick_strategy(self.explain_strategy, tr("Which strategy?")),
                menu="Help/2_learn",
            ),
            Command("welcome.show", phrase("Help: Welcome"), welcome, menu="Help/1_start"),
        ]

    # Items of quick open

    def providers(self) -> list[QuickProvider]:
        return [self.run_items, self.scripts.items, self.preset_items, self.file_items]

    def run_items(self) -> list[QuickPickItem]:
        return [
            QuickPickItem(
                info.title,
                " · ".join(filter(None, (strategy_title(info.strategy), details_text(info)))),
                partial(self.tabs.open, info.path),
                tr("run"),
                outcome_style(info.state)[0],
            )
            for info in self.session.runs.infos
        ]

    def preset_items(self) -> list[QuickPickItem]:
        return [
            QuickPickItem(
                preset.name, tr(preset.title), partial(self.use_preset, preset), tr("preset"), "rocket"
            )
            for preset in self.session.presets
        ]

    def file_items(self) -> list[QuickPickItem]:
        """Return the configurations in the workspace folder and its subfolders, except those of runs.

        The items come from the last scan, and a new scan is started.
        """
        folder, runs = self.session.workspace.folder, self.session.workspace.runs_folder
        self.session.io_thread.submit(
            # With the key, at most one scan waits while the user types.
            partial(_find_config_files, folder),
            partial(self._list_files, folder),
            key="quick open",
        )
        return [
            QuickPickItem(
                path.name,
                str(path.parent.relative_to(folder)),
                partial(self.open_config, path),
                tr("file"),
                "file-code",
            )
            for path in self._files.get(folder, [])
            if runs not in path.parents
        ]

    def _list_files(self, folder: Path, files: list[Path]) -> None:
        # Only for new files: a refresh calls file_items, which starts the next scan.
        if self._files != {folder: files}:
            self._files = {folder: files}
            self.window.command_palette.refresh_quick_open()

    # Actions that views request

    def launch(self) -> None:
        """Launch the script if a script is chosen, otherwise the draft."""
        if self.session.script.is_chosen:
            self.scripts.launch_form()
        else:
            self.launcher.launch_draft()

    def use_configuration(self, path: Path) -> None:
        """Choose a run's configuration or script for the next launch."""

        def use(script: ScriptConfig | None) -> None:
            if script is not None:
                self.scripts.use_config(script)
            else:
                self.tabs.use_configuration(path)

        def refused(error: Exception) -> None:
            self.window.toasts.error(error_text(error))

        self.session.io_thread.submit(RunDir(path).script, use, refused)

    def open_dropped(self, paths: list[Path]) -> None:
        """Open a dropped script, configuration or folder."""
        # There is only one draft and one folder, so the other dropped files could only replace the first.
        for path in paths[:1]:
            self.session.io_thread.submit(path.is_dir, partial(self._open_path, path))

    def _open_path(self, path: Path, is_folder: bool) -> None:
        if is_folder:
            self.open_workspace(path)
        elif path.suffix == ".toml":
            self.open_config(path)
        elif path.suffix == ".py":
            self.scripts.show(path)
        else:
            message = tr("{file} is neither a script (.py) nor a configuration (.toml).", file=path.name)
            self.window.toasts.warn(message)

    def use_preset(self, preset: Preset) -> None:
        """Make a preset the draft; if the previous draft was edited, a toast offers to restore it."""
        self.session.script.set_chosen(False)
        before, was_edited = self.session.draft.snapshot(), self.session.draft.is_edited
        try:
            self.session.use_preset(preset)
        except OSError as error:
            self._show_read_error(preset.path, error)
            return
        if self.window.side_bar.current_id != "launch" or not self.window.side_bar.isVisible():
            self.window.show_activity("launch")
        if was_edited:
            undo = (tr("Undo"), OneTimeAction(lambda: self.session.draft.restore_snapshot(before)))
            text = tr(
                "The preset {preset} replaced the configuration that you had edited.",
                preset=preset.name,
            )
            self.window.toasts.show(text, actions=[undo])

    def choose_strategy(self, name: str, options: Mapping[str, object] | None = None) -> None:
        """Set the draft's strategy to `name`. Unless `options` is None, it replaces the strategy options that
        the draft would otherwise keep."""
        self.session.script.set_chosen(False)
        self.session.draft.choose(("strategy",), name)
        if options:
            self.session.draft.set_values({("strategy", key): value for key, value in options.items()})
        self.window.show_activity("launch")

    def explain_strategy(self, name: str) -> None:
        self.window.editor.open(f"strategy:{name}")

    def show_config(self, line: int | None = None) -> None:
        """Open the configuration tab, optionally at a line."""
        page = self.window.editor.open(config_page.PAGE_ID)
        if isinstance(page, config_page.ConfigPage) and line is not None:
            page.go_to_line(line)

    def _suggest(self) -> None:
        page = self.window.editor.active_page()
        if isinstance(page, config_page.ConfigPage):
            page.suggest()

    def _update_context(self, page: object) -> None:
        self.window.context.set("canSuggest", isinstance(page, config_page.ConfigPage))

    def show_plan(self) -> None:
        """Open the memory plan of all strategies."""
        self.window.editor.open("plan:")

    def verify_plan(self) -> None:
        """Open the plan page and verify that every strategy gives the same result as a single device."""
        from rankdeck_app.views.plan.page import PlanPage

        page = self.window.editor.open("plan:")
        if isinstance(page, PlanPage):
            page.verify()

    # Files and folders

    def open_config(self, path: Path) -> None:
        """Make a .toml file the draft and show it."""
        self.session.draft.open_file(path, self.show_config, partial(self._show_read_error, path))

    def _show_read_error(self, path: Path, error: OSError) -> None:
        self.window.toasts.error(tr("{file} cannot be read: {why}.", file=path, why=error.strerror))

    def _open_config(self) -> None:
        workspace = self.session.workspace
        folder = str(workspace.dialog_folder)
        chosen, _ = QFileDialog.getOpenFileName(
            self.window, tr("Open Configuration"), folder, tr(_TOML_FILTER)
        )
        if chosen:
            workspace.remember_dialog_path(Path(chosen))
            self.open_config(Path(chosen))

    def _open_run(self) -> None:
        workspace = self.session.workspace
        runs = workspace.runs_folder
        self._pick_folder(tr("Open Run"), runs if runs.is_dir() else workspace.dialog_folder, self.tabs.open)

    def _open_folder(self) -> None:
        workspace = self.session.workspace

        def act(folder: Path) -> None:
            workspace.remember_dialog_path(folder)
            self.open_workspace(folder)

        self._pick_folder(tr("Open Folder"), workspace.dialog_folder, act)

    def _pick_folder(self, title: str, start: Path, act: Callable[[Path], object]) -> None:
        chosen = QFileDialog.getExistingDirectory(self.window, title, str(start))
        if chosen:
            act(Path(chosen))

    def open_workspace(self, folder: Path) -> None:
        self.session.workspace.open(folder)

    def _save(self) -> None:
        source = self.session.draft.source
        self.save_config(source) if source else self._save_as()

    def _save_as(self) -> None:
        draft, workspace = self.session.draft, self.session.workspace
        suggested = str(draft.source or workspace.dialog_folder / f"{draft.stem or slug(draft.title)}.toml")
        title, kind = tr("Save Configuration"), tr(_TOML_FILTER)
        chosen, _ = QFileDialog.getSaveFileName(self.window, title, suggested, kind)
        if chosen:
            path = Path(chosen)
            workspace.remember_dialog_path(path)
            self.save_config(path if path.suffix else path.with_suffix(".toml"))

    def save_config(self, path: Path) -> None:
        def refused(error: OSError) -> None:
            message = tr("{file} cannot be written: {why}.", file=path, why=error.strerror)
            self.window.toasts.error(message)

        self.session.draft.save_as(path, refused)

    # Helpers

    def _pick_preset(self) -> None:
        self.window.command_palette.pick(self.preset_items(), tr("Start from a preset"))

    def _pick_strategy(self, act: Callable[[str], object], placeholder: str) -> None:
        items = [
            QuickPickItem(card.title, tr(card.hint), partial(act, card.name), "", card.icon)
            for card in STRATEGIES.values()
        ]
        self.window.command_palette.pick(items, placeholder)


def _find_config_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.toml"), *folder.glob("*/*.toml")])[:MAX_FILES]
