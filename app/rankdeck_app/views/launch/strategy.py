"""STRATEGY: one row per strategy with its icon and a hint of four words; the chosen one's options below."""

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
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.run_rows import strategy_rows

ROW_HEIGHT = 30
_CARD_ROLE = int(Qt.ItemDataRole.UserRole)


class _RowDelegate(QStyledItemDelegate):
    """Icon, title, dim hint; the chosen row filled from edge to edge."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(200, ROW_HEIGHT)

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
        draw_icon(painter, card.icon, QRectF(rect.x() + 12, rect.y(), 16, rect.height()), ink)
        painter.setPen(ink)
        painter.setFont(self._theme.font(12))
        left = rect.x() + 36
        painter.drawText(QRect(left, rect.y(), 200, rect.height()), Qt.AlignmentFlag.AlignVCenter, card.title)
        left += painter.fontMetrics().horizontalAdvance(card.title) + 8
        painter.setFont(self._theme.font(11))
        painter.setPen(ink if chosen else color("descriptionForeground"))
        room = rect.right() - 12 - left
        hint = painter.fontMetrics().elidedText(card.hint, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRect(left, rect.y(), room, rect.height()), Qt.AlignmentFlag.AlignVCenter, hint)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(0, 0, -1, -1))


class StrategyList(QListWidget):
    """`chosen` carries a strategy's name; `explained` one whose page is wanted (double click, Enter)."""

    chosen = Signal(str)
    explained = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setItemDelegate(_RowDelegate(theme, self))
        self.setAccessibleName("Strategies")
        self.setMouseTracking(True)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        for card in STRATEGIES.values():
            item = QListWidgetItem(card.title)
            item.setData(_CARD_ROLE, card)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{card.title}: {card.hint}")
            item.setToolTip(f"{card.summary}\nDouble click for where tensors live and what is sent.")
            self.addItem(item)
        self.setFixedHeight(ROW_HEIGHT * self.count())
        self.itemSelectionChanged.connect(self._selected)
        self.itemActivated.connect(lambda item: self.explained.emit(item.data(_CARD_ROLE).name))
        self.itemDoubleClicked.connect(lambda item: self.explained.emit(item.data(_CARD_ROLE).name))
        theme.changed.connect(self.viewport().update)

    def show_choice(self, name: str) -> None:
        self.blockSignals(True)
        row = list(STRATEGIES).index(name) if name in STRATEGIES else -1
        if row < 0:
            self.clearSelection()
        self.setCurrentRow(row)
        self.blockSignals(False)

    def _selected(self) -> None:
        items = self.selectedItems()
        if items:
            self.chosen.emit(items[0].data(_CARD_ROLE).name)


class StrategySection(QWidget):
    """The body of the section."""

    def __init__(self, theme: Theme, draft: Draft) -> None:
        super().__init__()
        self._draft = draft
        self.list = StrategyList(theme)
        self.list.chosen.connect(lambda name: draft.choose(("strategy",), name))
        self.options = DraftForm(theme, draft, lambda: strategy_rows(draft))
        self.options.setContentsMargins(12, 4, 12, 4)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.list)
        column.addWidget(self.options)
        draft.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        use = self._draft.value(("strategy", "use"))
        self.list.show_choice(use if isinstance(use, str) else "single")
        self.options.setVisible(bool(self.options.fields))
