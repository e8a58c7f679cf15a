"""The rows that the views add to the table of commands, and what quick open lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtWidgets import QFileDialog

from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.presets import PresetCard
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.shell.palette import QuickItem, QuickProvider
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.widgets.run_list import details, outcome_look, strategy_title

MAX_FILES = 500
_TOML_FILTER = "Configurations (*.toml)"


class AppCommands:
    """What the commands do where that is more than one call."""

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launching,
        *,
        use_preset: Callable[[PresetCard], object],
        choose_strategy: Callable[[str], object],
        explain_strategy: Callable[[str], object],
        show_config: Callable[[], object],
        show_devices: Callable[[], object],
        show_plan: Callable[[], object],
    ) -> None:
        self.window = window
        self.session = session
        self.tabs = tabs
        self.launching = launching
        self.use_preset = use_preset
        self.choose_strategy = choose_strategy
        self.explain_strategy = explain_strategy
        self.show_config = show_config
        self.show_devices = show_devices
        self.show_plan = show_plan

    def rows(self) -> list[Command]:
        return [
            *self._control_rows(),
            *self._configure_rows(),
            *self._active_run_rows(),
            *self._file_rows(),
            *self._other_rows(),
        ]

    def _control_rows(self) -> list[Command]:
        """Start, stop and save a run."""
        tabs = self.tabs
        return [
            Command(
                "run.launch",
                "Run: Launch",
                self.launching.launch_draft,
                keys=("Ctrl+F5",),
                when="launchable",
                menu="Run/1_control",
            ),
            Command(
                "run.stop",
                "Run: Stop",
                tabs.stop_active,
                keys=("Shift+F5",),
                when="activeRunAlive",
                menu="Run/1_control",
            ),
            Command(
                "run.stopNow",
                "Run: Stop Now",
                lambda: tabs.stop_active(now=True),
                keys=("Ctrl+Shift+F5",),
                when="activeRunAlive",
                menu="Run/1_control",
            ),
            Command(
                "run.checkpoint",
                "Run: Save Checkpoint Now",
                self._on_active(tabs.save_checkpoint),
                when="activeRunAlive",
                menu="Run/1_control",
            ),
            Command(
                "run.resume",
                "Run: Resume",
                self._on_active(self.launching.resume),
                when="activeRunResumable",
                menu="Run/1_control",
            ),
        ]

    def _configure_rows(self) -> list[Command]:
        """What the next run will be."""
        return [
            Command(
                "run.startFrom",
                "Run: Start From Preset…",
                lambda: self.window.palette_box.pick(self.preset_items(), "Start from a preset"),
                keys=("Ctrl+K P",),
                menu="Run/2_configure",
            ),
            Command(
                "strategy.choose",
                "Run: Change Strategy…",
                lambda: self._pick_strategy(self.choose_strategy, "Strategy of the next run"),
                keys=("Ctrl+K S",),
                menu="Run/2_configure",
            ),
            Command(
                "config.show",
                "Run: Edit Configuration",
                self.show_config,
                keys=("Ctrl+K Ctrl+E",),
                menu="Run/2_configure",
            ),
            Command(
                "devices.refresh",
                "Run: Look for GPUs",
                self.session.gpus.ask,
                menu="Run/2_configure",
            ),
        ]

    def _active_run_rows(self) -> list[Command]:
        """What can be had of the run in the active tab."""
        tabs = self.tabs
        return [
            Command(
                "run.reuse",
                "Run: Use the Configuration of This Run",
                self._on_active(tabs.use_configuration),
                when="activeRun",
                menu="Run/3_this",
            ),
            Command(
                "run.reveal",
                "Run: Open the Folder of This Run",
                self._on_active(tabs.reveal),
                when="activeRun",
                menu="Run/3_this",
            ),
            Command(
                "run.copyPath",
                "Run: Copy the Path of This Run",
                self._on_active(tabs.copy_path),
                when="activeRun",
                menu="Run/3_this",
            ),
        ]

    def _file_rows(self) -> list[Command]:
        return [
            Command("run.open", "File: Open Run…", self._open_run, keys=("Ctrl+O",), menu="File/1_open"),
            Command(
                "config.open",
                "File: Open Configuration…",
                self._open_config,
                keys=("Ctrl+K Ctrl+O",),
                menu="File/1_open",
            ),
            Command(
                "workspace.open",
                "File: Open Folder…",
                self._open_folder,
                keys=("Ctrl+K Ctrl+F",),
                menu="File/1_open",
            ),
            Command(
                "config.save",
                "File: Save Configuration",
                self._save,
                keys=("Ctrl+S",),
                menu="File/2_save",
            ),
            Command(
                "config.saveAs",
                "File: Save Configuration As…",
                self._save_as,
                keys=("Ctrl+Shift+S",),
                menu="File/2_save",
            ),
        ]

    def _other_rows(self) -> list[Command]:
        return [
            Command(
                "devices.show",
                "View: Devices",
                self.show_devices,
                keys=("Ctrl+Shift+D",),
                menu="View/3_activities",
            ),
            Command(
                "plan.show",
                "View: VRAM Plan",
                self.show_plan,
                keys=("Ctrl+K V",),
                menu="View/3_activities",
            ),
            Command(
                "strategy.explain",
                "Help: Explain a Strategy…",
                lambda: self._pick_strategy(self.explain_strategy, "Which strategy?"),
                menu="Help/2_learn",
            ),
            Command(
                "welcome.show",
                "Help: Welcome",
                lambda: self.window.editor.open("welcome:"),
                menu="Help/1_start",
            ),
        ]

    # What quick open lists

    def providers(self) -> list[QuickProvider]:
        return [
            QuickProvider("runs", self.run_items),
            QuickProvider("presets", self.preset_items),
            QuickProvider("files", self.file_items),
        ]

    def run_items(self) -> list[QuickItem]:
        return [
            QuickItem(
                info.title,
                f"{strategy_title(info.strategy)} · {details(info)}",
                partial(self.tabs.open, info.path),
                "run",
                outcome_look(info.outcome)[0],
            )
            for info in self.session.runs.infos
        ]

    def preset_items(self) -> list[QuickItem]:
        return [
            QuickItem(preset.name, preset.title, partial(self.use_preset, preset), "preset", "rocket")
            for preset in self.session.presets
        ]

    def file_items(self) -> list[QuickItem]:
        """Configurations in the workspace: its own folder and the one below it, not the runs."""
        folder = self.session.workspace.folder
        try:
            files = sorted([*folder.glob("*.toml"), *folder.glob("*/*.toml")])[:MAX_FILES]
        except OSError:
            return []
        runs = self.session.workspace.runs_folder
        return [
            QuickItem(
                path.name,
                str(path.parent.relative_to(folder)),
                partial(self.open_config, path),
                "file",
                "file-code",
            )
            for path in files
            if runs not in path.parents
        ]

    # Files and folders

    def open_config(self, path: Path) -> None:
        """Make a .toml file the configuration, and show it."""
        try:
            self.session.draft.open_file(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            self.window.toasts.error(f"{path} cannot be read: {reason}.")
            return
        self.show_config()

    def _open_config(self) -> None:
        folder = str(self.session.workspace.folder)
        chosen, _ = QFileDialog.getOpenFileName(self.window, "Open Configuration", folder, _TOML_FILTER)
        if chosen:
            self.open_config(Path(chosen))

    def _open_run(self) -> None:
        folder = str(self.session.workspace.runs_folder)
        chosen = QFileDialog.getExistingDirectory(self.window, "Open Run", folder)
        if chosen:
            self.tabs.open(Path(chosen))

    def _open_folder(self) -> None:
        folder = str(self.session.workspace.folder)
        chosen = QFileDialog.getExistingDirectory(self.window, "Open Folder", folder)
        if chosen:
            self.open_workspace(Path(chosen))

    def open_workspace(self, folder: Path) -> None:
        try:
            self.session.workspace.open(folder)
        except OSError as error:
            self.window.toasts.warn(f"The folder is open, but will not be remembered: {error}.")

    def _save(self) -> None:
        source = self.session.draft.source
        if source is None:
            self._save_as()
        else:
            self.save_config(source)

    def _save_as(self) -> None:
        draft = self.session.draft
        suggested = draft.source or self.session.workspace.folder / f"{draft.stem}.toml"
        chosen, _ = QFileDialog.getSaveFileName(
            self.window, "Save Configuration", str(suggested), _TOML_FILTER
        )
        if chosen:
            path = Path(chosen)
            self.save_config(path if path.suffix else path.with_suffix(".toml"))

    def save_config(self, path: Path) -> None:
        try:
            self.session.draft.save_as(path)
        except OSError as error:
            self.window.toasts.error(f"{path} cannot be written: {error.strerror}.")

    # Helpers

    def _on_active(self, act: Callable[[Path], object]) -> Callable[[], None]:
        def on_active() -> None:
            run = self.tabs.active()
            if run is not None:
                act(run.run.path)

        return on_active

    def _pick_strategy(self, act: Callable[[str], object], placeholder: str) -> None:
        items = [
            QuickItem(card.title, card.hint, partial(act, card.name), "", card.icon)
            for card in STRATEGIES.values()
        ]
        self.window.palette_box.pick(items, placeholder)
