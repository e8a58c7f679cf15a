"""The plan's table: its header, the list of strategies, and the legend of memory kinds.

A delegate paints the list (row_delegate.py). Results arrive one by one in any order, so each row is updated
in place, and the row under the pointer does not move while others are updated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QModelIndex, QSize, Signal
from PySide6.QtGui import QBrush, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QStyleOptionViewItem, QWidget

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.views.plan.plan_chart_data import SEGMENT_LABELS, PlanRowData, Scale
from rankdeck_app.views.plan.row_delegate import (
    CAPACITY_DASHES,
    ICON_WIDTH,
    INDEX_WIDTH,
    PlanColumns,
    PlanRowDelegate,
)
from rankdeck_app.widgets.chart import Chart, LegendEntry, layout_legend, paint_legend_line
from rankdeck_app.widgets.painting import LEFT, RIGHT, chart_font, dashed_pen
from rankdeck_app.widgets.row_list import LIST_HEADER_HEIGHT, RowList, paint_list_header


class PlanTable(RowList):
    """The list of strategies. `picked` carries a row's key when the row is clicked or Enter is pressed."""

    picked = Signal(tuple)

    def __init__(self, theme: Theme) -> None:
        self._delegate = PlanRowDelegate(theme)
        super().__init__(theme, self._delegate, tr("Strategies and their predicted memory"))
        self.clicked.connect(self._on_activated)
        self.activated.connect(self._on_activated)

    def set_rows(self, rows: Sequence[PlanRowData], scale: Scale) -> None:
        """Update the rows, keeping the current row and the scroll position. The row of the chosen strategy is
        current until the user moves to another row with a key."""
        key, top = self.current_key(), self.verticalScrollBar().value()
        heights = [self._row_height(row) for row in range(self.row_model.rowCount())]
        has_new_scale, self._delegate.scale = scale != self._delegate.scale, scale
        self.row_model.set_rows(rows, repaint=has_new_scale)
        # Qt caches row heights, so changed heights need a new layout.
        if heights != [self._row_height(row) for row in range(self.row_model.rowCount())]:
            self.scheduleDelayedItemsLayout()
        keys = [row_data.key for row_data in rows]
        if key not in keys or not self.has_moved:
            key = next((row_data.key for row_data in rows if row_data.is_chosen), None)
        if key is not None:
            self.setCurrentIndex(self.row_model.index(keys.index(key)))
        # setCurrentIndex may have scrolled.
        self.verticalScrollBar().setValue(top)

    def brush(self, kind: str, *, is_lead: bool) -> QBrush:
        return self._delegate.brush(kind, is_lead=is_lead)

    def _row_height(self, row: int) -> int:
        return self._delegate.sizeHint(QStyleOptionViewItem(), self.row_model.index(row)).height()

    def _on_activated(self, index: QModelIndex) -> None:
        self.picked.emit(self.row_model.rows[index.row()].key)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.scheduleDelayedItemsLayout()


def _bars_title_width(columns: PlanColumns) -> int:
    """Return the width available to the bar column's title, which can extend into the right-aligned column
    beside it."""
    return columns.bars_width - INDEX_WIDTH + 26


class PlanHeader(QWidget):
    """The table's header. `width_of` returns the width of the rows, excluding the scroll bar."""

    def __init__(self, theme: Theme, width_of: Callable[[], int]) -> None:
        super().__init__()
        self._theme = theme
        self._get_width = width_of
        self._axis = ""
        self.setFixedHeight(LIST_HEADER_HEIGHT)
        theme.changed.connect(self.update)

    def show_axis(self, text: str) -> None:
        """Show `text`, the range that a full bar covers."""
        if text != self._axis:
            self._axis = text
            self.setAccessibleName(tr("Bars: {scale}", scale=text))
            self.update()

    def _bars_title(self, columns: PlanColumns) -> str:
        """Return the title of the bar column with the scale, or only the scale if there is little space."""
        full_title = tr("Each device, {scale}", scale=self._axis) if self._axis else tr("Each device")
        fits = QFontMetrics(chart_font(11)).horizontalAdvance(full_title) <= _bars_title_width(columns)
        return full_title if fits else self._axis

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns = PlanColumns(self._get_width())
        names = (
            (columns.name, columns.name_width, tr("Strategy"), LEFT),
            (columns.bars + INDEX_WIDTH, _bars_title_width(columns), self._bars_title(columns), LEFT),
            (columns.peak, columns.peak_width, tr("Fullest"), RIGHT),
            (columns.step, columns.step_width, tr("Step time"), RIGHT),
            (columns.verdict + ICON_WIDTH, columns.verdict_width - ICON_WIDTH, tr("Verdict"), LEFT),
        )
        paint_list_header(painter, self._theme, names)
        painter.end()


@dataclass(frozen=True)
class LegendKinds:
    """The visible memory kinds, each with its largest size on one device, and whether a capacity is drawn."""

    kinds: tuple[tuple[str, int], ...] = ()
    has_capacity: bool = False


class PlanLegend(Chart[LegendKinds]):
    """Legend of the visible memory kinds and the capacity line."""

    def __init__(self, theme: Theme, brush: Callable[[str], QBrush]) -> None:
        super().__init__(theme, LegendKinds(), tr("Kinds of memory"))
        self._brush = brush
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def describe(self) -> str:
        return ", ".join(tr(SEGMENT_LABELS[kind]) for kind, _ in self.data.kinds)

    def sizeHint(self) -> QSize:
        return QSize(200, LIST_HEADER_HEIGHT)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        entries = [
            LegendEntry(tr(SEGMENT_LABELS[kind]), [self._brush(kind)], weight=num_bytes)
            for kind, num_bytes in self.data.kinds
        ]
        if self.data.has_capacity:
            entries.append(LegendEntry(tr("capacity"), dashed_pen(self._colors.capacity, CAPACITY_DASHES)))
        painter.translate(4, 0)
        [line] = layout_legend(entries, self.width() - 4)
        paint_legend_line(painter, line, self.height() / 2, self._colors.muted)
