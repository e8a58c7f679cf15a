"""Where the blocks and arrows of a step's drawing stand: a row per device with a gutter between rows, in
which what is sent goes from one to the other.

Blocks that would be thinner than they can be seen are put together, and so are arrows beside each other:
a mark then stands for several parts. step_drawing.py paints the marks.
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
"""A block below this is drawn together with its neighbours."""
_MIN_ARROW_SPACING_PX = 4.0
_ADJACENT_PX = 1.0
_MIN_LABELLED_BYTES = 1024
"""Bytes; less is a number that ranks agree on, and would only fill the picture."""
_MIN_LABEL_GUTTER = 18
_MIN_LABEL_SPACING = 26.0
"""Arrows closer than this on average are not labelled but for the first; all in pixels."""
LABEL_PX = 10
_HEIGHTS = ((1, 40, 8), (2, 36, 30), (4, 30, 26), (8, 24, 20))
_MIN_HEIGHTS = (18, 12)


def row_heights(num_rows: int) -> tuple[int, int]:
    """(row, gutter) in pixels: few devices are higher."""
    found = ((row, gutter) for most, row, gutter in _HEIGHTS if num_rows <= most)
    return next(found, _MIN_HEIGHTS)


@dataclass(frozen=True)
class StepDrawingData:
    """`labels` names the devices; `formula` is what the strategy says it sends, `empty_text` what stands in
    the place of a step that is not known, `is_pending` whether it comes soon; `gap` is BUBBLE or IDLE."""

    labels: tuple[str, ...] = ()
    timeline: Timeline | None = None
    formula: str = ""
    empty_text: str = ""
    gap: str = IDLE
    is_pending: bool = False


@dataclass
class StepMark:
    """What is drawn as one thing: a block in a row, a collective's block in each of its rows, or an arrow.
    `parts` are the Intervals or Lines that it stands for."""

    name: str
    rows: tuple[int, ...]
    parts: list[Interval | Transfer]
    boxes: list[QRectF] = field(default_factory=list)
    arrow: tuple[QPointF, QPointF] | None = None

    @property
    def left(self) -> float:
        return self.arrow[0].x() if self.arrow else self.boxes[0].left()

    @property
    def bounds(self) -> QRectF:
        """All of it, with room for an outline."""
        if self.arrow is not None:
            return QRectF(*self.arrow).normalized().adjusted(-8, -8, 8, 8)
        whole = self.boxes[0]
        for box in self.boxes[1:]:
            whole = whole.united(box)
        return whole.adjusted(-3, -3, 3, 3)

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts if isinstance(part, Transfer))

    def distance(self, point: QPointF) -> float:
        """Pixels from a point, 0 inside."""
        if self.arrow is None:
            return 0.0 if any(box.contains(point) for box in self.boxes) else 1e9
        start, end = self.arrow
        along = end - start
        length = QPointF.dotProduct(along, along) or 1.0
        share = max(0.0, min(1.0, QPointF.dotProduct(point - start, along) / length))
        off = point - (start + along * share)
        return float(QPointF.dotProduct(off, off) ** 0.5)


@dataclass(frozen=True)
class StepLabel:
    """Bytes beside a mark. `has_background`: it stands over arrows, which it hides."""

    text: str
    box: QRectF
    has_background: bool


class StepLayout:
    """All marks of a figure in a chart of that width; `top` is where its rows begin."""

    def __init__(self, figure: StepDrawingData, width: float, top: float, numbers: float) -> None:
        self.row_px, self.gutter_px = row_heights(len(figure.labels))
        pitch = self.row_px + self.gutter_px
        room = pitch * max(1, len(figure.labels))
        self.rows = DeviceRows(
            figure.labels, width, room, max_row_height=pitch, number_width=numbers, top=top
        )
        self._left, self._width, self._pitch = self.rows.plot.left(), self.rows.plot.width(), pitch
        self._top = self.rows.plot.top() + self.gutter_px / 2
        self.blocks: list[StepMark] = []
        self.gaps: list[StepMark] = []
        self.collectives: list[StepMark] = []
        self.arrows: list[StepMark] = []
        if figure.timeline is not None:
            for place, intervals in enumerate(figure.timeline.intervals):
                self._layout_row(place, intervals, figure.gap)
            self._layout_lines(figure.timeline.lines)

    @cached_property
    def labels(self) -> list[StepLabel]:
        """Bytes of collectives above the rows, those of arrows in the gutter that they end in."""
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
            side = self.gutter_px / 2 * (1 if start.y() < end.y() else -1)
            x = end.x() - (end.x() - start.x()) * side / ((end.y() - start.y()) or 1.0)
            found = label(format_bytes(mark.num_bytes), x + 5, end.y() - side, True)
            gutters.setdefault(end.y() - side, []).append((mark.num_bytes, found))
        kept: list[StepLabel] = []
        for line in (large, *gutters.values()):
            wanted = [one for one in line if one[0] >= _MIN_LABELLED_BYTES]
            lefts = sorted(one[1].box.left() for one in wanted)
            if line is not large and lefts and lefts[-1] - lefts[0] < _MIN_LABEL_SPACING * (len(lefts) - 1):
                wanted = [one for one in wanted if one[1].box.left() == lefts[0]][:1]
            kept += _fit_labels(wanted, plot.left(), plot.right())
        return kept

    @property
    def marks(self) -> list[StepMark]:
        """Without gaps."""
        return [*self.blocks, *self.collectives, *self.arrows]

    @property
    def has_merged_marks(self) -> bool:
        """Whether some marks stand for several parts."""
        return any(len(mark.parts) > 1 for mark in self.marks)

    def marks_in_row(self, row: int) -> list[StepMark]:
        """The marks of a device from left to right."""
        return sorted((mark for mark in self.marks if row in mark.rows), key=lambda mark: mark.left)

    def mark_at(self, point: QPointF, reach: float) -> StepMark | None:
        """The mark under a point: an arrow within so many pixels before the block below it."""
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
        for one in intervals:
            box = self.box(row, one.start, one.end)
            last = self.blocks[-1] if self.blocks and self.blocks[-1].rows == (row,) else None
            is_thin = last is not None and max(last.boxes[0].width(), box.width()) < MIN_BLOCK_PX
            if last is not None and is_thin and box.left() - last.boxes[0].right() < _ADJACENT_PX:
                last.boxes[0].setRight(box.right())
                last.parts.append(one)
                last.name = _longest_name(last.parts)
            else:
                self.blocks.append(StepMark(one.part.name, (row,), [one], [box]))
            if self.to_x(one.start) - self.to_x(free) >= _ADJACENT_PX:
                self.gaps.append(StepMark(gap, (row,), [], [self.box(row, free, one.start)]))
            free = one.end
        if self.to_x(1.0) - self.to_x(free) >= _ADJACENT_PX:
            self.gaps.append(StepMark(gap, (row,), [], [self.box(row, free, 1.0)]))

    def _layout_lines(self, lines: Sequence[Transfer]) -> None:
        newest: dict[tuple[object, ...], StepMark] = {}
        for line in lines:
            key = (line.name, line.source, line.target, line.group)
            before = newest.get(key)
            if before is not None and self.to_x(line.left) - before.left < _MIN_ARROW_SPACING_PX:
                if before.arrow is None and self.to_x(line.at) > before.boxes[0].right():
                    for box in before.boxes:
                        box.setRight(self.to_x(line.at))
                before.parts.append(line)
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


def _longest_name(parts: Sequence[Interval | Transfer]) -> str:
    """The name that most of the time of some blocks goes by."""
    totals: dict[str, float] = {}
    for one in parts:
        if isinstance(one, Interval):
            totals[one.part.name] = totals.get(one.part.name, 0.0) + one.end - one.start
    return max(totals, key=lambda name: totals[name])


def _fit_labels(labels: Sequence[tuple[int, StepLabel]], left: float, right: float) -> Iterator[StepLabel]:
    """Of (weight, label) in one line those that find room between two edges, the weightiest first."""
    taken: list[tuple[float, float]] = []
    for _, label in sorted(labels, key=lambda one: -one[0]):
        box = label.box
        box.moveLeft(max(left, min(right - box.width(), box.left())))
        if box.left() >= left and all(box.left() >= end + 8 or box.right() + 8 <= at for at, end in taken):
            taken.append((box.left(), box.right()))
            yield label
