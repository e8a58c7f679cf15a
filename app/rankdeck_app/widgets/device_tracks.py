"""Everything about one device over time: small plots on one time axis, each with its number now.

Readings are drawn as they were read, as steps; a dashed line is a limit; a mark is something that happened
(an XID error, lost, back).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSize
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent, QPen

from rankdeck.run.series import Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import CENTER, LEFT, RIGHT, chart_font, dashed_line, paint_text
from rankdeck_app.widgets.time_words import ago_label
from rankdeck_app.widgets.tracks import area_image, held, value_at

AXIS_HEIGHT = 14
_GAP = 14.0
_HEAD = 15.0
_COLUMNS = 2
_LEAST_PLOT = 34


@dataclass(frozen=True)
class TrackLimit:
    """A dashed line; `is_hard` is a wall (capacity, power limit), else it is a memory (the peak)."""

    value: float
    is_hard: bool = True


@dataclass(frozen=True)
class TrackMark:
    """Something that happened at `at_s`."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Track:
    """A plot from 0 to `top`; `second` is a fainter curve on the same scale. `tone` as in metric_table.py."""

    title: str
    text: str
    curve: Series | None
    top: float
    hold_s: float = 1.5
    second: Series | None = None
    limits: Sequence[TrackLimit] = ()
    marks: Sequence[TrackMark] = ()
    tone: str = ""
    in_words: Callable[[float], str] = str
    """A value of the curve."""


@dataclass(frozen=True, eq=False)
class TracksFigure:
    """All tracks of a device. Never equal to another: the series grow in their places."""

    tracks: Sequence[Track] = ()
    x_range: tuple[float, float] = (0.0, 60.0)
    is_old: bool = False


class DeviceTracks(Chart[TracksFigure]):
    """The plots of one device."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, TracksFigure(), tr("Readings of one device over time"))

    def describe(self) -> str:
        return "; ".join(f"{track.title}: {track.text}" for track in self.figure.tracks)

    @property
    def _num_rows(self) -> int:
        return max(1, -(-len(self.figure.tracks) // _COLUMNS))

    def sizeHint(self) -> QSize:
        return QSize(600, 240)

    def minimumSizeHint(self) -> QSize:
        return QSize(300, int(self._num_rows * (_LEAST_PLOT + _HEAD)) + AXIS_HEIGHT)

    def box_of(self, index: int) -> QRectF:
        """Where a track stands."""
        width = (self.width() - _GAP * (_COLUMNS - 1)) / _COLUMNS
        height = (self.height() - AXIS_HEIGHT) / self._num_rows
        column, row = index // self._num_rows, index % self._num_rows
        return QRectF(column * (width + _GAP), row * height, width, height)

    def tooltip_at(self, x: float, y: float) -> str:
        """The value at the moment under the pointer."""
        x0, x1 = self.figure.x_range
        for index, track in enumerate(self.figure.tracks):
            box = self.box_of(index)
            if box.contains(x, y):
                at = x0 + (x - box.left()) / box.width() * (x1 - x0)
                value = value_at(track.curve, at, track.hold_s, (x1 - x0) / box.width())
                words = tr("not known") if value is None else track.in_words(value)
                return f"{track.title}, {ago_label(round(at - x1))}: {words}"
        return ""

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        width = self.box_of(0).width()
        for index, track in enumerate(self.figure.tracks):
            self._paint_track(painter, track, self.box_of(index))
        for column in range(_COLUMNS):
            self._paint_axis(
                painter, QRectF(column * (width + _GAP), self.height() - AXIS_HEIGHT, width, AXIS_HEIGHT)
            )

    def _paint_track(self, painter: QPainter, track: Track, box: QRectF) -> None:
        colors, old = self._colors, self.figure.is_old
        head = QRectF(box.left(), box.top(), box.width(), _HEAD)
        paint_text(painter, head, track.title, colors.muted, 11)
        ink = colors.muted if old else colors.of_tone(track.tone)
        paint_text(painter, head, track.text, ink, 11, RIGHT, bold=track.tone != "muted", mono=True)
        plot = QRectF(box.left(), box.top() + _HEAD, box.width(), box.height() - _HEAD - 5)
        self._paint_curve(painter, track, plot)
        self._paint_limits(painter, track, plot)

    def _paint_curve(self, painter: QPainter, track: Track, plot: QRectF) -> None:
        colors, ratio = self._colors, self.devicePixelRatioF()
        width, height = round(plot.width() * ratio), round(plot.height() * ratio)
        if width < 2 or height < 2:
            return
        line, fill = colors.of_curve(track.tone)
        top = max(track.top, 1e-9)
        x0, x1 = self.figure.x_range
        levels, second = (
            held(series, x0, x1, track.hold_s, width)[None, :] / top for series in (track.curve, track.second)
        )
        line = colors.muted if self.figure.is_old else line
        image = area_image(levels, height, [line], [fill], colors.track, (second, colors.axis))
        painter.drawImage(plot, image)

    def _paint_limits(self, painter: QPainter, track: Track, plot: QRectF) -> None:
        for limit in track.limits:
            if 0 < limit.value <= track.top:
                painter.setPen(dashed_line(self._colors.capacity if limit.is_hard else self._colors.muted))
                y = plot.bottom() - plot.height() * limit.value / track.top
                painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        x0, x1 = self.figure.x_range
        metrics, ink, taken = QFontMetricsF(chart_font(10)), self._colors.lead_text, plot.left()
        for mark in track.marks:
            if x0 <= mark.at_s <= x1:
                x = plot.left() + plot.width() * (mark.at_s - x0) / (x1 - x0)
                painter.setPen(QPen(ink, 1))
                painter.drawLine(QPointF(x, plot.top()), QPointF(x, plot.bottom()))
                width = metrics.horizontalAdvance(mark.text)
                left = x + 3 if x + 3 + width <= plot.right() else x - 3 - width
                if left >= taken:
                    paint_text(painter, QRectF(left, plot.top(), width + 2, 13), mark.text, ink, 10)
                    taken = left + width + 6

    def _paint_axis(self, painter: QPainter, box: QRectF) -> None:
        x0, x1 = self.figure.x_range
        middle, end = f"-{span_words((x1 - x0) / 2)}", f"-{span_words(x1 - x0)}"
        for align, text in ((LEFT, end), (CENTER, middle), (RIGHT, tr("now"))):
            paint_text(painter, box, text, self._colors.axis, 10, align)


def span_words(seconds: float) -> str:
    """'60 s', '10 min', '1 h', '2.5 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.2g} h"
