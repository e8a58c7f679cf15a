"""List that floats over the window: the common base of the command palette and the tab switcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QGraphicsDropShadowEffect,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from rankdeck_app.shell.services import Services
from rankdeck_app.theme import draw_icon
from rankdeck_app.widgets.painting import RIGHT, Index, paint_text, text_width

ROW_HEIGHT = 27
MAX_ROWS = 14
TOP_PX = 6


@dataclass(frozen=True)
class QuickPickItem:
    """A row of the list.

    `description` is dimmed text after the label. `callback` runs when the user chooses the row, `preview`
    when the row becomes the current one. A search also matches the row's `alias`. A row with `always_show`
    comes first, whatever the user types.
    """

    label: str
    description: str = ""
    callback: Callable[[], object] | None = None
    right_text: str = ""
    icon: str = ""
    preview: Callable[[], object] | None = None
    alias: str = ""
    always_show: bool = False


@dataclass(frozen=True)
class PaletteRow:
    """An item with the matched positions in its label."""

    item: QuickPickItem
    highlights: tuple[int, ...] = ()


class PaletteRowModel(QAbstractListModel):
    ROW = int(Qt.ItemDataRole.UserRole)
    rows: Sequence[PaletteRow] = ()

    def set_rows(self, rows: list[PaletteRow]) -> None:
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self.rows)

    def data(self, index: Index, role: int = 0) -> Any:
        row = self.rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return row.item.label
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return ", ".join(filter(None, (row.item.label, row.item.description, row.item.right_text)))
        return row if role == self.ROW else None


class PaletteRowDelegate(QStyledItemDelegate):
    def __init__(self, services: Services, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = services.theme

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, ROW_HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: PaletteRow = index.data(PaletteRowModel.ROW)
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        selected = bool(state & QStyle.StateFlag.State_Selected)
        color = self._theme.color
        painter.save()
        if selected or state & QStyle.StateFlag.State_MouseOver:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(color("contrastActiveBorder") if selected else Qt.PenStyle.NoPen)
            painter.setBrush(color("list.activeSelectionBackground" if selected else "list.hoverBackground"))
            painter.drawRoundedRect(
                rect.toRectF().adjusted(0.5, 0.5, -0.5, -0.5) if selected else rect.toRectF(), 3, 3
            )
        dim = color("list.activeSelectionForeground" if selected else "descriptionForeground")
        ink = color("quickInput.foreground") if row.item.callback and not selected else dim
        x = rect.x() + 16
        if row.item.icon:
            draw_icon(painter, row.item.icon, QRect(rect.x() + 12, rect.y() + 6, 15, 15).toRectF(), ink)
            x += 18
        right = rect.right() - 14
        if row.item.right_text:
            room = QRect(x, rect.y(), right - x, rect.height())
            right -= text_width(painter, paint_text(painter, room, row.item.right_text, dim, 12, RIGHT))
        x = self._paint_label(painter, row, QRect(x, rect.y(), right - x - 12, rect.height()), ink)
        if row.item.description and right - x > 30:
            area = QRect(x + 10, rect.y(), right - x - 22, rect.height())
            paint_text(painter, area, row.item.description, dim, 11, elide=Qt.TextElideMode.ElideMiddle)
        painter.restore()

    def _paint_label(self, painter: QPainter, row: PaletteRow, area: QRect, ink: QColor) -> int:
        """Paint the label with its matched letters highlighted, and return the x position of its right
        edge."""
        label = paint_text(painter, area, row.item.label, ink, 12, elide=Qt.TextElideMode.ElideRight)
        metrics = painter.fontMetrics()
        lit = self._theme.color("list.highlightForeground")
        # The last character of an elided label is "…", which is never highlighted.
        num_whole = len(label) if label == row.item.label else len(label) - 1
        for at in (at for at in row.highlights if at < num_whole):
            x = area.x() + metrics.horizontalAdvance(label[:at])
            box = QRect(x, area.y(), metrics.horizontalAdvance(label[at]) + 1, area.height())
            paint_text(painter, box, label[at], lit, 12)
        return area.x() + metrics.horizontalAdvance(label)


class FloatingList(QFrame):
    """Floating list, hidden when not in use. Subclasses lay out its widgets and open it."""

    max_width = 600

    def __init__(self, services: Services, parent: QWidget, name: str, list_name: str) -> None:
        super().__init__(parent)
        self._container = parent
        self._services = services
        self._previous_focus: QWidget | None = None
        self.setProperty("kind", "floating")
        self.setAccessibleName(name)
        self.list = QListView()
        self.list.setAccessibleName(list_name)
        # The keyboard stays with the input or the box itself.
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setMouseTracking(True)
        self.list.setUniformItemSizes(True)
        self.model = PaletteRowModel(self.list)
        self.list.setModel(self.model)
        self.list.setItemDelegate(PaletteRowDelegate(services, self.list))
        self.list.clicked.connect(self.choose)
        self._shadow = QGraphicsDropShadowEffect(self)
        self._shadow.setBlurRadius(24)
        self._shadow.setOffset(0, 6)
        self.setGraphicsEffect(self._shadow)
        self.hide()

    def open_with_focus(self, widget: QWidget) -> None:
        """Show the list above everything else and focus `widget`, which is the list or a part of the list."""
        if not self.isVisible():
            self._previous_focus = QApplication.focusWidget()
        # On every opening, since the theme may have changed.
        self._shadow.setColor(self._services.theme.color("widget.shadow"))
        self.show()
        self.raise_()
        widget.setFocus(Qt.FocusReason.PopupFocusReason)

    def choose(self, index: QModelIndex) -> None:
        """Close the list and run the row's callback; do nothing if the row has no callback."""
        if (callback := self._get_callback(index)) is not None:
            # Close first: the callback may open the box again or move the focus.
            self.dismiss()
            callback()

    def _get_callback(self, index: QModelIndex) -> Callable[[], object] | None:
        return self.model.rows[index.row()].item.callback if index.isValid() else None

    def dismiss(self) -> None:
        """Close the list without a choice and restore the focus."""
        if not self.isVisible():
            return
        before, self._previous_focus = self._previous_focus, None
        self.hide()
        if before is not None and before.isVisible():
            before.setFocus(Qt.FocusReason.PopupFocusReason)

    def reposition(self) -> None:
        """Place the list at the top of the window, horizontally centred."""
        room = self._container.size()
        num_rows = max(1, min(MAX_ROWS, len(self.model.rows)))
        self.list.setFixedHeight(num_rows * ROW_HEIGHT)
        self.setFixedWidth(min(self.max_width, room.width() - 32))
        self.adjustSize()
        self.move((room.width() - self.width()) // 2, TOP_PX)
