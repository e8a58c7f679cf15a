"""The Strategies activity: every strategy with one sentence; a click opens its page."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from rankdeck.catalog import STRATEGIES, StrategyCard
from rankdeck_app.theme import Theme, draw_icon

ROW_HEIGHT = 44
_CARD_ROLE = int(Qt.ItemDataRole.UserRole)


class _Delegate(QStyledItemDelegate):
    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(180, ROW_HEIGHT)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        card: StrategyCard = index.data(_CARD_ROLE)
        color = self._theme.color
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen or state & QStyle.StateFlag.State_MouseOver:
            painter.fillRect(
                rect, color("list.activeSelectionBackground" if chosen else "list.hoverBackground")
            )
        ink = color("list.activeSelectionForeground" if chosen else "foreground")
        draw_icon(painter, card.icon, QRectF(rect.x() + 12, rect.y() + 6, 16, 16), ink)
        room = QRect(rect.x() + 36, rect.y() + 4, rect.width() - 48, 19)
        painter.setFont(self._theme.font(12))
        painter.setPen(ink)
        painter.drawText(room, Qt.AlignmentFlag.AlignVCenter, card.title)
        painter.setFont(self._theme.font(11))
        painter.setPen(ink if chosen else color("descriptionForeground"))
        text = painter.fontMetrics().elidedText(card.hint, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room.translated(0, 18), Qt.AlignmentFlag.AlignVCenter, text)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(0, 0, -1, -1))


class StrategiesView(QWidget):
    """`opened` carries the strategy's name."""

    opened = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.list = QListWidget()
        self.list.setAccessibleName("Strategies")
        self.list.setItemDelegate(_Delegate(theme, self.list))
        self.list.setMouseTracking(True)
        for card in STRATEGIES.values():
            item = QListWidgetItem(card.title)
            item.setData(_CARD_ROLE, card)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{card.title}: {card.summary}")
            item.setToolTip(card.summary)
            self.list.addItem(item)
        self.list.itemClicked.connect(self._open)
        self.list.itemActivated.connect(self._open)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.list)
        self.setFocusProxy(self.list)
        theme.changed.connect(self.list.viewport().update)

    def _open(self, item: QListWidgetItem) -> None:
        self.opened.emit(item.data(_CARD_ROLE).name)
