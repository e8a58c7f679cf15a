"""Chart of one sampled step: a row per device, a box per phase, with idle time left blank.

A pipeline shows its schedule with numbered microbatches and a hatched bubble. A phase that overlaps another
phase (an all-reduce during the backward pass) is a strip along the bottom of its row. Phases are blue or
grey, because no phase is a problem by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from PySide6.QtCore import QPointF, QRectF, QSize
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent

from rankdeck.base.units import format_bytes
from rankdeck.run.anatomy import PHASES, Span
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import UNKNOWN, Chart, LegendEntry, layout_legend, paint_legend_line
from rankdeck_app.widgets.chart_colors import (
    BUBBLE,
    IDLE,
    gap_brushes,
    phase_color,
    phase_label,
    text_color_on,
)
from rankdeck_app.widgets.device_rows import DeviceRows, preferred_height
from rankdeck_app.widgets.painting import CENTER, chart_font, paint_text
from rankdeck_app.widgets.plot_axes import round_up

AXIS_HEIGHT = 15
LEGEND_HEIGHT = 17
_OVERLAP_SHARE = 0.36
# Phases that miss each other by less count as adjacent.
_TOLERANCE_S = 2e-6
_VALUE_WIDTH = 40.0
_TICK_WIDTH = 64.0
_MIN_TICK_WIDTH = 44.0
_MIN_ROW_HEIGHT = 5.0


@dataclass(frozen=True)
class AnatomyRow:
    """One device and its phases, ordered by start time."""

    label: str
    spans: Sequence[Span] = ()
    host: str = ""


@dataclass(frozen=True)
class AnatomyData:
    """Phases of every device in the step from `start_s` to `end_s`.

    If `is_pipeline` is True, gaps count as pipeline bubbles. If `is_over` is True, no further step will be
    sampled.
    """

    rows: Sequence[AnatomyRow] = ()
    start_s: float = 0.0
    end_s: float = 0.0
    is_pipeline: bool = False
    is_over: bool = False

    @property
    def phases(self) -> list[str]:
        """Names of the phases that occur, in the order in which a step runs them; unknown names follow
        alphabetically."""
        names = {span.name for row in self.rows for span in row.spans}
        return [name for name in PHASES if name in names] + sorted(names - set(PHASES))


@dataclass
class _PhaseBox:
    """A phase or gap with its rectangle in the chart."""

    rect: QRectF
    span: Span
    row: int
    is_overlapped: bool = False


@dataclass
class _Layout:
    rows: DeviceRows
    boxes: list[_PhaseBox] = field(default_factory=list)
    gaps: list[_PhaseBox] = field(default_factory=list)
    busy: list[float | None] = field(default_factory=list)


class StepAnatomyChart(Chart[AnatomyData]):
    """Chart of the phases of 1 to 16 devices."""

    def __init__(self, theme: Theme) -> None:
        self._layout: _Layout | None = None
        super().__init__(theme, AnatomyData(), tr("Phases of the last sampled step, per device"))

    def relayout(self) -> None:
        self._layout = None

    def describe(self) -> str:
        return ", ".join(
            tr("{device}: unknown", device=row.label)
            if busy is None
            else tr("{device}: {busy:.0f} % busy", device=row.label, busy=100 * busy)
            for row, busy in zip(self.data.rows, self._get_layout().busy, strict=True)
        )

    def sizeHint(self) -> QSize:
        rows = preferred_height(len(self.data.rows))
        return QSize(420, max(90, rows + AXIS_HEIGHT + LEGEND_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, max(60, int(4.5 * len(self.data.rows)) + AXIS_HEIGHT))

    @property
    def _legend_height(self) -> int:
        """Height of the legend in pixels; 0 if the legend would make the rows too thin. Tooltips still name
        every phase."""
        room = self.height() - AXIS_HEIGHT - LEGEND_HEIGHT - 4
        return LEGEND_HEIGHT if room >= _MIN_ROW_HEIGHT * len(self.data.rows) else 0

    # -- layout --

    def _get_layout(self) -> _Layout:
        if self._layout is None:
            self._layout = self._make_layout()
        return self._layout

    def _make_layout(self) -> _Layout:
        data = self.data
        labels = [row.label for row in data.rows]
        room = self.height() - AXIS_HEIGHT - self._legend_height - 4
        hosts = [row.host for row in data.rows]
        rows = DeviceRows(
            labels, self.width(), room, max_row_height=64.0, number_width=_VALUE_WIDTH, hosts=hosts
        )
        layout = _Layout(rows)
        span_s = data.end_s - data.start_s
        for index, row in enumerate(data.rows):
            if span_s <= 0 or not row.spans:
                layout.busy.append(None)
            else:
                self._layout_row(layout, index, row, rows.plot.width() / span_s)
        return layout

    def _layout_row(self, layout: _Layout, index: int, row: AnatomyRow, per_second: float) -> None:
        data = self.data
        gap = 3.0 if layout.rows.row_height >= 12 else 1.0
        row_box = layout.rows.row(index).adjusted(0, gap / 2, 0, -gap / 2)

        def box(start_s: float, end_s: float, span: Span) -> _PhaseBox:
            left = row_box.left() + (start_s - data.start_s) * per_second
            width = (end_s - start_s) * per_second
            return _PhaseBox(QRectF(left, row_box.top(), width, row_box.height()), span, index)

        free_s, idle_s = data.start_s, 0.0
        for span in row.spans:
            start_s, end_s = max(span.start_s, data.start_s), min(span.end_s, data.end_s)
            if end_s <= start_s:
                continue
            placed = box(start_s, end_s, span)
            placed.is_overlapped = span.start_s < free_s - _TOLERANCE_S
            if placed.is_overlapped:
                placed.rect.setTop(row_box.top() + row_box.height() * (1 - _OVERLAP_SHARE))
            elif start_s > free_s + _TOLERANCE_S:
                idle_s += start_s - free_s
                layout.gaps.append(box(free_s, start_s, Span(self._gap_name, free_s, start_s - free_s)))
            layout.boxes.append(placed)
            # An overlapping phase may end before the phase that it overlaps.
            free_s = max(free_s, end_s)
        if data.end_s > free_s + _TOLERANCE_S:
            idle_s += data.end_s - free_s
            layout.gaps.append(box(free_s, data.end_s, Span(self._gap_name, free_s, data.end_s - free_s)))
        layout.busy.append(1 - idle_s / (data.end_s - data.start_s))

    @property
    def _gap_name(self) -> str:
        return BUBBLE if self.data.is_pipeline else IDLE

    # -- painting --

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        layout, muted = self._get_layout(), self._colors.muted
        layout.rows.paint_hosts(painter, muted, self._colors.axis)
        for index, busy in enumerate(layout.busy):
            number = UNKNOWN if busy is None else f"{100 * busy:.0f}%"
            layout.rows.paint_row_texts(painter, index, muted, (number, muted), bold=False)
        for gap in layout.gaps:
            for brush in gap_brushes(self._colors, self._gap_name):
                painter.fillRect(gap.rect, brush)
        for box in layout.boxes:
            self._paint_box(painter, box)
        if layout.boxes:
            self._paint_axis(painter, layout.rows.plot)
            if self._legend_height:
                [line] = layout_legend(self._legend(), self.width())
                paint_legend_line(painter, line, self.height() - LEGEND_HEIGHT / 2, muted)
        else:
            text = tr("No step was sampled") if self.data.is_over else tr("No step sampled yet")
            below = QRectF(0, layout.rows.plot.bottom(), self.width(), AXIS_HEIGHT)
            paint_text(painter, below, text, muted, 11, CENTER)

    def _paint_box(self, painter: QPainter, box: _PhaseBox) -> None:
        color = phase_color(self._colors, box.span.name)
        where = QRectF(box.rect)
        if where.width() > 4:
            where.setWidth(where.width() - 1)  # a hairline between neighbours
        elif where.width() < 1:
            where.setWidth(1)
        if box.is_overlapped:
            # A margin in the card's colour separates the strip from the phase that it overlaps.
            painter.fillRect(where.adjusted(-1, -1.5, 1, 0), self._colors.card)
        painter.fillRect(where, color)
        number = box.span.microbatch
        if number is None or where.height() < 11:
            return
        px, text = 10 if where.height() < 16 else 11, str(number)
        if QFontMetricsF(chart_font(px)).horizontalAdvance(text) + 4 <= where.width():
            paint_text(painter, where, text, text_color_on(color), px, CENTER)

    def _paint_axis(self, painter: QPainter, strip: QRectF) -> None:
        span_s = self.data.end_s - self.data.start_s
        tick_s = round_up(span_s * _TICK_WIDTH / strip.width())
        finer_s = round_up(tick_s / 2.6)
        if int(span_s / tick_s) < 2 and strip.width() * finer_s / span_s >= _MIN_TICK_WIDTH:
            tick_s = finer_s  # at least three ticks, if their labels fit
        divisor, unit = (1.0, "s") if span_s >= 2 else (1e-3, "ms")
        for index in range(int(span_s / tick_s) + 1):
            middle = strip.left() + strip.width() * index * tick_s / span_s
            where = QRectF(middle - 40, strip.bottom() + 1, 80, AXIS_HEIGHT - 2)
            text = f"{index * tick_s / divisor:g} {unit}" if index else "0"
            paint_text(painter, where, text, self._colors.axis, 10, CENTER)

    def _legend(self) -> list[LegendEntry]:
        """Return legend entries for the phases and for gaps. Their weights ensure that the shortest phases
        are left out first."""
        totals: dict[str, float] = {}
        for row in self.data.rows:
            for span in row.spans:
                totals[span.name] = totals.get(span.name, 0.0) + span.duration_s
        phases = [
            LegendEntry(phase_label(name), [phase_color(self._colors, name)], totals[name])
            for name in self.data.phases
        ]
        return [*phases, LegendEntry(tr(self._gap_name), gap_brushes(self._colors, self._gap_name))]

    # -- tooltips --

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the device, phase, duration and bytes at a point; empty if there is no phase or gap
        there."""
        point = QPointF(x, y)
        layout = self._get_layout()
        # Overlapping strips are painted later, so they are looked up first.
        for boxes in (reversed(layout.boxes), layout.gaps):
            for box in boxes:
                if box.rect.contains(point):
                    return self._box_text(box)
        return ""

    def _box_text(self, box: _PhaseBox) -> str:
        span = box.span
        texts = [self.data.rows[box.row].label, tr(span.name)]
        if span.microbatch is not None:
            texts.append(tr("microbatch {number}", number=span.microbatch))
        if span.stage is not None:
            texts.append(tr("stage {number}", number=span.stage))
        texts.append(f"{_milliseconds(span.duration_s)} ms")
        if span.num_bytes is not None:
            texts.append(format_bytes(span.num_bytes))
        return " · ".join(texts)


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
