"""List of painted rows, the base of the plan table and the race table.

Rows change in place while results arrive, and the row to which the user has moved stays current. Until the
user moves, a subclass chooses the current row. The delegate of a list paints the object stored in DATA_ROLE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from PySide6.QtCore import QAbstractListModel, QRect, Qt
from PySide6.QtGui import QKeyEvent, QPainter
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import DATA_ROLE, Index, paint_outline, paint_text

LIST_HEADER_HEIGHT = 20


class ListRow(Protocol):
    """Data of a row. `key` identifies the row; `description` is the row's text for a screen reader."""

    @property
    def key(self) -> Any: ...
    @property
    def tooltip(self) -> str: ...
    @property
    def description(self) -> str: ...


class RowListModel(QAbstractListModel):
    """Model of the rows. `set_rows` reports only changed rows to the view, or all rows if `repaint` is
    set."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.rows: list[Any] = []

    def set_rows(self, rows: Sequence[ListRow], *, repaint: bool) -> None:
        fresh = list(rows)
        if [item.key for item in fresh] != [item.key for item in self.rows]:
            # A reset loses the current row, so it is only for other keys.
            self.beginResetModel()
            self.rows = fresh
            self.endResetModel()
            return
        before, self.rows = self.rows, fresh
        for row, (old, new) in enumerate(zip(before, fresh, strict=True)):
            if old != new or repaint:
                self.dataChanged.emit(self.index(row), self.index(row))

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self.rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        row = self.rows[index.row()]
        if role == DATA_ROLE:
            return row
        if role == Qt.ItemDataRole.ToolTipRole:
            return row.tooltip or None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return row.description
        return None


class RowListDelegate(QStyledItemDelegate):
    """Delegate that paints a row's background; subclasses paint the content."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self.colors = ChartColors(theme)

    def paint_background(
        self, painter: QPainter, rect: QRect, state: QStyle.StateFlag, *, is_selected: bool, mark: str = ""
    ) -> None:
        """Paint the background of a row; `mark` is the colour id of a bar at its left edge."""
        color = self.theme.color
        if is_selected:
            painter.fillRect(rect, color("list.inactiveSelectionBackground"))
        elif state & QStyle.StateFlag.State_MouseOver:
            painter.fillRect(rect, color("list.hoverBackground"))
        if mark:
            painter.fillRect(QRect(rect.x(), rect.y(), 3, rect.height()), color(mark))
        painter.fillRect(QRect(rect.x(), rect.bottom(), rect.width(), 1), self.colors.border)
        if is_selected:
            paint_outline(painter, rect, color("contrastActiveBorder"))
        if state & QStyle.StateFlag.State_HasFocus:
            paint_outline(painter, rect, color("focusBorder"))


class RowList(QListView):
    """List view of the rows. `has_moved` is True once the user has moved to a row."""

    def __init__(self, theme: Theme, delegate: RowListDelegate, name: str) -> None:
        super().__init__()
        self._theme = theme
        self.row_model = RowListModel(self)
        self.has_moved = False
        delegate.setParent(self)
        self.setModel(self.row_model)
        self.setItemDelegate(delegate)
        # For the hover background: without it, Qt reports the pointer only while a button is pressed.
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setResizeMode(QListView.ResizeMode.Adjust)
        self.setAccessibleName(name)
        theme.changed.connect(self._retheme)

    def current_key(self) -> Any:
        """Return the key of the current row; None if no row is current."""
        current = self.currentIndex()
        return self.row_model.rows[current.row()].key if current.isValid() else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        before = self.currentIndex()
        super().keyPressEvent(event)
        self.has_moved = self.has_moved or self.currentIndex() != before

    def _retheme(self) -> None:
        delegate = self.itemDelegate()
        assert isinstance(delegate, RowListDelegate)
        delegate.colors = ChartColors(self._theme)
        self.viewport().update()


def paint_list_header(
    painter: QPainter, theme: Theme, names: Iterable[tuple[int, int, str, Qt.AlignmentFlag]]
) -> None:
    """Paint the column names in `names`, whose items are (left, width, name, alignment). Columns of width 0
    are skipped."""
    ink, elide = theme.color("descriptionForeground"), Qt.TextElideMode.ElideRight
    for left, width, name, align in names:
        if width:
            paint_text(painter, QRect(left, 0, width, LIST_HEADER_HEIGHT), name, ink, 11, align, elide=elide)
