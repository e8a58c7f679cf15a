"""Layout of a step drawing: a row per device, and a gutter between rows for point-to-point transfers.

Blocks that would be too thin to see are merged, and so are adjacent arrows; a merged mark represents several
operations. step_drawing.py paints the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF

from rankdeck.base.units import format_bytes
from rankdeck.run.movement import Interval, Timeline, Transfer
from rankdeck_app.widgets.chart_colors import IDLE, phase_label
from rankdeck_app.widgets.device_rows import DeviceRows
from rankdeck_app.widgets.painting import chart_font

MIN_BLOCK_PX = 2.0
"""Width in pixels below which adjacent blocks are merged."""
_MIN_ARROW_SPACING_PX = 4.0
_ADJACENT_PX = 1.0
_MIN_LABELLED_BYTES = 1024
"""Size in bytes below which a transfer has no label: small transfers only synchronize a few values between
ranks."""
_MIN_LABEL_GUTTER = 18
_MIN_LABEL_SPACING = 26.0
"""Average distance between labels, in pixels, below which only a gutter's first arrow has a label."""
LABEL_PX = 10
_HEIGHTS = ((1, 40, 8), (2, 36, 30), (4, 30, 26), (8, 24, 20))
_MIN_HEIGHTS = (18, 12)


def row_heights(num_rows: int) -> tuple[int, int]:
    """Return the (row, gutter) heights in pixels; rows are taller if there are few devices."""
    heights = ((row, gutter) for max_rows, row, gutter in _HEIGHTS if num_rows <= max_rows)
    return next(heights, _MIN_HEIGHTS)


@dataclass(frozen=True)
class StepDrawingData:
    """A step to draw.

    `labels` names the devices; `formula` is the strategy's formula for its traffic. If there is no timeline,
    `empty_text` is shown; `is_pending` means that a timeline will follow soon. `gap` names the gaps: BUBBLE
    or IDLE.
    """

    labels: tuple[str, ...] = ()
    timeline: Timeline | None = None
    formula: str = ""
    empty_text: str = ""
    gap: str = IDLE
    is_pending: bool = False


@dataclass
class StepMark:
    """A drawn element: a block in a row, the blocks of a collective in all of its rows, or an arrow.

    `operations` are the Intervals or Transfers that the mark represents.
    """

    name: str
    rows: tuple[int, ...]
    operations: list[Interval | Transfer]
    boxes: list[QRectF] = field(default_factory=list)
    arrow: tuple[QPointF, QPointF] | None = None

    @property
    def left(self) -> float:
        return self.arrow[0].x() if self.arrow else self.boxes[0].left()

    @property
    def bounds(self) -> QRectF:
        """The bounding rectangle, including space for an outline."""
        if self.arrow is not None:
            return QRectF(*self.arrow).normalized().adjusted(-8, -8, 8, 8)
        rect = self.boxes[0]
        for box in self.boxes[1:]:
            rect = rect.united(box)
        return rect.adjusted(-3, -3, 3, 3)

    @property
    def num_bytes(self) -> int:
        return sum(transfer.num_bytes for transfer in self.operations if isinstance(transfer, Transfer))

    def distance(self, point: QPointF) -> float:
        """Return the distance to a point in pixels; for a block, 0 inside and a very large number outside."""
        if self.arrow is None:
            return 0.0 if any(box.contains(point) for box in self.boxes) else 1e9
        start, end = self.arrow
        along = end - start
        length = QPointF.dotProduct(along, along) or 1.0
        # Projection of the point on the arrow, limited to its ends.
        share = max(0.0, min(1.0, QPointF.dotProduct(point - start, along) / length))
        off = point - (start + along * share)
        return float(QPointF.dotProduct(off, off) ** 0.5)


@dataclass(frozen=True)
class StepLabel:
    """Label with the bytes of a mark. If `has_background`, the label covers arrows and needs a background
    behind its text."""

    text: str
    box: QRectF
    has_background: bool


class StepLayout:
    """All marks of a drawing in a chart `width` pixels wide. `top` is the top of the rows; `numbers` is the
    width reserved for numbers at the right."""

    def __init__(self, data: StepDrawingData, width: float, top: float, numbers: float) -> None:
        self.row_px, self.gutter_px = row_heights(len(data.labels))
        pitch = self.row_px + self.gutter_px
        room = pitch * max(1, len(data.labels))
        self.rows = DeviceRows(data.labels, width, room, max_row_height=pitch, number_width=numbers, top=top)
        self._left, self._width, self._pitch = self.rows.plot.left(), self.rows.plot.width(), pitch
        self._top = self.rows.plot.top() + self.gutter_px / 2
        self.blocks: list[StepMark] = []
        self.gaps: list[StepMark] = []
        self.collectives: list[StepMark] = []
        self.arrows: list[StepMark] = []
        if data.timeline is not None:
            for index, intervals in enumerate(data.timeline.intervals):
                self._layout_row(index, intervals, data.gap)
            self._layout_lines(data.timeline.lines)

    @cached_property
    def labels(self) -> list[StepLabel]:
        """Labels of collectives (above the rows) and of arrows (in the last gutter that an arrow crosses)."""
        metrics = QFontMetricsF(chart_font(LABEL_PX))
        plot, large = self.rows.plot, []

        def label(text: str, left: float, middle: float, ground: bool) -> StepLabel:
            width = metrics.horizontalAdvance(text) + 1
            return StepLabel(
                text, QRectF(left if ground else left - width / 2, middle - 7, width, 14), ground
            )

        for mark in self.collectives:
            text, x = f"{phase_label(mark.name)} {format_bytes(mark.num_bytes)}", mark.boxes[0].center().x()
            large.append((mark.num_bytes, label(text, x, plot.top() - 9, False)))
        gutters: dict[float, list[tuple[int, StepLabel]]] = {}
        for mark in self.arrows if self.gutter_px >= _MIN_LABEL_GUTTER else ():
            assert mark.arrow is not None
            start, end = mark.arrow
            # The label is in the middle of the gutter before the arrow's end.
            side = self.gutter_px / 2 * (1 if start.y() < end.y() else -1)
            x = end.x() - (end.x() - start.x()) * side / ((end.y() - start.y()) or 1.0)
            arrow_label = label(format_bytes(mark.num_bytes), x + 5, end.y() - side, True)
            gutters.setdefault(end.y() - side, []).append((mark.num_bytes, arrow_label))
        placed_labels: list[StepLabel] = []
        for line in (large, *gutters.values()):
            candidates = [candidate for candidate in line if candidate[0] >= _MIN_LABELLED_BYTES]
            lefts = sorted(candidate[1].box.left() for candidate in candidates)
            # Too dense for labels: keep only the first one.
            if line is not large and lefts and lefts[-1] - lefts[0] < _MIN_LABEL_SPACING * (len(lefts) - 1):
                candidates = [candidate for candidate in candidates if candidate[1].box.left() == lefts[0]][
                    :1
                ]
            placed_labels += _fit_labels(candidates, plot.left(), plot.right())
        return placed_labels

    @property
    def marks(self) -> list[StepMark]:
        """All marks except gaps."""
        return [*self.blocks, *self.collectives, *self.arrows]

    @property
    def has_merged_marks(self) -> bool:
        """Whether some marks represent several operations."""
        return any(len(mark.operations) > 1 for mark in self.marks)

    def marks_in_row(self, row: int) -> list[StepMark]:
        """Return the marks of a device from left to right."""
        return sorted((mark for mark in self.marks if row in mark.rows), key=lambda mark: mark.left)

    def mark_at(self, point: QPointF, reach: float) -> StepMark | None:
        """Return the mark at a point; an arrow within `reach` pixels takes priority over a block."""
        near = [mark for mark in self.arrows if mark.distance(point) <= reach]
        if near:
            return min(near, key=lambda mark: mark.distance(point))
        under = [*self.collectives, *self.blocks, *self.gaps]
        return next((mark for mark in under if mark.distance(point) <= 0), None)

    def to_x(self, share: float) -> float:
        return self._left + share * self._width

    def box(self, row: int, start: float, end: float) -> QRectF:
        left, width = self._left + start * self._width, (end - start) * self._width
        return QRectF(left, self._top + row * self._pitch, width, self.row_px)

    def _layout_row(self, row: int, intervals: Sequence[Interval], gap: str) -> None:
        free = 0.0
        for interval in intervals:
            box = self.box(row, interval.start, interval.end)
            last = self.blocks[-1] if self.blocks and self.blocks[-1].rows == (row,) else None
            is_thin = last is not None and max(last.boxes[0].width(), box.width()) < MIN_BLOCK_PX
            if last is not None and is_thin and box.left() - last.boxes[0].right() < _ADJACENT_PX:
                last.boxes[0].setRight(box.right())
                last.operations.append(interval)
                last.name = _longest_name(last.operations)
            else:
                self.blocks.append(StepMark(interval.operation.name, (row,), [interval], [box]))
            if self.to_x(interval.start) - self.to_x(free) >= _ADJACENT_PX:
                self.gaps.append(StepMark(gap, (row,), [], [self.box(row, free, interval.start)]))
            free = interval.end
        if self.to_x(1.0) - self.to_x(free) >= _ADJACENT_PX:
            self.gaps.append(StepMark(gap, (row,), [], [self.box(row, free, 1.0)]))

    def _layout_lines(self, lines: Sequence[Transfer]) -> None:
        # Only transfers of the same name between the same devices are merged.
        newest: dict[tuple[object, ...], StepMark] = {}
        for line in lines:
            key = (line.name, line.source, line.target, line.group)
            before = newest.get(key)
            if before is not None and self.to_x(line.left) - before.left < _MIN_ARROW_SPACING_PX:
                # A merged collective extends to the end of its last part.
                if before.arrow is None and self.to_x(line.at) > before.boxes[0].right():
                    for box in before.boxes:
                        box.setRight(self.to_x(line.at))
                before.operations.append(line)
                continue
            newest[key] = mark = StepMark(line.name, line.members, [line])
            if line.source is not None and line.target is not None:
                mark.arrow = self._make_arrow(line, line.source, line.target)
                self.arrows.append(mark)
            else:
                mark.boxes = [self.box(row, line.left, line.at) for row in line.group]
                self.collectives.append(mark)

    def _make_arrow(self, line: Transfer, source: int, target: int) -> tuple[QPointF, QPointF]:
        start, end = self.box(source, line.left, line.left), self.box(target, line.at, line.at)
        if source < target:
            return QPointF(start.left(), start.bottom()), QPointF(end.left(), end.top())
        return QPointF(start.left(), start.top()), QPointF(end.left(), end.bottom())


def _longest_name(operations: Sequence[Interval | Transfer]) -> str:
    """Return the name whose operations take the most time in total; transfers are not counted."""
    totals: dict[str, float] = {}
    for interval in operations:
        if isinstance(interval, Interval):
            totals[interval.operation.name] = (
                totals.get(interval.operation.name, 0.0) + interval.end - interval.start
            )
    return max(totals, key=lambda name: totals[name])


def _fit_labels(labels: Sequence[tuple[int, StepLabel]], left: float, right: float) -> Iterator[StepLabel]:
    """Yield the labels that fit on a line from `left` to `right`; `labels` are (weight, label) pairs, and
    heavier labels take precedence."""
    taken: list[tuple[float, float]] = []
    for _, label in sorted(labels, key=lambda item: -item[0]):
        box = label.box
        # A label at an edge moves inside before it is left out.
        box.moveLeft(max(left, min(right - box.width(), box.left())))
        if box.left() >= left and all(box.left() >= end + 8 or box.right() + 8 <= at for at, end in taken):
            taken.append((box.left(), box.right()))
            yield label
