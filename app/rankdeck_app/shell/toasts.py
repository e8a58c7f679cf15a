"""Notifications: a card in the lower right corner of the editor, above the panel so that it never covers the
output.

A toast that asks nothing leaves after some seconds, one with buttons stays until it is answered or closed.
The history keeps what was said (the notifications page shows it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from PySide6.QtCore import QObject, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from rankdeck_app.shell.controls import tool_button
from rankdeck_app.shell.services import Services
from rankdeck_app.theme import draw_icon

ToastTone = Literal["info", "warning", "error"]
Action = tuple[str, Callable[[], object]]

WIDTH = 360
MAX_SHOWN = 3
MAX_HISTORY = 200
TONE_COLOR: dict[ToastTone, str] = {
    "info": "editorInfo.foreground",
    "warning": "rankdeck.lead",
    "error": "errorForeground",
}


@dataclass(frozen=True)
class Notification:
    """What was said, when (seconds since the epoch)."""

    text: str
    tone: ToastTone
    time_s: float = field(default_factory=time.time)


class Toast(QFrame):
    """The card. `closed` once it is gone, by itself or by the person."""

    closed = Signal(object)

    def __init__(
        self, notice: Notification, actions: Sequence[Action], services: Services, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._theme = services.theme
        self.notice = notice
        self.sticky = bool(actions)
        self.setProperty("kind", "floating")
        self.setAccessibleName(notice.text)
        self.setFixedWidth(WIDTH)
        text = QLabel(notice.text)
        text.setWordWrap(True)
        text.setTextFormat(Qt.TextFormat.PlainText)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addSpacing(24)
        row.addWidget(text, 1)
        close = tool_button(services.theme, "close", "Close Notification", self.finish)
        row.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 10, 8, 10)
        column.setSpacing(8)
        column.addLayout(row)
        if actions:
            column.addLayout(self._buttons(actions))
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.finish)
        if not self.sticky:
            self._timer.start(round(services.settings.get("notifications.seconds", float) * 1000))

    def _buttons(self, actions: Sequence[Action]) -> QHBoxLayout:
        row = QHBoxLayout()
        row.addStretch(1)
        for at, (label, callback) in enumerate(actions):
            button = QPushButton(label)
            if at == 0:
                button.setProperty("kind", "primary")
            button.clicked.connect(partial(self._answer, callback))
            row.addWidget(button)
        return row

    def _answer(self, callback: Callable[[], object], _checked: bool = False) -> None:
        self.finish()
        callback()

    def finish(self) -> None:
        self._timer.stop()
        self.hide()
        self.closed.emit(self)
        self.deleteLater()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        ink: QColor = self._theme.color(TONE_COLOR[self.notice.tone])
        painter.fillRect(QRect(1, 5, 3, self.height() - 10), ink)
        draw_icon(painter, self.notice.tone, QRect(14, 12, 16, 16).toRectF(), ink)
        painter.end()


class Toasts(QObject):
    """Shows and stacks toasts over `area` (the editor). `history_changed` after each new notice."""

    history_changed = Signal()

    def __init__(self, services: Services, window: QWidget, area: QWidget) -> None:
        super().__init__(window)
        self._services = services
        self._window = window
        self._area = area
        self._shown: list[Toast] = []
        self.history: list[Notification] = []
        self.unread = 0

    def show(self, text: str, tone: ToastTone = "info", actions: Sequence[Action] = ()) -> Toast:
        """Say something. `actions` are (label, callback) buttons; the first one is the suggested one."""
        notice = Notification(text, tone)
        self.history.append(notice)
        del self.history[:-MAX_HISTORY]
        self.unread += 1
        toast = Toast(notice, actions, self._services, self._window)
        toast.closed.connect(self._forget)
        self._shown.append(toast)
        while len(self._shown) > MAX_SHOWN:
            (next((old for old in self._shown if not old.sticky), self._shown[0])).finish()
        toast.show()
        self.place()
        self.history_changed.emit()
        return toast

    def info(self, text: str) -> Toast:
        return self.show(text)

    def warn(self, text: str) -> Toast:
        return self.show(text, "warning")

    def error(self, text: str) -> Toast:
        return self.show(text, "error")

    def shown(self) -> list[Toast]:
        return list(self._shown)

    def clear(self) -> None:
        """Close all toasts; the history stays."""
        for toast in self.shown():
            toast.finish()

    def clear_history(self) -> None:
        self.history.clear()
        self.mark_read()

    def mark_read(self) -> None:
        self.unread = 0
        self.history_changed.emit()

    def place(self) -> None:
        """Stack them upwards from the editor's lower right corner."""
        corner = self._area.mapTo(self._window, self._area.rect().bottomRight())
        bottom = corner.y() - 12
        for toast in reversed(self._shown):
            toast.setFixedHeight(max(toast.heightForWidth(WIDTH), 44))
            toast.move(corner.x() - WIDTH - 12, bottom - toast.height())
            toast.raise_()
            bottom -= toast.height() + 8

    def _forget(self, toast: Toast) -> None:
        if toast in self._shown:
            self._shown.remove(toast)
            self.place()
