"""The status bar, 22 px high: items by id, at the left and the right, each with an optional command.

An item with empty text is hidden. An item widens at once but narrows only when its text has become shorter by
a few characters, so that numbers do not jump. If the window is too narrow, items of the lowest `importance`
are hidden first.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QWidget

from rankdeck_app.commands.table import CommandTable
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.layouts import row
from rankdeck_app.widgets.painting import paint_text

Side = Literal["left", "right"]
Tone = Literal["normal", "error"]

HEIGHT = 22
_SLACK_CHARS = 3


class StatusItem(QAbstractButton):
    """An item of the status bar, created by StatusBar.item; `show_text` sets its text."""

    resized = Signal()

    def __init__(self, theme: Theme, commands: CommandTable, mono: bool) -> None:
        super().__init__()
        self.priority = 0
        self.importance = 0
        self._theme = theme
        self._commands = commands
        self._icon = ""
        self._tone: Tone = "normal"
        self._command = ""
        self._text_width = 0
        self.setFont(theme.font(12, mono=mono))
        self.setFixedHeight(HEIGHT - 1)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.clicked.connect(self._run)
        self.hide()

    def show_text(
        self, text: str, icon: str = "", *, tooltip: str = "", command: str = "", tone: Tone = "normal"
    ) -> None:
        """Show `text`; '' hides the item.

        `icon` is a codicon before the text; a click, or Enter on the focused item, runs `command`.
        """
        self._icon, self._command, self._tone = icon, command, tone
        # An item without a command does nothing, so Tab skips it.
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus if command else Qt.FocusPolicy.NoFocus)
        self.setText(text)
        self.setAccessibleName(text)
        self.setToolTip(tooltip)
        self.setAccessibleDescription(tooltip)
        metrics = self.fontMetrics()
        width = metrics.horizontalAdvance(text)
        if width > self._text_width or width < self._text_width - _SLACK_CHARS * metrics.averageCharWidth():
            self._text_width = width
            self.updateGeometry()
        self.resized.emit()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._text_width + (18 if self._icon else 0) + 14, HEIGHT - 1)

    minimumSizeHint = sizeHint

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        color = self._theme.color
        if self._command and (self.underMouse() or self.hasFocus()):
            painter.fillRect(self.rect(), color("statusBarItem.hoverBackground"))
        ink = color("errorForeground" if self._tone == "error" else "statusBar.foreground")
        area = self.rect().adjusted(7, 0, -7, 0)
        if self._icon:
            draw_icon(painter, self._icon, QRect(area.x(), 0, 14, self.height()).toRectF(), ink)
            area.setLeft(area.x() + 18)
        paint_text(painter, area, self.text(), ink, 12, font=self.font())
        if self.hasFocus():
            painter.setPen(color("focusBorder"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()

    def _run(self) -> None:
        self._commands.run(self._command)


class StatusBar(QWidget):
    """The status bar; items are ordered by descending priority from the outer edges inwards."""

    def __init__(self, theme: Theme, commands: CommandTable) -> None:
        super().__init__()
        self.setObjectName("statusBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(HEIGHT)
        self.setAccessibleName(tr("Status bar"))
        self._theme = theme
        self._commands = commands
        self._items: dict[str, StatusItem] = {}
        self._items_by_side: dict[Side, list[StatusItem]] = {"left": [], "right": []}
        self._side_layouts: dict[Side, QHBoxLayout] = {"left": row(), "right": row()}
        sections = self._side_layouts["left"], None, self._side_layouts["right"]
        self._layout = row(*sections, on=self, margins=(0, 1, 0, 0), spacing=0)

    def item(
        self, item_id: str, side: Side = "left", priority: int = 0, *, importance: int = 0, mono: bool = False
    ) -> StatusItem:
        """Return the item with that id, created on first use.

        An item with a higher priority is nearer to the window's edge. In a narrow window, items of the lowest
        `importance` are hidden first.
        """
        status_item = self._items.get(item_id)
        if status_item is None:
            status_item = self._items[item_id] = StatusItem(self._theme, self._commands, mono)
            status_item.priority = priority
            status_item.importance = importance
            items = self._items_by_side[side]
            items.append(status_item)
            items.sort(key=lambda item: -item.priority if side == "left" else item.priority)
            self._side_layouts[side].insertWidget(items.index(status_item), status_item)
            status_item.resized.connect(self._hide_overflow)
        return status_item

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._hide_overflow()

    def _hide_overflow(self) -> None:
        free = self.width()
        # Important items take their room first.
        for item in sorted(self._items.values(), key=lambda item: (-item.importance, -item.priority)):
            has_text = bool(item.text())
            if has_text:
                free -= item.sizeHint().width()
            item.setVisible(has_text and free >= 0)
        # Now and not in a later event: until then a longer text would be cut.
        self._layout.activate()
