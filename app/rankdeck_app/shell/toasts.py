"""Notifications as toasts in the lower right corner of the editor, where they never cover the panel's output.

A toast expires unless the pointer is on it or it has the keyboard focus. A toast with buttons does not
expire: it stays until a button is clicked or the toast is closed. A toast with the same `key` as a visible
one replaces it. Together, toasts take up to a third of the window's height; older ones are closed to make
room. The history keeps all notifications with their buttons (notifications_page.py); while the history is
visible, no toasts appear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QCursor, QPainter, QPaintEvent
from PySide6.QtWidgets import QApplication, QBoxLayout, QFrame, QPushButton, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.services import Services
from rankdeck_app.theme import draw_icon
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import TOP, column, row, text_label

ToastTone = Literal["info", "warning", "error"]
ToastAction = tuple[str, Callable[[], object]]

TOAST_WIDTH = 360
MAX_HISTORY = 200
MIN_TOAST_HEIGHT = 44
_GAP = 8
_MARGIN = 12
_BUTTON_PADDING = 26
_RECHECK_MS = 2000
TONE_COLORS: dict[ToastTone, str] = {
    "info": "editorInfo.foreground",
    "warning": "rankdeck.lead",
    "error": "errorForeground",
}


class OneTimeAction:
    """An action that runs only once, such as an undo; afterwards its button is disabled."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._action = act
        self.is_done = False

    def __call__(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._action()


@dataclass(frozen=True)
class Notification:
    """A notification: its text, its time (seconds since the epoch) and its actions."""

    text: str
    tone: ToastTone
    actions: tuple[ToastAction, ...] = ()
    key: str = ""
    time_s: float = field(default_factory=time.time)


def action_buttons(
    actions: Sequence[ToastAction],
    run: Callable[[Callable[[], object]], object],
    room: int,
    *,
    has_primary: bool = True,
) -> QBoxLayout:
    """Return a right-aligned row of buttons, of which the first is primary; if `has_primary` is False, no
    button is primary and the row is left-aligned.

    If the row needs more than `room` pixels, the buttons are stacked. A click passes the callback of the
    button to `run`.
    """
    buttons = QBoxLayout(QBoxLayout.Direction.LeftToRight)
    buttons.setSpacing(_GAP)
    buttons.setAlignment(side := Qt.AlignmentFlag.AlignRight if has_primary else Qt.AlignmentFlag.AlignLeft)
    width = 0
    for at, (label, callback) in enumerate(actions):
        button = _action_button(label, callback, run)
        if at == 0 and has_primary:
            button.setProperty("kind", "primary")
        buttons.addWidget(button, 0, side)
        width += button.fontMetrics().horizontalAdvance(label) + _BUTTON_PADDING + _GAP
    if width > room:
        buttons.setDirection(QBoxLayout.Direction.TopToBottom)
    return buttons


def _action_button(
    label: str, callback: Callable[[], object], run: Callable[[Callable[[], object]], object]
) -> QPushButton:
    button = QPushButton(label)
    button.setDisabled(isinstance(callback, OneTimeAction) and callback.is_done)

    def act() -> None:
        button.setDisabled(isinstance(callback, OneTimeAction))
        run(callback)

    button.clicked.connect(act)
    return button


class Toast(QFrame):
    """A toast. `closed` is emitted when it expires or is closed."""

    closed = Signal(object)

    def __init__(self, notice: Notification, services: Services, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = services.theme
        self.notification = notice
        self.setProperty("kind", "floating")
        self.setAccessibleName(notice.text)
        self.setFixedWidth(TOAST_WIDTH)
        self._text = text_label(notice.text)
        close = tool_button(services.theme, "close", tr("Close Notification"), self.dismiss)
        self._row = row((self._text, 1), close, margins=(24, 0, 0, 0), spacing=8, align=TOP)
        self._column = column(self._row, on=self, margins=(12, 10, 8, 10), spacing=8)
        if notice.actions:
            self._column.addLayout(action_buttons(notice.actions, self._run_action, TOAST_WIDTH - 24))
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._expire)
        if not notice.actions:
            self._timer.start(round(services.settings.get("notifications.seconds", float) * 1000))

    def fit(self, max_height: int) -> int:
        """Set the toast's height to what the text needs, shortening the text to fit `max_height`, and return
        the height.

        If the text is shortened, the tooltip shows the full text.
        """
        text = self.notification.text
        self._text.setText(text)
        while self._needed_height() > max_height and len(text) > 20:
            # Shorten by a fifth per attempt, so that even a long text needs few layouts.
            text = text[: len(text) * 4 // 5]
            self._text.setText(f"{text.rstrip()}…")
        self._text.setToolTip(self.notification.text if self._text.text() != self.notification.text else "")
        self.setFixedHeight(max(self._needed_height(), MIN_TOAST_HEIGHT))
        return self.height()

    def _needed_height(self) -> int:
        """Return the height that the current text needs; the layouts are invalidated, because they cache the
        previous height."""
        self._row.invalidate()
        self._column.invalidate()
        return self._column.totalHeightForWidth(TOAST_WIDTH)

    def _expire(self) -> None:
        focus = QApplication.focusWidget()
        is_pointed_at = self.rect().contains(self.mapFromGlobal(QCursor.pos()))
        if is_pointed_at or (focus is not None and self.isAncestorOf(focus)):
            # The pointer or the focus may have left by then.
            self._timer.start(_RECHECK_MS)
        else:
            self.dismiss()

    def _run_action(self, callback: Callable[[], object]) -> None:
        self.dismiss()
        callback()

    def dismiss(self) -> None:
        self._timer.stop()
        self.hide()
        self.closed.emit(self)
        self.deleteLater()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        ink: QColor = self._theme.color(TONE_COLORS[self.notification.tone])
        painter.fillRect(QRect(1, 5, 3, self.height() - 10), ink)
        draw_icon(painter, self.notification.tone, QRect(14, 12, 16, 16).toRectF(), ink)
        painter.end()


class Toasts(QObject):
    """Stack of toasts over `area` (the editor), or above the status bar (`below`) while `area` is hidden.

    `history_changed` is emitted after each notification, and when the history is cleared or marked as read.
    """

    history_changed = Signal()

    def __init__(self, services: Services, window: QWidget, area: QWidget, below: QWidget) -> None:
        super().__init__(window)
        self._services = services
        self._window = window
        self._area, self._fallback_anchor = area, below
        self._toasts: list[Toast] = []
        self.history: list[Notification] = []
        self.unread = 0
        self.is_history_open = False
        """Whether the history is visible; while it is, no toasts are shown."""
        area.installEventFilter(self)

    def show(
        self, text: str, tone: ToastTone = "info", actions: Sequence[ToastAction] = (), *, key: str = ""
    ) -> None:
        """Show a notification. `actions` are (label, callback) buttons; the first one is primary.

        The notification replaces a visible toast with the same `key`; the default key is `text`.
        """
        notice = Notification(text, tone, tuple(actions), key or text)
        before = self.find(notice.key)
        if before is not None:
            # The replacement moves to the end of the history.
            self.history.remove(before.notification)
            before.dismiss()
        else:
            self.unread += 1
        self.history.append(notice)
        del self.history[:-MAX_HISTORY]
        if not self.is_history_open:
            toast = Toast(notice, self._services, self._window)
            toast.closed.connect(self._remove)
            self._toasts.append(toast)
            toast.show()
            self.reposition()
        self.history_changed.emit()

    def info(self, text: str) -> None:
        self.show(text)

    def warn(self, text: str) -> None:
        self.show(text, "warning")

    def error(self, text: str) -> None:
        self.show(text, "error")

    @property
    def visible_toasts(self) -> list[Toast]:
        return list(self._toasts)

    def find(self, key: str) -> Toast | None:
        """Return the visible toast with this key, or None."""
        return next((toast for toast in self._toasts if toast.notification.key == key), None)

    def update_text(self, key: str, text: str) -> None:
        """Update the text of a visible toast; do nothing if it is gone."""
        toast = self.find(key)
        if toast is not None and toast.notification.text != text:
            at = self.history.index(toast.notification)
            self.history[at] = toast.notification = replace(toast.notification, text=text)
            toast.setAccessibleName(text)
            self.reposition()

    def dismiss(self, key: str) -> None:
        """Close the toast with this key because its message is outdated; the history keeps the message."""
        toast = self.find(key)
        if toast is not None:
            toast.dismiss()

    def dismiss_all(self) -> None:
        """Close all toasts; the history keeps them."""
        for toast in self.visible_toasts:
            toast.dismiss()

    def clear_history(self) -> None:
        self.history.clear()
        self.mark_read()

    def mark_read(self) -> None:
        self.unread = 0
        self.history_changed.emit()

    def reposition(self) -> None:
        """Stack the toasts upwards from the corner; close the oldest if there is no room for all."""
        area = self._area
        if area.isVisible():
            corner = area.mapTo(self._window, area.rect().bottomRight())
        else:
            corner = self._fallback_anchor.mapTo(self._window, QPoint(self._fallback_anchor.width() - 1, -1))
        room = self._window.height() // 3
        bottom = corner.y() - _MARGIN
        for toast in reversed(self.visible_toasts):
            # The newest toast always stays, cut if necessary.
            if room < MIN_TOAST_HEIGHT or (toast is not self._toasts[-1] and toast.fit(room) > room):
                toast.dismiss()
                continue
            height = toast.fit(room)
            toast.move(corner.x() - TOAST_WIDTH - _MARGIN, bottom - height)
            toast.raise_()
            bottom -= height + _GAP
            room -= height + _GAP

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Reposition the toasts when the area is moved, resized or hidden, for example because the panel is
        toggled."""
        if self._toasts and event.type() in (QEvent.Type.Resize, QEvent.Type.Move, QEvent.Type.Hide):
            # After the layout has moved the area.
            QTimer.singleShot(0, self, self.reposition)
        return False

    def _remove(self, toast: Toast) -> None:
        if toast in self._toasts:
            self._toasts.remove(toast)
            self.reposition()
