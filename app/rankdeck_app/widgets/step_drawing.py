"""Drawing of one step of a strategy: what each device computes, and what moves between devices.

Each device has a row. Blocks are computation. A collective is a block in every row of its group, joined by a
line; a point-to-point transfer is an arrow through the gutter between rows. The total bytes that each device
sends and receives are at the right. The gaps of a pipeline are its bubble, shown hatched. Hovering over a
mark or selecting it with the arrow keys shows its text.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFocusEvent,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
)

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.run.movement import Interval, Transfer
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart, LegendEntry, layout_legend, paint_legend_line
from rankdeck_app.widgets.chart_colors import gap_brushes, phase_color, phase_label, text_color_on
from rankdeck_app.widgets.painting import CENTER, RIGHT, chart_font, paint_text
from rankdeck_app.widgets.step_layout import LABEL_PX, StepDrawingData, StepLayout, StepMark, row_heights

_HEADER_HEIGHT, _LEGEND_HEIGHT, _NOTE_HEIGHT = 18, 20, 16
_EMPTY_HEIGHT = 56
"""Height of the widget in pixels if there is no drawing."""
_HIT_RADIUS_PX = 4.0
_NUM_PENDING_ROWS = 4
_ARROWS_TEXT = tr_noop("↑ sent  ↓ received")
_KEY_STEPS = {
    Qt.Key.Key_Left: (-1, 0), Qt.Key.Key_Right: (1, 0), Qt.Key.Key_Up: (0, -1), Qt.Key.Key_Down: (0, 1),
}  # fmt: skip
_KEY_ENDS = {Qt.Key.Key_Home: 0, Qt.Key.Key_End: -1}


class StepDrawing(Chart[StepDrawingData]):
    """Drawing of a step. `mark_text_changed` carries the text of the hovered or selected mark, or ""."""

    mark_text_changed = Signal(str)

    def __init__(self, theme: Theme) -> None:
        self._layout: StepLayout | None = None
        self._hovered: StepMark | None = None
        self.selected: StepMark | None = None
        self._current_row = 0
        """Index of the device to which the user has moved with the keyboard."""
        super().__init__(theme, StepDrawingData(), tr("Data movement in one step"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)

    def relayout(self) -> None:
        self._layout = self._hovered = self.selected = None

    def describe(self) -> str:
        if self.data.timeline is None:
            return ""
        return ", ".join(
            tr(
                "{device} sends {sent} and receives {received}",
                device=label,
                sent=format_bytes(traffic.sent_bytes),
                received=format_bytes(traffic.received_bytes),
            )
            for label, traffic in zip(self.data.labels, self.data.timeline.traffic(), strict=True)
        )

    def sizeHint(self) -> QSize:
        if not self.data.labels and not self.data.is_pending:
            return QSize(420, _EMPTY_HEIGHT)
        num_rows = len(self.data.labels) or _NUM_PENDING_ROWS
        return QSize(
            420, _HEADER_HEIGHT + num_rows * sum(row_heights(num_rows)) + _LEGEND_HEIGHT + _NOTE_HEIGHT
        )

    def minimumSizeHint(self) -> QSize:
        return QSize(240, self.sizeHint().height())

    def get_layout(self) -> StepLayout:
        if self._layout is None:
            # The widest text that format_bytes returns.
            widest = QFontMetricsF(chart_font(11, mono=True)).horizontalAdvance("↓ 1023.9 MiB")
            numbers = 10 + max(widest, QFontMetricsF(chart_font(10)).horizontalAdvance(tr(_ARROWS_TEXT)))
            self._layout = StepLayout(self.data, self.width(), _HEADER_HEIGHT, numbers)
        return self._layout

    # Painting

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        if self.data.timeline is None:
            room = QRectF(0, 0, self.width(), self.height() if self.data.is_pending else _HEADER_HEIGHT)
            paint_text(painter, room, self.data.empty_text, self._colors.muted, 12, CENTER)
            return
        layout, visible_rect = self.get_layout(), event.rect().toRectF()
        self._paint_row_texts(painter, layout)
        for gap in layout.gaps:
            if gap.boxes[0].intersects(visible_rect):
                for brush in gap_brushes(self._colors, gap.name):
                    painter.fillRect(gap.boxes[0], brush)
        for mark in layout.collectives:
            if mark.bounds.intersects(visible_rect):
                self._paint_connector(painter, mark)
        for mark in layout.blocks:
            if mark.boxes[0].intersects(visible_rect):
                self._paint_block(painter, mark.boxes[0], mark.name, _block_text(mark))
        for mark in layout.collectives:
            for box in mark.boxes:
                self._paint_block(painter, box, mark.name, format_bytes(mark.num_bytes))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ink = QColor(self._colors.foreground)
        ink.setAlphaF(0.9 if layout.gutter_px >= 18 else 0.6)
        self._paint_arrows(
            painter, [mark for mark in layout.arrows if mark.bounds.intersects(visible_rect)], ink
        )
        for label in layout.labels:
            if label.has_background:
                painter.fillRect(label.box.adjusted(-2, 1, 2, -1), self._colors.card)
            paint_text(painter, label.box, label.text, self._colors.foreground, LABEL_PX)
        for mark in {
            id(outlined): outlined for outlined in (self._hovered, self.selected) if outlined is not None
        }.values():
            self._paint_outline(painter, mark)
        self._paint_legend(painter, layout)

    def _paint_row_texts(self, painter: QPainter, layout: StepLayout) -> None:
        """Paint the name of each device and the bytes that it sends and receives."""
        timeline, muted = self.data.timeline, self._colors.muted
        if timeline is None:
            return
        for index, (label, traffic) in enumerate(zip(self.data.labels, timeline.traffic(), strict=True)):
            row = layout.box(index, 0, 1)
            name = QRectF(0, row.top() - 4, row.left() - 8, row.height() + 8)
            paint_text(painter, name, label, muted, 12)
            middle = row.center().y()
            directions = (("↑", traffic.sent_bytes, middle - 14), ("↓", traffic.received_bytes, middle))
            for sign, num_bytes, top in directions:
                room = QRectF(row.right(), top, self.width() - row.right(), 14)
                ink, text = muted if num_bytes else self._colors.axis, f"{sign} {format_bytes(num_bytes)}"
                paint_text(painter, room, text, ink, 11, RIGHT, mono=True)
        room = QRectF(layout.rows.plot.right(), 0, self.width() - layout.rows.plot.right(), _HEADER_HEIGHT)
        paint_text(painter, room, tr(_ARROWS_TEXT), self._colors.axis, 10, RIGHT)

    def _paint_block(self, painter: QPainter, box: QRectF, name: str, text: str) -> None:
        color, where = phase_color(self._colors, name), QRectF(box)
        if where.width() >= 3:
            where.setWidth(where.width() - 1)  # a hairline between neighbours
        where.setWidth(max(where.width(), 1.0))
        painter.fillRect(where, color)
        px = 11 if where.height() >= 16 else 10
        if text and QFontMetricsF(chart_font(px)).horizontalAdvance(text) + 6 <= where.width():
            paint_text(painter, where, text, text_color_on(color), px, CENTER)

    def _paint_connector(self, painter: QPainter, mark: StepMark) -> None:
        """Paint the line that joins the rows of a collective; blocks of other rows cover it."""
        x = mark.boxes[0].center().x()
        painter.setPen(QPen(phase_color(self._colors, mark.name), 1.5))
        painter.drawLine(QPointF(x, mark.boxes[0].top()), QPointF(x, mark.boxes[-1].bottom()))

    def _paint_arrows(
        self, painter: QPainter, marks: Sequence[StepMark], ink: QColor, width: float = 1.2
    ) -> None:
        arrows = [mark.arrow for mark in marks if mark.arrow is not None]
        painter.setPen(QPen(ink, width))
        painter.drawLines([QLineF(*arrow) for arrow in arrows])
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ink)
        # fillPath takes eight times as long for 900 arrow heads as 900 polygons do.
        for start, end in arrows:
            angle = math.atan2(end.y() - start.y(), end.x() - start.x())
            wings = [
                end - QPointF(math.cos(angle + turn) * 6, math.sin(angle + turn) * 6)
                for turn in (-0.42, 0.42)
            ]
            painter.drawPolygon(QPolygonF([end, *wings]))
        painter.setBrush(Qt.BrushStyle.NoBrush)

    def _paint_outline(self, painter: QPainter, mark: StepMark) -> None:
        ink = self._theme.color("focusBorder")
        if mark.arrow is not None:
            self._paint_arrows(painter, [mark], ink, 2.5)
        painter.setPen(QPen(ink, 2))
        for box in mark.boxes:
            painter.drawRect(box.adjusted(-1, -1, 0, 1))

    def _paint_legend(self, painter: QPainter, layout: StepLayout) -> None:
        totals: dict[str, float] = defaultdict(float)
        for mark in layout.blocks:
            totals[mark.name] += mark.boxes[0].width()
        for mark in layout.collectives:
            # + 1, so that even a collective without a visible width has a weight.
            totals[mark.name] += mark.boxes[0].width() + 1
        entries = [
            LegendEntry(phase_label(name), [phase_color(self._colors, name)], weight)
            for name, weight in totals.items()
        ]
        signs: dict[str, list[QBrush | QColor]] = {
            gap.name: gap_brushes(self._colors, gap.name) for gap in layout.gaps
        }
        entries += [LegendEntry(phase_label(name), sign) for name, sign in signs.items()]
        top = layout.rows.plot.bottom()
        [line] = layout_legend(entries, self.width())
        paint_legend_line(painter, line, top + _LEGEND_HEIGHT / 2, self._colors.muted)
        if layout.has_merged_marks:
            note = tr("Items narrower than 2 px are merged; hover to see how many")
            room = QRectF(0, top + _LEGEND_HEIGHT, self.width(), _NOTE_HEIGHT)
            paint_text(painter, room, note, self._colors.axis, 10, elide=Qt.TextElideMode.ElideRight)

    # Mouse and keyboard

    def tooltip_at(self, x: float, y: float) -> str:
        mark = self.get_layout().mark_at(QPointF(x, y), _HIT_RADIUS_PX)
        return "" if mark is None else self.mark_text(mark)

    def mark_text(self, mark: StepMark) -> str:
        return step_mark_text(mark, self.data)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._set_hovered(self.get_layout().mark_at(event.position(), _HIT_RADIUS_PX))

    def leaveEvent(self, event: QEvent) -> None:
        self._set_hovered(None)

    def _set_hovered(self, mark: StepMark | None) -> None:
        if mark is not self._hovered:
            before, self._hovered = self._hovered, mark
            self._update_marks(before, mark)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._select(self.get_layout().mark_at(event.position(), _HIT_RADIUS_PX))

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._select(None)

    def _select(self, mark: StepMark | None) -> None:
        if mark is not self.selected:
            before, self.selected = self.selected, mark
            self._update_marks(before, mark)

    def _update_marks(self, *changed: StepMark | None) -> None:
        active_mark = self._hovered or self.selected
        text = "" if active_mark is None else self.mark_text(active_mark)
        if self.selected is not None:
            self.setAccessibleDescription(self.mark_text(self.selected))
        self.mark_text_changed.emit(text)
        for mark in filter(None, changed):
            self.update(mark.bounds.toAlignedRect())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move the selection along a device's row with Left and Right, and to another device with Up and
        Down; clear it with Escape."""
        key, layout = Qt.Key(event.key()), self.get_layout()
        if key == Qt.Key.Key_Escape and self.selected is not None:
            self._select(None)
            return
        if layout.blocks and key in _KEY_STEPS:
            self._select(self._next_mark(layout, *_KEY_STEPS[key]))
        elif layout.blocks and key in _KEY_ENDS:
            self._select(layout.marks_in_row(self._current_row)[_KEY_ENDS[key]])
        else:
            super().keyPressEvent(event)

    def _next_mark(self, layout: StepLayout, along: int, down: int) -> StepMark:
        here = self.selected
        num_rows = len(self.data.labels)
        # A collective is in several rows; stay in the current one if possible.
        if here is None or self._current_row not in here.rows:
            self._current_row = 0 if here is None else here.rows[0]
        self._current_row = max(0, min(num_rows - 1, self._current_row + down))
        marks = layout.marks_in_row(self._current_row)
        if here is None:
            return marks[0]
        if down:
            return min(marks, key=lambda mark: abs(mark.left - here.left))
        positions = {id(mark): index for index, mark in enumerate(marks)}
        return marks[max(0, min(len(marks) - 1, positions.get(id(here), 0) + along))]


def _block_text(mark: StepMark) -> str:
    """Return the text of a block: its microbatch if it has one, else its phase; empty for merged blocks."""
    interval = mark.operations[0]
    assert isinstance(interval, Interval)
    if len(mark.operations) > 1:
        return ""
    return (
        phase_label(mark.name)
        if interval.operation.microbatch is None
        else str(interval.operation.microbatch)
    )


# Texts of the marks, for tooltips, keyboard selection and screen readers.

# Bytes that each of n devices sends per byte of its input, as the engine counts them.
_RING_FORMULAS: dict[str, tuple[str, Callable[[int], float]]] = {
    "all-reduce": ("2(n-1)/n x {}", lambda n: 2 * (n - 1) / n),
    "all-gather": ("(n-1) x {}", lambda n: n - 1),
    "reduce-scatter": ("(n-1)/n x {}", lambda n: (n - 1) / n),
    "all-to-all": ("(n-1)/n x {}", lambda n: (n - 1) / n),
}


def step_mark_text(mark: StepMark, data: StepDrawingData) -> str:
    """Return a text with a mark's meaning, bytes and devices; for a transfer, also the strategy's formula."""
    first = mark.operations[0] if mark.operations else None
    if isinstance(first, Transfer):
        return "\n".join(filter(None, (_line_text(mark, first, data.labels), data.formula)))
    label = data.labels[mark.rows[0]]
    if len(mark.operations) > 1:
        names = Counter(
            phase_label(interval.operation.name)
            for interval in mark.operations
            if isinstance(interval, Interval)
        )
        return f"{label} · {', '.join(f'{count} x {name}' for name, count in names.items())}"
    texts = [label, phase_label(mark.name)]
    if isinstance(first, Interval):
        operation = first.operation
        texts += [tr("microbatch {number}", number=operation.microbatch)] * (operation.microbatch is not None)
        texts += [tr("stage {number}", number=operation.stage)] * (operation.stage is not None)
        count = _flops_text(operation.flops)
        texts += [tr("{count} floating-point operations", count=count)] * (operation.flops > 0)
    return " · ".join(texts)


def _line_text(mark: StepMark, line: Transfer, labels: tuple[str, ...]) -> str:
    count, size = len(mark.operations), format_bytes(mark.num_bytes)
    what = f"{count} x {phase_label(line.name)}" if count > 1 else phase_label(line.name)
    if line.source is not None and line.target is not None:
        return f"{what} · {labels[line.source]} → {labels[line.target]} · {size}"
    n = len(line.group)
    members = ", ".join(labels[device_index] for device_index in line.group)
    among = tr("among all {n} devices", n=n) if n == len(labels) else tr("among {devices}", devices=members)
    sent = tr("{size} sent by each device", size=size)
    if line.name in _RING_FORMULAS and mark.num_bytes and n > 1:
        ring, share = _RING_FORMULAS[line.name]
        formula = ring.format(format_bytes(round(mark.num_bytes / share(n))))
        sent = tr(
            "{size} sent by each device over a ring: {formula}, n = {n}", size=size, formula=formula, n=n
        )
    return " · ".join((what, among, sent))


def _flops_text(count: int) -> str:
    """Format a number of floating-point operations as a short text such as '1.95 G'."""
    for power, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return str(count)
