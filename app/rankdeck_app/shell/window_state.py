"""What comes back after a restart: place and size, folded parts, splitters, side bar view, panel tab, editor
tabs.

Written as JSON a second after the last change and when the window closes, so that killing the app loses next
to nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QObject, QTimer

from rankdeck.base.files import write_whole
from rankdeck_app.shell.window import MainWindow

DELAY_MS = 1000


class WindowState(QObject):
    """Reads window.json once. `restore_frame` comes before the first paint; the tabs come back when the
    window starts, for then their views are known.
    """

    def __init__(self, window: MainWindow, path: Path) -> None:
        super().__init__(window)
        self._window = window
        self._path = path
        self._ready = False
        self._failed = False
        self._saved = self._read()
        self._timer = QTimer(self, singleShot=True, interval=DELAY_MS)
        self._timer.timeout.connect(self.save_now)
        window.started.connect(self._restore_tabs)
        window.layout_changed.connect(self.save_soon)
        window.editor.layout_changed.connect(self.save_soon)
        window.closing.connect(self.save_now)

    def _read(self) -> dict[str, Any]:
        """The file's content; nothing of it is worth an error: without it the window opens as on the first
        day.
        """
        try:
            content = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def restore_frame(self) -> None:
        window, saved = self._window, self._saved
        geometry = saved.get("geometry")
        if not (
            isinstance(geometry, str) and window.restoreGeometry(QByteArray.fromBase64(geometry.encode()))
        ):
            room = window.screen().availableSize() if window.screen() else window.sizeHint()
            window.resize(window.sizeHint().boundedTo(room))
        # How much the frame adds is known once there is one.
        window.first_painted.connect(self._fit_screen)
        window.set_visible_parts(_dict(saved.get("visible")))
        for name, splitter in (("columns", window.columns), ("rows", window.rows)):
            sizes = saved.get(name)
            if (
                isinstance(sizes, list)
                and len(sizes) == 2
                and all(isinstance(s, int) and s >= 0 for s in sizes)
            ):
                splitter.setSizes(sizes)
        window.side_bar.restore_state(_dict(saved.get("side_bar")))
        window.panel.restore_state(_dict(saved.get("panel")))

    def _fit_screen(self) -> None:
        """No edge of the window, with its frame, lies outside the screen when it opens."""
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
            self._window.editor.restore_state(_dict(self._saved.get("editor")))
        self._ready = True

    def save_soon(self) -> None:
        """After a change: write when nothing more happens for a second."""
        if self._ready:
            self._timer.start()

    def save_now(self) -> None:
        """Write. A disk that refuses is reported once, not every second."""
        self._timer.stop()
        if not self._ready:
            return
        window = self._window
        layout = {"columns": window.columns.sizes(), "rows": window.rows.sizes()}
        for name, sizes in layout.items():
            if 0 in sizes:  # a folded part has size 0: keep the size that it had
                layout[name] = self._saved.get(name, sizes)
        self._saved = {
            "geometry": bytes(window.saveGeometry().toBase64().data()).decode(),
            "visible": window.wanted,
            **layout,
            "side_bar": window.side_bar.save_state(),
            "panel": window.panel.save_state(),
            "editor": window.editor.save_state(),
        }
        try:
            write_whole(self._path, json.dumps(self._saved, indent=1))
        except OSError as error:
            if not self._failed:
                self._failed = True
                window.toasts.warn(
                    f"The layout cannot be saved: {error}. Free space or make the folder writable."
                )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
