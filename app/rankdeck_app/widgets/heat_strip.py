"""Heat strip of device utilisation over time: a row per device, a column per time slice.

Each device's current value is on the right. A reading applies to its whole interval and is drawn as a step,
never smoothed: the driver averages over up to a second, so a smooth ramp would show values that were never
measured. Intervals without a reading have the background colour of the card that contains the strip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QImage, QPainter, QPaintEvent

from rankdeck.run.series import Curve, Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import UNKNOWN, Chart
from rankdeck_app.widgets.device_rows import DeviceRows, preferred_height
from rankdeck_app.widgets.painting import CENTER, LEFT, RIGHT, paint_outline, paint_text
from rankdeck_app.widgets.time_text import ago_label, elapsed_label
from rankdeck_app.widgets.tracks import make_image

AXIS_HEIGHT = 16
COLUMNS = 240


@dataclass(frozen=True, eq=False)
class HeatStripData:
    """Utilisation of every device over time.

    `shares` has shape (devices, columns) with values from 0 to 1, NaN where unknown. The last column is now,
    unless `start_s` is set to the time of the first column. The row `lead` is bold. `marked_s` is a time to
    mark on the strip. If `is_over`, no further readings will arrive. `hosts` has the host of each device in a
    run on several hosts. Instances never compare equal, because each has new readings.
    """

    labels: Sequence[str] = ()
    shares: NDArray[np.float32] | None = None
    values: Sequence[float | None] = ()
    span_s: float = 60.0
    lead: int | None = None
    start_s: float | None = None
    marked_s: float | None = None
    is_over: bool = False
    hosts: Sequence[str] = ()

    @property
    def marked_share(self) -> float | None:
        """Position of the marked time on the strip, from 0 to 1; None if it is not visible."""
        if self.marked_s is None or self.start_s is None:
            return None
        share = (self.marked_s - self.start_s) / self.span_s
        return share if 0 <= share <= 1 else None

    def time_label(self, share: float) -> str:
        """Return the label of a position on the strip, such as '-30 s' or 'now'. If `start_s` is set, it is
        the time since the start of the run, such as '0:42'."""
        if self.start_s is not None:
            return elapsed_label(self.start_s + share * self.span_s, self.span_s / 2)
        return ago_label(round((share - 1) * self.span_s, 1 if self.span_s < 10 else 0))


def compute_shares(
    readings: Sequence[tuple[Curve | Series, float]], now_s: float, span_s: float, column_s: float
) -> NDArray[np.float32]:
    """Return the utilisation with shape (devices, columns); the last column contains `now_s`. `readings` has
    each device's history and the longest time in seconds that one reading can cover.

    A reading covers the interval before it, so a column shows the first reading after the column's start, or
    NaN if the interval of that reading does not reach back to the column.
    """
    # Columns start at multiples of their width, so that a reading stays in its column from frame to frame.
    end = math.ceil(now_s / column_s) * column_s
    columns = end - span_s + column_s * (np.arange(round(span_s / column_s)) + 0.5)
    shares = np.full((len(readings), len(columns)), np.nan, dtype=np.float32)
    for row, (history, reach_s) in zip(shares, readings, strict=True):
        window = history.window(columns[0] - reach_s, columns[-1] + column_s / 2, 2_000)
        if len(window.x):
            following = np.searchsorted(window.x, columns - column_s / 2)
            # After the last reading, `following` is out of range; `covered` excludes those columns.
            inside = np.minimum(following, len(window.x) - 1)
            covered = (following < len(window.x)) & (window.x[inside] - columns <= reach_s)
            row[covered] = window.high[inside][covered]
    return shares


class HeatStrip(Chart[HeatStripData]):
    """Heat strip of 1 to 16 devices."""

    def __init__(self, theme: Theme) -> None:
        self._image: QImage | None = None
        super().__init__(theme, HeatStripData(), tr("Utilisation per device"))

    def relayout(self) -> None:
        self._image = None

    def _color_table(self) -> NDArray[np.uint32]:
        """Return 256 colours from idle to busy, followed by the colour for unknown values."""
        stops = np.array([[c.red(), c.green(), c.blue()] for c in self._colors.heat], dtype=np.float64)
        at = np.linspace(0, 255, len(stops))
        red, green, blue = (np.interp(np.arange(256), at, stop).astype(np.uint32) for stop in stops.T)
        busy = (0xFF << 24) | (red << 16) | (green << 8) | blue
        return np.append(busy, np.uint32(self._colors.card.rgba())).astype(np.uint32)

    def _get_image(self) -> QImage | None:
        shares = self.data.shares
        if shares is None or shares.size == 0:
            return None
        if self._image is None:
            is_finite = np.isfinite(shares)
            levels = np.where(is_finite, np.clip(np.nan_to_num(shares), 0, 1) * 255, 256).astype(np.intp)
            self._image = make_image(self._color_table()[levels])
        return self._image

    def sizeHint(self) -> QSize:
        return QSize(420, max(90, preferred_height(len(self.data.labels)) + AXIS_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, max(50, int(4.5 * len(self.data.labels)) + AXIS_HEIGHT))

    def _make_rows(self) -> DeviceRows:
        labels = self.data.labels
        # The names of thin rows extend above the first row.
        above = 4.0 if self.height() - AXIS_HEIGHT < 12 * max(1, len(labels)) else 0.0
        room = self.height() - AXIS_HEIGHT - above
        hosts = self.data.hosts
        return DeviceRows(
            labels, self.width(), room, max_row_height=64.0, number_width=44, top=above, hosts=hosts
        )

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        data, ink = self.data, self._colors
        rows, image = self._make_rows(), self._get_image()
        gap = 2 if rows.row_height >= 8 else 1
        if image is None:
            painter.fillRect(rows.plot, ink.track)
            text = tr("Not sampled") if data.is_over else tr("Not sampled yet")
            paint_text(painter, rows.plot, text, ink.muted, 11, CENTER)
        rows.paint_hosts(painter, ink.muted, ink.axis)
        for index in range(len(data.labels)):
            if image is not None:
                box = rows.row(index).adjusted(0, gap / 2, 0, -gap / 2)
                painter.fillRect(box, ink.track)
                painter.drawImage(box, image, QRectF(0, index, image.width(), 1))
            leads = index == data.lead
            value = data.values[index] if index < len(data.values) else None
            number = (UNKNOWN, ink.muted) if value is None else (f"{100 * value:.0f}%", ink.foreground)
            name_ink = ink.foreground if leads else ink.muted
            rows.paint_row_texts(painter, index, name_ink, number, bold=leads)
        strip, share = rows.plot, data.marked_share
        around = strip.toAlignedRect().adjusted(-1, 0, 1, 0)
        paint_outline(painter, around, self._theme.color("contrastBorder"))
        if share is not None:
            at = strip.left() + share * strip.width()
            painter.fillRect(QRectF(at - 0.75, strip.top(), 1.5, strip.height()), ink.foreground)
        self._paint_axis(painter, strip)

    def _paint_axis(self, painter: QPainter, strip: QRectF) -> None:
        for share, align in ((0.0, LEFT), (0.5, CENTER), (1.0, RIGHT)):
            where = QRectF(strip.left(), strip.bottom() + 2, strip.width(), 13)
            paint_text(painter, where, self.data.time_label(share), self._colors.axis, 10, align)

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the device, time and reading at a point; empty outside the strip."""
        rows, shares = self._make_rows(), self.data.shares
        strip = rows.plot
        if shares is None or not strip.contains(x, y):
            return ""
        index = min(len(self.data.labels) - 1, int((y - strip.top()) // rows.row_height))
        column = min(shares.shape[1] - 1, int((x - strip.left()) / strip.width() * shares.shape[1]))
        share = float(shares[index, column])
        device, time_text = self.data.labels[index], self.data.time_label((column + 1) / shares.shape[1])
        if np.isnan(share):
            return tr("{device}, {moment}: unknown", device=device, moment=time_text)
        busy = 100 * share
        return tr("{device}, {moment}: {busy:.0f} % busy", device=device, moment=time_text, busy=busy)
