"""Page with all notifications of this session, newest first, with their buttons."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QPushButton, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.toasts import TONE_COLORS, Notification, action_buttons
from rankdeck_app.widgets.layouts import column, push_button, row

if TYPE_CHECKING:
    from rankdeck_app.shell.window import MainWindow

_LEFT_MARGIN, _RIGHT_MARGIN = 25, 4
"""Margins of a row of buttons, which align the buttons with the text."""
_PADDING = 8
"""Total padding above and below a row's content in a list whose property "roomy" is set (theme/qss.py)."""


class NotificationsPage(Page):
    can_split = False

    def __init__(self, page_id: str, window: MainWindow) -> None:
        super().__init__(page_id, title=tr("Notifications"), icon="bell")
        self._toasts = window.toasts
        self._theme = window.theme
        self._list = QListWidget()
        self._list.setAccessibleName(tr("Notifications, newest first"))
        self._list.setWordWrap(True)
        self._list.setIconSize(QSize(16, 16))
        self._list.setProperty("roomy", "true")
        self._clear_button = push_button(tr("Clear"), "", self._toasts.clear_history)
        column((self._list, 1), row(None, self._clear_button), on=self, margins=(16, 16, 16, 16), spacing=10)
        self.setFocusProxy(self._list)
        self._toasts.history_changed.connect(self._fill)
        self._theme.changed.connect(self._fill)
        self._fill()

    def _fill(self) -> None:
        self._list.clear()
        for notice in reversed(self._toasts.history):
            icon = self._theme.icon(notice.tone, TONE_COLORS[notice.tone])
            at = time.strftime("%H:%M:%S", time.localtime(notice.time_s))
            item = QListWidgetItem(icon, f"{at}   {notice.text}")
            self._list.addItem(item)
            if notice.actions:
                self._add_buttons(notice)
        self._clear_button.setVisible(bool(self._toasts.history))
        if not self._toasts.history:
            self._list.addItem(tr("No notifications in this session."))
        if self.isVisible() and self._toasts.unread:
            self._toasts.mark_read()

    def _add_buttons(self, notice: Notification) -> None:
        """Add the buttons of a notification in a separate row below it."""
        buttons = QWidget()
        room = self._list.viewport().width() - _LEFT_MARGIN - _RIGHT_MARGIN
        layout = action_buttons(notice.actions, lambda callback: callback(), room, has_primary=False)
        layout.setContentsMargins(_LEFT_MARGIN, 0, _RIGHT_MARGIN, 6)
        buttons.setLayout(layout)
        item = QListWidgetItem()
        item.setFlags(Qt.ItemFlag.NoItemFlags)
        self._list.addItem(item)
        self._list.setItemWidget(item, buttons)
        for button in buttons.findChildren(QPushButton):
            button.ensurePolished()  # the theme's style sheet sets its height
        layout.invalidate()
        item.setSizeHint(QSize(0, layout.sizeHint().height() + _PADDING))

    def resizeEvent(self, event: QResizeEvent) -> None:
        if event.size().width() != event.oldSize().width():
            self._fill()

    def showEvent(self, event: QEvent) -> None:
        self._toasts.is_history_open = True
        self._toasts.dismiss_all()
        self._fill()  # buttons may have been used in a toast meanwhile

    def hideEvent(self, event: QEvent) -> None:
        self._toasts.is_history_open = False
