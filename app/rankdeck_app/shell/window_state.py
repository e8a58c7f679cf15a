"""Open the main window, register the commands of its frame, and restore the layout after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QObject

from rankdeck_app.language import tr
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.shell_commands import shell_commands
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.state_file import StateFile


def open_window(services: Services) -> MainWindow:
    """Open the window with its last geometry, without any views."""
    window = MainWindow(services)
    window.commands.register(*shell_commands(window))
    WindowState(window, services.state_folder / "window.json").restore_frame()
    return window


# State that is restored after a restart: geometry, hidden parts, splitters, side bar view, panel tab and
# editor tabs. It is written as JSON soon after each change and on close, so that killing the app loses next
# to nothing.


class WindowState(QObject):
    """Saved state of the window, in window.json, which is read once.

    `restore_frame` runs before the first paint; the editor tabs are restored after the views are added,
    because their page kinds are not registered before that.
    """

    def __init__(self, window: MainWindow, path: Path) -> None:
        super().__init__(window)
        self._window = window
        self._state_file = StateFile(
            path, self._make_state, self, io_thread=window.services.io_thread, on_error=self._warn_not_saved
        )
        self._is_restored = False
        self._has_warned = False
        # An unreadable file is no error: the window opens with its defaults.
        self._saved = self._state_file.read()
        window.started.connect(self._restore_tabs)
        window.layout_changed.connect(self.save_soon)
        window.editor.layout_changed.connect(self.save_soon)
        window.closing.connect(self.save_now)

    def restore_frame(self) -> None:
        window, saved = self._window, self._saved
        geometry = saved.get("geometry")
        if not (
            isinstance(geometry, str) and window.restoreGeometry(QByteArray.fromBase64(geometry.encode()))
        ):
            room = window.screen().availableSize() if window.screen() else window.sizeHint()
            window.resize(window.sizeHint().boundedTo(room))
        # The size of the window frame is known only after the first paint.
        window.first_painted.connect(self._fit_screen)
        window.set_visible_parts(_as_dict(saved.get("visible")))
        for name, splitter in (("columns", window.columns), ("rows", window.rows)):
            sizes = saved.get(name)
            if (
                isinstance(sizes, list)
                and len(sizes) == 2
                and all(isinstance(s, int) and s >= 0 for s in sizes)
            ):
                splitter.setSizes(sizes)
        window.side_bar.restore_state(_as_dict(saved.get("side_bar")))
        window.panel.restore_state(_as_dict(saved.get("panel")))

    def _fit_screen(self) -> None:
        """Move and resize the window so that its frame is inside the screen."""
        window, room = self._window, self._window.screen().availableGeometry()
        frame = window.frameGeometry()
        if room.contains(frame) or window.isMaximized() or window.isFullScreen():
            return
        window.resize(window.size().boundedTo(room.size() - (frame.size() - window.size())))
        frame = window.frameGeometry()
        frame.moveRight(min(frame.right(), room.right()))
        frame.moveBottom(min(frame.bottom(), room.bottom()))
        frame.moveLeft(max(frame.left(), room.left()))
        frame.moveTop(max(frame.top(), room.top()))
        window.move(frame.topLeft())

    def _restore_tabs(self) -> None:
        if self._window.settings.get("window.restore_tabs", bool):
            self._window.editor.restore_state(_as_dict(self._saved.get("editor")))
        self._is_restored = True

    def save_soon(self) -> None:
        """Save the state once there has been no further change for a while."""
        if self._is_restored:
            self._state_file.save_soon()

    def save_now(self) -> None:
        if self._is_restored:
            self._state_file.save_now()

    def _make_state(self) -> dict[str, Any]:
        window = self._window
        layout = {"columns": window.columns.sizes(), "rows": window.rows.sizes()}
        for name, sizes in layout.items():
            if 0 in sizes:  # a hidden part has size 0: keep its last size
                layout[name] = self._saved.get(name, sizes)
        self._saved = {
            "geometry": bytes(window.saveGeometry().toBase64().data()).decode(),
            "visible": window.wanted_parts,
            **layout,
            "side_bar": window.side_bar.save_state(),
            "panel": window.panel.save_state(),
            "editor": window.editor.save_state(),
        }
        return self._saved

    def _warn_not_saved(self, error: OSError) -> None:
        """Warn the user the first time saving fails, not at every change."""
        if not self._has_warned:
            self._has_warned = True
            self._window.toasts.warn(
                tr(
                    "The layout cannot be saved: {error}. Free some disk space, or make the folder writable.",
                    error=error,
                )
            )


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
