"""Memory per device as horizontal bars on a common scale: which device leads, by how much, and what uses its
memory.

Segments are kinds of memory. A dashed line marks the median of the other devices; the part of the lead
device's bar beyond this line is underlined and labelled in bytes, with the ratio at the right. A tick marks
the prediction. Painting 16 rows by hand takes about a millisecond and happens only on a new reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QPainter, QPaintEvent, QPen

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.run.imbalance import Imbalance
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import (
    UNKNOWN,
    Chart,
    LegendEntry,
    PlacedEntry,
    bytes_table,
    layout_legend,
    paint_legend_line,
    paint_tick,
)
from rankdeck_app.widgets.chart_colors import KIND_LABELS, byte_unit, text_color_on
from rankdeck_app.widgets.device_rows import HostLabels, label_width, preferred_height
from rankdeck_app.widgets.painting import (
    CENTER,
    LEFT,
    RIGHT,
    chart_font,
    dashed_pen,
    paint_segments,
    paint_text,
    paint_track,
)

LEGEND_HEIGHT = 18
TALL_ROW_HEIGHT = 11
_MIN_BAR_WIDTH = 84.0
_MIN_BAR_WIDTH_WITH_RATIO = 120.0
_MIN_TEXT_BAR_HEIGHT = 8.0
"""Minimum height of a bar with text in it, in pixels."""
MEDIAN_LABEL, PREDICTED_LABEL = tr_noop("median, others"), tr_noop("predicted")
_MEDIAN_DASHES = (3, 2)
_OVERLAY_ALPHA = 0.6


@dataclass(frozen=True)
class DeviceBar:
    """One row. If the total is unknown, `total_bytes` is None and `missing_text` is shown. The bar is grey if
    `is_stale`.

    The sizes in `by_kind` need not add up to the total; the rest is drawn as one plain segment.
    """

    label: str
    total_bytes: int | None
    by_kind: Mapping[str, int] | None = None
    note: str = ""
    missing_text: str = UNKNOWN
    is_stale: bool = False
    predicted_bytes: int | None = None
    ghost_bytes: int | None = None
    host: str = ""


@dataclass(frozen=True)
class VramBarsData:
    """All bars at one time. If `capacity_bytes` is None, the scale ends at the largest total or prediction.

    `labels` names the kinds in English, in the order of the segments; `ghost` is the label of the ghost bars,
    which show the memory that an alternative configuration would use.
    """

    bars: Sequence[DeviceBar] = ()
    imbalance: Imbalance | None = None
    capacity_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: KIND_LABELS)
    ghost: str = ""

    @cached_property
    def largest_bytes(self) -> int:
        return max((bar.total_bytes or 0 for bar in self.bars), default=0)

    @cached_property
    def scale_bytes(self) -> int:
        predicted = (max(bar.predicted_bytes or 0, bar.ghost_bytes or 0) for bar in self.bars)
        return max(self.capacity_bytes or 0, self.largest_bytes, *predicted, 1)

    @property
    def has_prediction(self) -> bool:
        return any(bar.predicted_bytes is not None for bar in self.bars)

    @property
    def unit(self) -> tuple[int, str]:
        """The (divisor, name) of the unit. It depends on the largest total, not on the capacity, so that
        small totals on a large device are not all shown as "0.1 GiB"."""
        return byte_unit(self.largest_bytes or self.scale_bytes)

    @property
    def notable_imbalance(self) -> Imbalance | None:
        return self.imbalance if self.imbalance is not None and self.imbalance.is_notable else None


class _BarLayout:
    """Layout of a chart's rows, in pixels; `room` is the height that the rows share."""

    def __init__(self, data: VramBarsData, number: str, width: float, room: float) -> None:
        num_rows = max(1, len(data.bars))
        # One or two devices should not have huge bars.
        self.row_height = min(room / num_rows, 72.0)
        self.text_size = 12 if self.row_height >= 13 else 10 if self.row_height >= 10 else 9
        self.unit_px = min(10, self.text_size)
        hosts = [bar.host for bar in data.bars]
        self.host_labels = HostLabels([bar.label for bar in data.bars], hosts, self.row_height)
        self.bar_left = self.host_labels.width + label_width(self.host_labels.names, self.text_size) + 10
        # Measured in bold, which the lead row uses.
        mono = QFontMetricsF(chart_font(self.text_size, bold=True, mono=True))
        # A constant width, so that bars keep their length while numbers change.
        self.number_width = max(mono.horizontalAdvance("8888.8"), mono.horizontalAdvance(number))
        self.unit_width = QFontMetricsF(chart_font(self.unit_px)).horizontalAdvance(data.unit[1]) + 4
        bar_width = width - self.bar_left - self.number_width - self.unit_width - 10
        # In a narrow chart the ratio is left out first, since the stat strip has it too.
        ratio_width = mono.horizontalAdvance("88.8× ▲") + 10 if num_rows > 1 else 0.0
        self.has_ratio = num_rows > 1 and bar_width - ratio_width >= _MIN_BAR_WIDTH_WITH_RATIO
        bar_width -= ratio_width * self.has_ratio
        # If the lead bar nearly fills the scale, its excess is written after the end of the scale, or in the
        # bar.
        widest = "+888.8 MiB" if data.scale_bytes == data.largest_bytes else "+88.8 GiB"
        excess_width = QFontMetricsF(chart_font(11, bold=True)).horizontalAdvance(widest) + 10
        has_room = bar_width * (1 - data.largest_bytes / data.scale_bytes) >= excess_width
        if num_rows < 2 or has_room or bar_width - excess_width < _MIN_BAR_WIDTH:
            excess_width = 0.0
        self.bar_width = max(20.0, bar_width - excess_width)
        self.number_left = self.bar_left + self.bar_width + excess_width + 6
        self.unit_left = self.number_left + self.number_width + 4
        self.ratio_left = self.unit_left + self.unit_width + 6
        self.top = 2 + max(0.0, room - self.row_height * num_rows) / 2
        default_height = self.row_height - 3 if self.row_height < 12 else self.row_height * 0.66
        self.bar_height = max(4.0, min(32.0, default_height))

    def row_at(self, y: float) -> int:
        return int((y - self.top) // self.row_height)


class VramBars(Chart[VramBarsData]):
    """Memory bars of 1 to 16 devices."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, VramBarsData(), tr("Memory per device"))

    def describe(self) -> str:
        return ", ".join(
            tr("{device}: unknown", device=bar.label)
            if bar.total_bytes is None
            else f"{bar.label}: {format_bytes(bar.total_bytes)}"
            for bar in self.data.bars
        )

    def sizeHint(self) -> QSize:
        return QSize(420, max(90, preferred_height(len(self.data.bars)) + 2 * LEGEND_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        return QSize(300, max(60, int(9.2 * len(self.data.bars)) + LEGEND_HEIGHT + 6))

    def _make_layout(self) -> _BarLayout:
        room = self.height() - LEGEND_HEIGHT * len(self._legend_lines()) - 6
        return _BarLayout(self.data, self._format_number(self.data.largest_bytes), self.width(), room)

    def _format_number(self, num_bytes: int) -> str:
        divisor, _ = self.data.unit
        return f"{num_bytes / divisor:.1f}"

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        columns = self._make_layout()
        ink = self._colors
        columns.host_labels.paint(painter, columns.top, columns.row_height, ink.muted, ink.axis)
        for index, bar in enumerate(self.data.bars):
            self._paint_row(painter, columns, index, bar)
        self._paint_median(painter, columns)
        lines = self._legend_lines()
        for index, line in enumerate(lines):
            middle = self.height() - LEGEND_HEIGHT * (len(lines) - index - 0.5) + 2
            paint_legend_line(painter, line, middle, self._colors.muted, px=self._legend_px())

    def _paint_row(self, painter: QPainter, columns: _BarLayout, index: int, bar: DeviceBar) -> None:
        notable = self.data.notable_imbalance
        leads = notable is not None and notable.device == index
        row = QRectF(0, columns.top + index * columns.row_height, self.width(), columns.row_height)
        ink = self._colors.foreground if leads else self._colors.muted
        px = columns.text_size
        named = QRectF(
            columns.host_labels.width, row.y(), columns.bar_left - columns.host_labels.width, row.height()
        )
        paint_text(painter, named, columns.host_labels.names[index], ink, px, bold=leads)
        bar_top = row.y() + (row.height() - columns.bar_height) / 2
        box = QRectF(columns.bar_left, bar_top, columns.bar_width, columns.bar_height)
        paint_track(painter, self._theme, box)
        room = QRectF(columns.number_left, row.y(), columns.number_width, row.height())
        number = bar.missing_text if bar.total_bytes is None else self._format_number(bar.total_bytes)
        ink = self._colors.muted if bar.total_bytes is None or bar.is_stale else self._colors.foreground
        paint_text(painter, room, number, ink, px, RIGHT, bold=leads, mono=True)
        if bar.total_bytes is not None:
            room = QRectF(columns.unit_left, row.y(), columns.unit_width, row.height())
            paint_text(painter, room, self.data.unit[1], self._colors.muted, columns.unit_px)
            self._paint_segments(painter, box, bar, leads)
        self._paint_ghost(painter, box, bar)
        if bar.predicted_bytes is not None:
            paint_tick(painter, self._colors, box, bar.predicted_bytes / self.data.scale_bytes)
        if notable is not None and leads and bar.total_bytes is not None:
            self._paint_excess(painter, columns, box, bar, notable)

    def _paint_segments(self, painter: QPainter, box: QRectF, bar: DeviceBar, leads: bool) -> None:
        assert bar.total_bytes is not None
        scale = box.width() / self.data.scale_bytes
        if bar.is_stale:
            old = QRectF(box.left(), box.top(), bar.total_bytes * scale, box.height())
            painter.fillRect(old, self._colors.kinds["temporary"])
            return
        bytes_by_kind = {kind: (bar.by_kind or {}).get(kind, 0) for kind in self.data.labels}
        segments = (
            (num_bytes * scale, self._kind_color(kind, leads)) for kind, num_bytes in bytes_by_kind.items()
        )
        left = paint_segments(painter, box, segments)
        rest = bar.total_bytes - sum(bytes_by_kind.values())
        if rest > 0:
            painter.fillRect(QRectF(left, box.top(), rest * scale, box.height()), self._colors.rest)

    def _paint_ghost(self, painter: QPainter, box: QRectF, bar: DeviceBar) -> None:
        """Paint the alternative configuration's memory as a frame: memory that it would add is hatched,
        memory that it would save is dimmed."""
        if bar.ghost_bytes is None:
            return
        end = round(box.left() + bar.ghost_bytes * box.width() / self.data.scale_bytes)
        veil = QColor(self._colors.card)
        veil.setAlphaF(_OVERLAY_ALPHA)
        painter.fillRect(QRectF(end, box.top(), max(0.0, box.right() - end), box.height()), veil)
        now = box.left() + (bar.total_bytes or 0) * box.width() / self.data.scale_bytes
        painter.fillRect(QRectF(now, box.top(), max(0.0, end - now), box.height()), self._ghost_brush())
        painter.setPen(QPen(self._colors.foreground, 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(box.left() + 0.5, box.top() - 1.5, end - box.left() - 1, box.height() + 2))

    def _ghost_brush(self) -> QBrush:
        return QBrush(self._colors.foreground, Qt.BrushStyle.BDiagPattern)

    def _kind_color(self, kind: str, leads: bool) -> QColor:
        """Return the colour of a kind: amber for gathered outputs if `leads` is True, because they are why
        the device needs more memory than the others; otherwise, a shade of blue."""
        return self._colors.hot if kind == "gathered" and leads else self._colors.kinds[kind]

    def _paint_excess(
        self, painter: QPainter, columns: _BarLayout, box: QRectF, bar: DeviceBar, lead: Imbalance
    ) -> None:
        scale = box.width() / self.data.scale_bytes
        end = box.left() + (bar.total_bytes or 0) * scale
        painter.setPen(QPen(self._colors.lead, 2))
        below = box.bottom() + min(3.0, (columns.row_height - columns.bar_height) / 2)
        painter.drawLine(QPointF(box.left() + lead.median_bytes * scale + 1, below), QPointF(end - 1, below))
        self._write_excess(painter, columns, box, bar, f"+{format_bytes(lead.excess_bytes)}")
        if lead.ratio is not None and columns.has_ratio:
            room = _row_rect(box, columns, columns.ratio_left, self.width())
            ink, px = self._colors.lead_text, columns.text_size
            paint_text(painter, room, f"{lead.ratio:.1f}× ▲", ink, px, bold=True, mono=True)

    def _write_excess(
        self, painter: QPainter, columns: _BarLayout, box: QRectF, bar: DeviceBar, excess: str
    ) -> None:
        """Write the text `excess` to the right of the bar or, if the text does not fit there, inside the
        amber part of the bar."""
        scale, colors = box.width() / self.data.scale_bytes, self._colors
        by_kind, px = bar.by_kind or {}, min(11, columns.text_size)
        end = box.left() + (bar.total_bytes or 0) * scale
        # The amber part starts after the kinds that are drawn before it.
        before = takewhile(lambda kind: kind != "gathered", self.data.labels)
        hot = box.left() + sum(by_kind.get(kind, 0) for kind in before) * scale
        is_amber = box.height() >= _MIN_TEXT_BAR_HEIGHT and not bar.is_stale
        hot_end = hot + by_kind.get("gathered", 0) * scale if is_amber else hot
        behind = _row_rect(box, columns, end + 8, columns.number_left), colors.lead_text, LEFT
        within = _row_rect(box, columns, hot + 2, hot_end - 2), text_color_on(colors.hot), CENTER
        for size, (room, ink, align) in ((px, behind), (min(px, int(box.height()) + 1), within), (9, within)):
            if QFontMetricsF(chart_font(size, bold=True)).horizontalAdvance(excess) <= room.width():
                paint_text(painter, room, excess, ink, size, align, bold=True)
                return

    def _paint_median(self, painter: QPainter, columns: _BarLayout) -> None:
        imbalance = self.data.imbalance
        if imbalance is None:
            return
        x = columns.bar_left + columns.bar_width * imbalance.median_bytes / self.data.scale_bytes
        painter.setPen(dashed_pen(self._colors.median, _MEDIAN_DASHES))
        bottom = columns.top + columns.row_height * len(self.data.bars)
        # On a pixel's centre, so that the line is sharp.
        painter.drawLine(QPointF(round(x) + 0.5, columns.top - 1), QPointF(round(x) + 0.5, bottom))

    def _is_tight(self) -> bool:
        return self.height() - 2 * LEGEND_HEIGHT - 6 < TALL_ROW_HEIGHT * max(1, len(self.data.bars))

    def _legend_px(self) -> int:
        return 10 if self._is_tight() else 11

    def _legend_lines(self) -> list[list[PlacedEntry]]:
        """Return one or two legend lines. A second line is used only if the rows remain tall enough for their
        names.

        If there is no space for a second line, or if two lines are not enough, the legend has a single line,
        from which the smallest kinds are left out.
        """
        entries, px = self._legend(), self._legend_px()
        lines = [] if self._is_tight() else layout_legend(entries, self.width(), px=px, one_line=False)
        return lines if 0 < len(lines) <= 2 else layout_legend(entries, self.width(), px=px)

    def _legend(self) -> list[LegendEntry]:
        """Return entries for the kinds that take at least 1 % of the scale on some device, then for the lines
        and ghosts."""
        data, leads = self.data, self.data.notable_imbalance is not None
        entries = [
            LegendEntry(tr(label), [self._kind_color(kind, leads)], self._max_kind_bytes(kind))
            for kind, label in data.labels.items()
            if self._max_kind_bytes(kind) >= 0.01 * data.scale_bytes
        ]
        if data.imbalance:
            entries.append(LegendEntry(tr(MEDIAN_LABEL), dashed_pen(self._colors.median, _MEDIAN_DASHES)))
        if data.ghost:
            entries.append(LegendEntry(data.ghost, [self._ghost_brush()]))
        if data.has_prediction:
            entries.append(LegendEntry(tr(PREDICTED_LABEL), QPen(self._colors.foreground)))
        return entries

    def _max_kind_bytes(self, kind: str) -> int:
        return max(((bar.by_kind or {}).get(kind, 0) for bar in self.data.bars), default=0)

    def tooltip_at(self, x: float, y: float) -> str:
        index = self._make_layout().row_at(y)
        # Below the rows is the legend.
        if index >= len(self.data.bars):
            return ", ".join(entry.text for entry in self._legend())
        return self.bar_tooltip(index) if index >= 0 else ""

    def bar_tooltip(self, index: int) -> str:
        """Return the tooltip of one device: its memory by kind."""
        bar = self.data.bars[index]
        if bar.total_bytes is None:
            return tr("{device}: not known yet", device=bar.label)
        by_kind, labels = bar.by_kind or {}, self.data.labels
        kinds = bytes_table((tr(label), by_kind[kind]) for kind, label in labels.items() if by_kind.get(kind))
        note = f"<br>{bar.note}" if bar.note else ""
        lead = self.data.imbalance
        if lead is not None and lead.device == index:
            above = tr("{size} above the median of the others", size=format_bytes(lead.excess_bytes))
            note += f"<br>{above}"
        if bar.predicted_bytes is not None:
            note += f"<br>{prediction_text(bar.total_bytes, bar.predicted_bytes)}"
        if bar.ghost_bytes is not None:
            note += f"<br>{self.data.ghost}: {format_bytes(bar.ghost_bytes)}"
        return f"<b>{bar.label}</b>&nbsp;&nbsp;{format_bytes(bar.total_bytes)}{note}{kinds}"


def _row_rect(box: QRectF, columns: _BarLayout, left: float, right: float) -> QRectF:
    """Return the rectangle from `left` to `right` with the full height of the row that contains the bar
    `box`."""
    return QRectF(left, box.center().y() - columns.row_height / 2, right - left, columns.row_height)


def prediction_text(measured_bytes: int, predicted_bytes: int) -> str:
    """Return a text such as 'predicted 241.8 MiB (+0.3 %)'; the percentage is the prediction's error relative
    to the measurement."""
    size = format_bytes(predicted_bytes)
    if not measured_bytes:
        return tr("predicted {size}", size=size)
    error = 100 * (predicted_bytes / measured_bytes - 1)
    return tr("predicted {size} ({error:+.1f} %)", size=size, error=error)
