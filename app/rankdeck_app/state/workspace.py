"""The opened folder, and the folder for its runs.

When the app starts, it opens the last opened folder if that still exists, else `~/Rankdeck`; a missing folder
is created only when a run is launched. New runs go to the folder set by `--runs`, else by RANKDECK_RUNS, else
by the setting `runs.dir`, and otherwise to `runs` in the opened folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from rankdeck.base.home import expand_home
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr
from rankdeck_app.settings import Settings
from rankdeck_app.state.state_file import StateFile

DEFAULT_FOLDER = "~/Rankdeck"


class Workspace(QObject):
    """The opened folder and its runs folder.

    The engine starts in `folder`, which is also the base of relative paths. Runs are written to
    `runs_folder`. `failed` carries the reason why the opened folder cannot be remembered; the folder stays
    open until the app closes.
    """

    changed = Signal()
    failed = Signal(str)

    def __init__(
        self,
        state_file: Path,
        settings: Settings,
        *,
        folder: Path | None = None,
        runs: Path | None = None,
        parent: QObject | None = None,
        io_thread: IoThread | None = None,
    ) -> None:
        super().__init__(parent)
        self._state_file = StateFile(
            state_file,
            lambda: {"folder": str(self._folder)},
            self,
            io_thread=io_thread,
            on_error=self._warn_not_saved,
        )
        self._settings = settings
        self._runs = None if runs is None else expand_home(runs).absolute()
        self._dialog_path: Path | None = None
        self._folder = expand_home(folder or self._read_folder() or DEFAULT_FOLDER).absolute()
        settings.changed.connect(self._on_setting_changed)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def name(self) -> str:
        return self._folder.name or str(self._folder)

    @property
    def runs_folder(self) -> Path:
        named = os.environ.get("RANKDECK_RUNS") or self._settings.get("runs.dir", str)
        if self._runs is not None:
            return self._runs
        return expand_home(named).absolute() if named else self._folder / "runs"

    @property
    def dialog_folder(self) -> Path:
        """The folder in which file dialogs open: the folder of the last choice, else the app's working
        directory.

        When a desktop starts the app in / or the home folder, the working directory is unrelated to the
        user's files, so the opened folder is used instead, if it exists.
        """
        try:
            started_in = Path.cwd()
        except OSError:
            started_in = Path.home()
        if self._dialog_path is None and started_in in (Path("/"), Path.home()) and self._folder.is_dir():
            return self._folder
        return self._dialog_path or started_in

    def remember_dialog_path(self, path: Path) -> None:
        """Remember the folder of a path that was chosen in a dialog, so that the next dialog opens in this
        folder."""
        self._dialog_path = path if path.is_dir() else path.parent

    def open(self, folder: Path) -> None:
        """Open another folder, and remember it for the next start."""
        if folder.absolute() == self._folder:
            return
        self._folder = folder.absolute()
        self.changed.emit()
        self._state_file.save_now()

    def _warn_not_saved(self, error: OSError) -> None:
        self.failed.emit(
            tr("The folder is open, but will not be reopened at the next start: {why}.", why=error)
        )

    def _read_folder(self) -> Path | None:
        value = self._state_file.read().get("folder")
        # The folder may have been deleted since, or be on a disk that is not mounted.
        remembered = Path(value) if isinstance(value, str) else None
        return remembered if remembered is not None and remembered.is_dir() else None

    def _on_setting_changed(self, key: str) -> None:
        if key == "runs.dir":
            self.changed.emit()
