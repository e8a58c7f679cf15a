"""The column of symbols at the left, 48 px: one per registered activity, the gear at the bottom.

A click on the symbol of the view on show folds the side bar, as in VS Code. Badges count what waits in a
view.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable

from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractButton, QMenu, QVBoxLayout, QWidget

from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.side_bar import Activity
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import CENTER, paint_text

WIDTH = 48


class ActivityButton(QAbstractButton):
    """A 24 px icon with a 2 px line at its left while its view is on show."""

    def __init__(self, icon: str, name: str, theme: Theme) -> None:
        super().__init__()
        self._icon = icon
        self._theme = theme
        self._badge = 0
        self.active = False
        self.setFixedSize(WIDTH, WIDTH)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setAccessibleName(name)
        self.setToolTip(name)

    def set_active(self, active: bool) -> None:
        self.active = active
        self.setAccessibleDescription(tr("shown") if active else "")
        self.update()

    def set_badge(self, count: int) -> None:
        """A number on the symbol; 0 takes it away."""
        self._badge = count
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        lit = self.active or self.underMouse() or self.hasFocus()
        ink = self._theme.color("activityBar.foreground" if lit else "activityBar.inactiveForeground")
        draw_icon(painter, self._icon, QRectF(12, 12, 24, 24), ink)
        if self.active:
            painter.fillRect(0, 0, 2, self.height(), self._theme.color("activityBar.activeBorder"))
        if self.hasFocus():
            painter.setPen(self._theme.color("focusBorder"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(6.5, 6.5, 35, 35), 4, 4)
        if self._badge:
            self._paint_badge(painter)
        painter.end()

    def _paint_badge(self, painter: QPainter) -> None:
        text = str(self._badge) if self._badge < 100 else "99+"
        painter.setFont(self._theme.font(9, bold=True))
        width = max(16, painter.fontMetrics().horizontalAdvance(text) + 8)
        box = QRectF(WIDTH - 6 - width, 26, width, 16)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color("activityBarBadge.background"))
        painter.drawRoundedRect(box, 8, 8)
        paint_text(painter, box, text, self._theme.color("activityBarBadge.foreground"), 9, CENTER, bold=True)


class ActivityBar(QWidget):
    """One button per activity, and the gear."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("activityBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedWidth(WIDTH)
        self.setAccessibleName(tr("Activity bar"))
        self._theme = theme
        self._buttons: dict[str, ActivityButton] = {}
        self._priorities: list[int] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(0)
        self._column.addStretch(1)

    def add(self, activity: Activity) -> ActivityButton:
        """A symbol for an activity; one of a higher priority stands nearer to the top."""
        button = ActivityButton(activity.icon, spoken(activity.title), self._theme)
        self._buttons[activity.id] = button
        self._column.insertWidget(bisect_right(self._priorities, -activity.priority), button)
        insort(self._priorities, -activity.priority)
        return button

    def add_menu(self, icon: str, name: str, fill: Callable[[QMenu], None]) -> ActivityButton:
        """A symbol at the bottom that opens a menu, filled anew each time."""
        button = ActivityButton(icon, name, self._theme)

        def open_menu() -> None:
            menu = QMenu(button)
            menu.aboutToHide.connect(menu.deleteLater)
            fill(menu)
            corner = button.mapToGlobal(QPoint(WIDTH, WIDTH))
            menu.popup(corner - QPoint(0, menu.sizeHint().height()))

        button.clicked.connect(open_menu)
        self._column.addWidget(button)
        return button

    def set_active(self, activity_id: str) -> None:
        """Mark the activity on show; '' marks none (the side bar is folded)."""
        for own_id, button in self._buttons.items():
            button.set_active(own_id == activity_id)

    def button(self, activity_id: str) -> ActivityButton:
        return self._buttons[activity_id]
