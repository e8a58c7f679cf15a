"""Strategies as rows of a list: icon, title and a dim hint, beside each other or in two lines."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from rankdeck.config.catalog import STRATEGIES, StrategyCard
from rankdeck_app.theme import Theme, draw_icon

ROW_HEIGHT = 30
TWO_LINES_HEIGHT = 44
_CARD_ROLE = int(Qt.ItemDataRole.UserRole)
_AT_LEFT = Qt.AlignmentFlag.AlignVCenter


class _RowDelegate(QStyledItemDelegate):
    """The chosen row is filled from edge to edge."""

    def __init__(self, theme: Theme, parent: QWidget, *, two_lines: bool) -> None:
        super().__init__(parent)
        self._theme = theme
        self._two_lines = two_lines

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(180, TWO_LINES_HEIGHT if self._two_lines else ROW_HEIGHT)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        card: StrategyCard = index.data(_CARD_ROLE)
        color = self._theme.color
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen:
            painter.fillRect(rect, color("list.activeSelectionBackground"))
        elif state & QStyle.StateFlag.State_MouseOver:
            painter.fillRect(rect, color("list.hoverBackground"))
        ink = color("list.activeSelectionForeground" if chosen else "foreground")
        title = QRect(rect.x() + 36, rect.y(), rect.width() - 48, rect.height())
        icon = QRectF(rect.x() + 12, rect.y(), 16, rect.height())
        if self._two_lines:
            title = QRect(title.x(), rect.y() + 4, title.width(), 19)
            icon = QRectF(icon.x(), rect.y() + 6, 16, 16)
        draw_icon(painter, card.icon, icon, ink)
        painter.setPen(ink)
        painter.setFont(self._theme.font(12))
        painter.drawText(title, _AT_LEFT, card.title)
        beside = painter.fontMetrics().horizontalAdvance(card.title) + 8
        hint = title.translated(0, 18) if self._two_lines else title.adjusted(beside, 0, 0, 0)
        painter.setFont(self._theme.font(11))
        painter.setPen(ink if chosen else color("descriptionForeground"))
        text = painter.fontMetrics().elidedText(card.hint, Qt.TextElideMode.ElideRight, hint.width())
        painter.drawText(hint, _AT_LEFT, text)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(0, 0, -1, -1))


class StrategyList(QListWidget):
    """`chosen` carries the name of a row that was selected; `explained` that of one that was activated
    (return or a double click).
    """

    chosen = Signal(str)
    explained = Signal(str)

    def __init__(self, theme: Theme, *, two_lines: bool = False, tooltip: str = "") -> None:
        super().__init__()
        self.setItemDelegate(_RowDelegate(theme, self, two_lines=two_lines))
        self.setAccessibleName("Strategies")
        self.setMouseTracking(True)
        for card in STRATEGIES.values():
            item = QListWidgetItem(card.title)
            item.setData(_CARD_ROLE, card)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{card.title}: {card.hint}")
            item.setToolTip(f"{card.summary}\n{tooltip}".strip())
            self.addItem(item)
        self.itemSelectionChanged.connect(self._selected)
        self.itemActivated.connect(lambda item: self.explained.emit(self.name_of(item)))
        self.itemDoubleClicked.connect(lambda item: self.explained.emit(self.name_of(item)))
        theme.changed.connect(self.viewport().update)

    def show_choice(self, name: str) -> None:
        self.blockSignals(True)
        row = list(STRATEGIES).index(name) if name in STRATEGIES else -1
        if row < 0:
            self.clearSelection()
        self.setCurrentRow(row)
        self.blockSignals(False)

    @staticmethod
    def name_of(item: QListWidgetItem) -> str:
        card: StrategyCard = item.data(_CARD_ROLE)
        return card.name

    def _selected(self) -> None:
        items = self.selectedItems()
        if items:
            self.chosen.emit(self.name_of(items[0]))
