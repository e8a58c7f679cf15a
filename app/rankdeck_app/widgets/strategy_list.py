"""List of strategies: icon, title and a dim hint, on one or two lines."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QListWidget, QListWidgetItem

from rankdeck.config.catalog import STRATEGIES, StrategySpec
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import DATA_ROLE, Index, ListRowDelegate, paint_text, text_width

ROW_HEIGHT = 30
TWO_LINES_HEIGHT = 44


class _SpecDelegate(ListRowDelegate):
    """Delegate that paints the StrategySpec stored in DATA_ROLE; in tall rows, the strategy's hint is below
    the title."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        card: StrategySpec = index.data(DATA_ROLE)
        title = QRect(rect.x() + 36, rect.y(), rect.width() - 48, rect.height())
        icon = QRectF(rect.x() + 12, rect.y(), 16, rect.height())
        has_two_lines = self._height == TWO_LINES_HEIGHT
        if has_two_lines:
            title = QRect(title.x(), rect.y() + 4, title.width(), 19)
            icon = QRectF(icon.x(), rect.y() + 6, 16, 16)
        draw_icon(painter, card.icon, icon, ink("foreground"))
        name = paint_text(painter, title, tr(card.title), ink("foreground"), 12)
        hint_left = text_width(painter, name) + 8
        hint = title.translated(0, 18) if has_two_lines else title.adjusted(hint_left, 0, 0, 0)
        dim, elide = ink("descriptionForeground"), Qt.TextElideMode.ElideRight
        paint_text(painter, hint, tr(card.hint), dim, 11, elide=elide)


class StrategyList(QListWidget):
    """List of all strategies.

    `strategy_selected` carries the strategy's name when the user selects a row, `details_requested` when the
    user activates one (Enter or double click). `choice_changed` is emitted when `set_choice` changes the
    current row.
    """

    strategy_selected = Signal(str)
    choice_changed = Signal()
    details_requested = Signal(str)

    def __init__(self, theme: Theme, *, two_lines: bool = False, tooltip: str = "") -> None:
        super().__init__()
        self.setItemDelegate(_SpecDelegate(theme, self, TWO_LINES_HEIGHT if two_lines else ROW_HEIGHT))
        self.setAccessibleName(tr("Strategies"))
        self.setMouseTracking(True)
        for card in STRATEGIES.values():
            title = tr(card.title)
            item = QListWidgetItem(title)
            item.setData(DATA_ROLE, card)
            # The delegate paints the hint, which screen readers cannot read.
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{title}: {tr(card.hint)}")
            item.setToolTip(f"{tr(card.summary)}\n{tooltip}".strip())
            self.addItem(item)
        self.itemSelectionChanged.connect(self._on_selection_changed)
        self.itemActivated.connect(lambda item: self.details_requested.emit(self.get_name(item)))
        self.itemDoubleClicked.connect(lambda item: self.details_requested.emit(self.get_name(item)))
        theme.changed.connect(self.viewport().update)

    def set_choice(self, name: str) -> None:
        row = list(STRATEGIES).index(name) if name in STRATEGIES else -1
        if row == self.currentRow():
            return
        # strategy_selected reports only choices that the user makes in this list.
        self.blockSignals(True)
        if row < 0:
            self.clearSelection()
        self.setCurrentRow(row)
        self.blockSignals(False)
        self.choice_changed.emit()

    @property
    def selected_rect(self) -> QRect:
        return self.visualItemRect(self.currentItem()) if self.currentItem() is not None else QRect()

    @staticmethod
    def get_name(item: QListWidgetItem) -> str:
        card: StrategySpec = item.data(DATA_ROLE)
        return card.name

    def _on_selection_changed(self) -> None:
        items = self.selectedItems()
        if items:
            self.strategy_selected.emit(self.get_name(items[0]))
