"""Table of every metric of every device: a row per device, a column per metric.

Each cell shows the current number beside its recent history. If there is no number, the cell shows the reason
(n/a, error, old), never 0. Amber means a problem. Rows are selected by click or arrow keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen

from rankdeck.run.series import Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import LEFT, RIGHT, chart_font, paint_text
from rankdeck_app.widgets.time_text import ago_label
from rankdeck_app.widgets.tracks import area_image, hold_values, value_at

HEADER_HEIGHT = 18
MIN_ROW_HEIGHT, MAX_ROW_HEIGHT = 15.0, 30.0
_GAP = 10.0
_MIN_CURVE_WIDTH = 26.0


@dataclass(frozen=True)
class MetricColumn:
    """A column of the table.

    `widest` is a sample text that is as wide as any number in the column. `weight` is the column's share of
    the space for curves; a column with weight 0 has no curve. If the columns do not all fit, those of low
    `importance` are left out first.
    """

    title: str
    widest: str
    weight: int = 0
    importance: int = 9
    is_text: bool = False
    meaning: str = ""


@dataclass(frozen=True)
class MetricCell:
    """A cell. `tone` is "", "muted", "hot" or "error". `curve` is drawn on a scale from 0 to `top`; a
    value without a successor counts as unknown after `hold_s` seconds."""

    text: str
    tone: str = ""
    curve: Series | None = None
    top: float = 1.0
    hold_s: float = 1.5
    tooltip: str = ""
    format_value: Callable[[float], str] = str
    """Function that formats a value of the curve."""


@dataclass(frozen=True)
class MetricRow:
    """A row: a device or, if `is_mig_instance`, a MIG instance of the device in a row above. If `is_lost`,
    the row shows only `note`."""

    uuid: str
    label: str
    cells: Sequence[MetricCell]
    note: str = ""
    is_mig_instance: bool = False
    is_lost: bool = False
    is_lead: bool = False


@dataclass(frozen=True, eq=False)
class MetricTableData:
    """All rows, and the x range of the curves in seconds.

    Instances never compare equal, since series grow in place.
    """

    rows: Sequence[MetricRow] = ()
    x_range: tuple[float, float] = (0.0, 60.0)


class MetricTable(Chart[MetricTableData]):
    """Table of metrics. `selection_changed` carries the UUID of the selected row, "" for none."""

    selection_changed = Signal(str)

    def __init__(self, theme: Theme, columns: Sequence[MetricColumn]) -> None:
        self._columns = tuple(columns)
        self.selected = ""
        self._images: dict[int, tuple[tuple[int, int], QImage]] = {}
        self._num_updates = 0
        super().__init__(theme, MetricTableData(), tr("Every metric of every device"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def repaint_changes(self, before: MetricTableData) -> None:
        self._num_updates += 1
        # Cached images are valid only for the same rows and the same length of time.
        if _data_shape(before) != _data_shape(self.data):
            self._images.clear()
        self.update()

    def select(self, uuid: str) -> None:
        if uuid != self.selected:
            self.selected = uuid
            self.selection_changed.emit(uuid)
            self.update()

    def describe(self) -> str:
        def row_text(row: MetricRow) -> str:
            pairs = zip(self._columns, row.cells, strict=True)
            return f"{row.label}: " + ", ".join(f"{column.title} {cell.text}" for column, cell in pairs)

        return "; ".join(map(row_text, self.data.rows))

    def _retheme(self) -> None:
        self._images.clear()
        super()._retheme()

    def sizeHint(self) -> QSize:
        return QSize(600, int(HEADER_HEIGHT + 24 * len(self.data.rows)))

    def minimumSizeHint(self) -> QSize:
        return QSize(300, int(HEADER_HEIGHT + MIN_ROW_HEIGHT * max(1, len(self.data.rows))))

    # Layout

    @property
    def row_height(self) -> float:
        room = (self.height() - HEADER_HEIGHT) / max(1, len(self.data.rows))
        return max(MIN_ROW_HEIGHT, min(MAX_ROW_HEIGHT, room))

    def row_at(self, y: float) -> int | None:
        index = int((y - HEADER_HEIGHT) // self.row_height)
        return index if y >= HEADER_HEIGHT and index < len(self.data.rows) else None

    def _text_px(self) -> int:
        return 12 if self.row_height >= 20 else 11 if self.row_height >= 17 else 10

    def layout_columns(self) -> list[tuple[int, QRectF, QRectF]]:
        """Return (column index, curve rectangle, number rectangle) for each column that fits; the rectangles
        are in the header row."""
        px = self._text_px()
        mono, plain = QFontMetricsF(chart_font(px, mono=True)), QFontMetricsF(chart_font(px))
        names = QFontMetricsF(chart_font(px, bold=True))
        labels = [names.horizontalAdvance(row.label) + 14 * row.is_mig_instance for row in self.data.rows]
        left = max([60.0, *labels]) + 14
        title = QFontMetricsF(chart_font(10))
        widths = [
            max(
                (plain if column.is_text else mono).horizontalAdvance(column.widest) + 2,
                title.horizontalAdvance(column.title) + 2 if not column.weight else 0,
            )
            for column in self._columns
        ]
        visible = list(range(len(self._columns)))
        while len(visible) > 1:
            curves = sum(_MIN_CURVE_WIDTH + 6 for index in visible if self._columns[index].weight)
            if left + sum(widths[index] + _GAP for index in visible) + curves <= self.width():
                break
            visible.remove(min(visible, key=lambda index: (self._columns[index].importance, -index)))
        room = self.width() - left - sum(widths[index] + _GAP for index in visible)
        weights = sum(self._columns[index].weight for index in visible) or 1
        texts = [index for index in visible if self._columns[index].is_text]
        columns = []
        for index in visible:
            column = self._columns[index]
            share = max(0.0, room * column.weight / weights - 6) if column.weight else 0.0
            if not column.weight and texts and not any(self._columns[i].weight for i in visible):
                # Without curves, the text columns share the room.
                share = room / len(texts)
            curve = QRectF(left, 0, share, HEADER_HEIGHT)
            number_left = left + share + (6 if share else 0)
            columns.append((index, curve, QRectF(number_left, 0, widths[index], HEADER_HEIGHT)))
            left = number_left + widths[index] + _GAP
        return columns

    # Painting

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        columns = self.layout_columns()
        self._paint_header(painter, columns)
        for index, row in enumerate(self.data.rows):
            top = HEADER_HEIGHT + index * self.row_height
            self._paint_row(painter, columns, row, QRectF(0, top, self.width(), self.row_height))
        if self.data.rows:
            for index, curve, _ in columns:
                self._paint_curves(painter, index, curve)

    def _paint_header(self, painter: QPainter, columns: Sequence[tuple[int, QRectF, QRectF]]) -> None:
        for index, curve, number in columns:
            column = self._columns[index]
            is_left = bool(curve.width()) or column.is_text
            # A left-aligned title may extend beyond its column.
            box = (curve.united(number) if curve.width() else number).adjusted(0, 0, 30 * is_left, -2)
            paint_text(painter, box, column.title, self._colors.axis, 10, LEFT if is_left else RIGHT)

    def _paint_row(
        self, painter: QPainter, columns: Sequence[tuple[int, QRectF, QRectF]], row: MetricRow, box: QRectF
    ) -> None:
        colors, px = self._colors, self._text_px()
        is_selected = row.uuid == self.selected
        if is_selected:
            painter.fillRect(box, colors.track)
            painter.fillRect(QRectF(0, box.top(), 2, box.height()), colors.rest)
        if is_selected and self.hasFocus():
            painter.setPen(QPen(self._theme.color("focusBorder"), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box.adjusted(0.5, 0.5, -0.5, -0.5))
        ink = colors.muted if row.is_lost else colors.lead_text if row.is_lead else colors.foreground
        label = box.adjusted(20 if row.is_mig_instance else 6, 0, 0, 0)
        paint_text(painter, label, row.label, ink, px, bold=not row.is_mig_instance)
        if row.is_lost:
            room = box.translated(columns[0][1].left(), 0)
            paint_text(painter, room, row.note, colors.error, px)
            return
        for index, _, number in columns:
            cell, ink = row.cells[index], colors.tone_color(row.cells[index].tone)
            where = QRectF(number.left(), box.top(), number.width(), box.height())
            if self._columns[index].is_text:
                if index == columns[-1][0]:
                    where.setRight(max(where.right(), self.width() - 4))
                paint_text(painter, where, cell.text, ink, px, elide=Qt.TextElideMode.ElideRight)
            else:
                paint_text(painter, where, cell.text, ink, px, RIGHT, mono=True)

    def _paint_curves(self, painter: QPainter, index: int, curve: QRectF) -> None:
        """Paint all curves of a column from the column's cached image, which is redrawn only on every second
        update, because a curve changes little between updates."""
        ratio = self.devicePixelRatioF()
        box_height = self.row_height - 4
        width, height = round(curve.width() * ratio), round(box_height * ratio)
        if width < 2 or height < 2:
            return
        size = (width, height)
        cached = self._images.get(index)
        if cached is None or cached[0] != size or index % 2 == self._num_updates % 2:
            cached = self._images[index] = (size, self._make_curve_image(index, width, height))
        image = cached[1]
        for row_index, row in enumerate(self.data.rows):
            if not row.is_lost:
                top = HEADER_HEIGHT + row_index * self.row_height + 2
                box = QRectF(curve.left(), top, curve.width(), box_height)
                painter.drawImage(box, image, QRectF(0, row_index * height, width, height))

    def _make_curve_image(self, index: int, width: int, height: int) -> QImage:
        x0, x1 = self.data.x_range
        cells = [row.cells[index] for row in self.data.rows]
        levels = np.stack([hold_values(cell.curve, x0, x1, cell.hold_s, width) / cell.top for cell in cells])
        lines, fills = zip(*(self._colors.curve_colors(cell.tone) for cell in cells), strict=True)
        return area_image(levels, height, lines, fills, self._colors.track)

    # Selection

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.row_at(event.position().y())
        uuid = "" if index is None else self.data.rows[index].uuid
        self.select("" if uuid == self.selected else uuid)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        index = self.row_at(event.position().y())
        if index is not None:
            self.select(self.data.rows[index].uuid)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        uuids = [row.uuid for row in self.data.rows]
        at = uuids.index(self.selected) if self.selected in uuids else None
        key = event.key()
        if key in (Qt.Key.Key_Up, Qt.Key.Key_Down) and uuids:
            step = 1 if key == Qt.Key.Key_Down else -1
            # Without a selection, start before the first or after the last row.
            start = -1 if step > 0 else len(uuids)
            self.select(uuids[max(0, min(len(uuids) - 1, (start if at is None else at) + step))])
        elif key == Qt.Key.Key_Escape and at is not None:
            self.select("")
        else:
            super().keyPressEvent(event)

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the value under the pointer and the meaning of the cell; for the header, the meaning of the
        column."""
        for index, curve, number in self.layout_columns():
            if curve.left() <= x <= number.right():
                row = self.row_at(y)
                column = self._columns[index]
                if row is None:
                    return f"{column.title}: {column.meaning}" if column.meaning else column.title
                cell = self.data.rows[row].cells[index]
                at = (x - curve.left()) / max(1.0, curve.width())
                # From 1 on, the pointer is on the number.
                then = self._value_text(cell, at) if cell.curve is not None and at < 1 else ""
                return "\n".join(filter(None, (then, cell.tooltip or column.meaning)))
        row = self.row_at(y)
        return "" if row is None else self.data.rows[row].note

    def _value_text(self, cell: MetricCell, share: float) -> str:
        """Return the curve's value at `share`, a fraction of the curve's width, preceded by the time there
        relative to the curve's right end."""
        x0, x1 = self.data.x_range
        at, within_s = x0 + share * (x1 - x0), (x1 - x0) / 100
        value = value_at(cell.curve, at, cell.hold_s, within_s)
        return (
            f"{ago_label(round(at - x1))}: {tr('not known') if value is None else cell.format_value(value)}"
        )


def _data_shape(data: MetricTableData) -> tuple[list[str], int]:
    """Return the UUIDs of the rows and the length of the x range; if either changes, cached curve images must
    be redrawn."""
    x0, x1 = data.x_range
    return [row.uuid for row in data.rows], round(x1 - x0)
