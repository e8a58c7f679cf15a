"""Readings over time, drawn as step curves: each value is drawn until the next one follows or until it
becomes stale.

Tables and grids show a hundred of these curves at once. numpy rasterizes all rows of a column in one pass, at
one twentieth of the cost of drawing paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, QSize
from PySide6.QtGui import QColor, QFontMetricsF, QImage, QPainter, QPaintEvent, QPen

from rankdeck.run.series import Floats, Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import CENTER, LEFT, RIGHT, chart_font, dashed_pen, paint_text
from rankdeck_app.widgets.time_text import ago_label


def hold_values(series: Series | None, x0: float, x1: float, hold_s: float, num_columns: int) -> Floats:
    """Return the value at each of `num_columns` pixel columns from `x0` to `x1`; NaN where unknown. A value
    without a successor counts as unknown after `hold_s` seconds, or after 2.5 columns if that is longer.

    If several values fall in one column, the largest is returned.
    """
    levels = np.full(num_columns, np.nan)
    if series is None:
        return levels
    window = series.window(x0, x1, num_columns)
    if not len(window.x):
        return levels
    width_s = (x1 - x0) / num_columns
    # A column shows the last point before its right edge.
    right = x0 + width_s * np.arange(1, num_columns + 1)
    at = np.searchsorted(window.x, right) - 1
    # In a coarse window, points are farther apart than readings.
    age_s = right - width_s - window.x[np.maximum(at, 0)]
    is_fresh = (at >= 0) & (age_s <= max(hold_s, 2.5 * width_s))
    levels[is_fresh] = window.high[at[is_fresh]]
    return levels


def value_at(series: Series | None, at: float, hold_s: float, within_s: float) -> float | None:
    """Return the last value up to the time `at`; None if it is unknown, or older than both `hold_s` seconds
    and 2.5 columns. `within_s` is the width of a column in seconds."""
    if series is None or not len(series):
        return None
    window = series.window(at, at, 64)
    index = int(np.searchsorted(window.x, at, side="right")) - 1
    if index < 0 or at - window.x[index] > max(hold_s, 2.5 * within_s):
        return None
    level = float(window.high[index])
    return level if math.isfinite(level) else None


def area_image(
    levels: NDArray[np.floating],
    height: int,
    lines: Sequence[QColor],
    fills: Sequence[QColor],
    ground: QColor,
    second: tuple[NDArray[np.floating], QColor] | None = None,
) -> QImage:
    """Return an image of curves one below the other, each `height` pixels high.

    `levels` has shape (curves, columns) with values from 0 to 1, NaN where unknown. `lines` and `fills` have
    one colour per curve; `second` is the (levels, colour) of a line drawn behind each curve.
    """
    count, width = levels.shape
    pixels = np.empty((count, height, width), dtype=np.uint32)
    pixels[:] = ground.rgb()
    rows = np.arange(height - 1, -1, -1)[None, :, None]
    if second is not None:
        low, high = _line_span(second[0], height)
        pixels[(rows >= low) & (rows <= high)] = second[1].rgb()
    low, high = _line_span(levels, height)
    below, on = rows < low, (rows >= low) & (rows <= high)
    for index in range(count):
        pixels[index][below[index]] = _blend(fills[index], ground)
        pixels[index][on[index]] = lines[index].rgb()
    return make_image(pixels.reshape(count * height, width))


def make_image(pixels: NDArray[np.uint32]) -> QImage:
    """Return an opaque image from pixels of shape (height, width) with values 0xAARRGGBB."""
    height, width = pixels.shape
    # copy(): the image must not outlive the array whose memory it would borrow.
    return QImage(pixels.tobytes(), width, height, 4 * width, QImage.Format.Format_RGB32).copy()


def _line_span(levels: NDArray[np.floating], height: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the lowest and the highest pixel of each curve's line in every column, as two arrays of shape
    (curves, 1, columns). Where the level is unknown, the lowest pixel is above the highest.

    In each column, the line runs from the previous column's level to the column's own, so it is continuous.
    """
    is_finite = np.isfinite(levels)
    pixels = np.where(is_finite, np.rint(np.clip(np.nan_to_num(levels), 0, 1) * (height - 1)), -1).astype(
        np.intp
    )
    before = np.concatenate([pixels[:, :1], pixels[:, :-1]], axis=1)
    before = np.where(is_finite & (before >= 0), before, pixels)
    low = np.where(is_finite, np.minimum(pixels, before), 0)
    high = np.where(is_finite, np.maximum(pixels, before), -1)
    return low[:, None, :], high[:, None, :]


def _blend(color: QColor, ground: QColor) -> int:
    """Return the opaque pixel that results from painting a translucent colour on `ground`."""
    share = color.alphaF()
    channels = zip(color.getRgb()[:3], ground.getRgb()[:3], strict=True)  # type: ignore[index]
    return QColor(*(round(share * top + (1 - share) * under) for top, under in channels)).rgb()


# All readings of one device over time: small plots on one time axis, each with its current number. Readings
# are drawn as steps; a dashed line is a limit; a mark is an event (an XID error, lost, back).

AXIS_HEIGHT = 14
_GAP = 14.0
_HEADER_HEIGHT = 15.0
_NUM_COLUMNS = 2
_MIN_PLOT_HEIGHT = 34


@dataclass(frozen=True)
class TrackLimit:
    """A dashed line that marks a hard limit (capacity, power limit) if `is_hard`, otherwise a past value (the
    peak)."""

    value: float
    is_hard: bool = True


@dataclass(frozen=True)
class TrackMark:
    """An event at the time `at_s`."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Track:
    """A plot on a scale from 0 to `top`; `second` is a fainter curve on the same scale. `tone` is one of the
    tones that a MetricCell can have."""

    title: str
    text: str
    curve: Series | None
    top: float
    hold_s: float = 1.5
    second: Series | None = None
    limits: Sequence[TrackLimit] = ()
    marks: Sequence[TrackMark] = ()
    tone: str = ""
    format_value: Callable[[float], str] = str
    """Function that formats a value of the curve."""


@dataclass(frozen=True, eq=False)
class DeviceTracksData:
    """All tracks of a device. Instances never compare equal, since series grow in place."""

    tracks: Sequence[Track] = ()
    x_range: tuple[float, float] = (0.0, 60.0)
    is_old: bool = False


class DeviceTracks(Chart[DeviceTracksData]):
    """Plots of one device."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, DeviceTracksData(), tr("Readings of one device over time"))

    def describe(self) -> str:
        return "; ".join(f"{track.title}: {track.text}" for track in self.data.tracks)

    @property
    def _num_rows(self) -> int:
        return max(1, -(-len(self.data.tracks) // _NUM_COLUMNS))

    def sizeHint(self) -> QSize:
        return QSize(600, 240)

    def minimumSizeHint(self) -> QSize:
        return QSize(300, int(self._num_rows * (_MIN_PLOT_HEIGHT + _HEADER_HEIGHT)) + AXIS_HEIGHT)

    def track_rect(self, index: int) -> QRectF:
        """Return the rectangle of a track."""
        width = (self.width() - _GAP * (_NUM_COLUMNS - 1)) / _NUM_COLUMNS
        height = (self.height() - AXIS_HEIGHT) / self._num_rows
        column, row = index // self._num_rows, index % self._num_rows
        return QRectF(column * (width + _GAP), row * height, width, height)

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the title of the track under the pointer, with the time and the value at the pointer."""
        x0, x1 = self.data.x_range
        for index, track in enumerate(self.data.tracks):
            box = self.track_rect(index)
            if box.contains(x, y):
                at = x0 + (x - box.left()) / box.width() * (x1 - x0)
                value = value_at(track.curve, at, track.hold_s, (x1 - x0) / box.width())
                text = tr("not known") if value is None else track.format_value(value)
                return f"{track.title}, {ago_label(round(at - x1))}: {text}"
        return ""

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        width = self.track_rect(0).width()
        for index, track in enumerate(self.data.tracks):
            self._paint_track(painter, track, self.track_rect(index))
        for column in range(_NUM_COLUMNS):
            self._paint_axis(
                painter, QRectF(column * (width + _GAP), self.height() - AXIS_HEIGHT, width, AXIS_HEIGHT)
            )

    def _paint_track(self, painter: QPainter, track: Track, box: QRectF) -> None:
        colors, old = self._colors, self.data.is_old
        header = QRectF(box.left(), box.top(), box.width(), _HEADER_HEIGHT)
        paint_text(painter, header, track.title, colors.muted, 11)
        ink = colors.muted if old else colors.tone_color(track.tone)
        paint_text(painter, header, track.text, ink, 11, RIGHT, bold=track.tone != "muted", mono=True)
        plot = QRectF(box.left(), box.top() + _HEADER_HEIGHT, box.width(), box.height() - _HEADER_HEIGHT - 5)
        self._paint_curve(painter, track, plot)
        self._paint_limits(painter, track, plot)

    def _paint_curve(self, painter: QPainter, track: Track, plot: QRectF) -> None:
        colors, ratio = self._colors, self.devicePixelRatioF()
        width, height = round(plot.width() * ratio), round(plot.height() * ratio)
        if width < 2 or height < 2:
            return
        line, fill = colors.curve_colors(track.tone)
        top = max(track.top, 1e-9)
        x0, x1 = self.data.x_range
        levels, second = (
            hold_values(series, x0, x1, track.hold_s, width)[None, :] / top
            for series in (track.curve, track.second)
        )
        line = colors.muted if self.data.is_old else line
        image = area_image(levels, height, [line], [fill], colors.track, (second, colors.axis))
        painter.drawImage(plot, image)

    def _paint_limits(self, painter: QPainter, track: Track, plot: QRectF) -> None:
        for limit in track.limits:
            if 0 < limit.value <= track.top:
                painter.setPen(dashed_pen(self._colors.capacity if limit.is_hard else self._colors.muted))
                y = plot.bottom() - plot.height() * limit.value / track.top
                painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        x0, x1 = self.data.x_range
        metrics, ink, taken = QFontMetricsF(chart_font(10)), self._colors.lead_text, plot.left()
        for mark in track.marks:
            if x0 <= mark.at_s <= x1:
                x = plot.left() + plot.width() * (mark.at_s - x0) / (x1 - x0)
                painter.setPen(QPen(ink, 1))
                painter.drawLine(QPointF(x, plot.top()), QPointF(x, plot.bottom()))
                width = metrics.horizontalAdvance(mark.text)
                left = x + 3 if x + 3 + width <= plot.right() else x - 3 - width
                # Labels that would overlap are left out; their lines stay.
                if left >= taken:
                    paint_text(painter, QRectF(left, plot.top(), width + 2, 13), mark.text, ink, 10)
                    taken = left + width + 6

    def _paint_axis(self, painter: QPainter, box: QRectF) -> None:
        x0, x1 = self.data.x_range
        middle, end = f"-{span_text((x1 - x0) / 2)}", f"-{span_text(x1 - x0)}"
        for align, text in ((LEFT, end), (CENTER, middle), (RIGHT, tr("now"))):
            paint_text(painter, box, text, self._colors.axis, 10, align)


def span_text(seconds: float) -> str:
    """Format the length of a time range, such as '60 s', '10 min', '1 h' or '2.5 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.2g} h"
