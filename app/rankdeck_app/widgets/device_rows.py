"""Layout of a chart with one row per device: names on the left, a plot with a common scale, numbers on the
right.

It is readable with 1 to 16 devices: thin rows have smaller text, and if rows are very thin, only every second
or fourth row is labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QFontMetricsF, QPainter

from rankdeck_app.widgets.painting import CENTER, RIGHT, chart_font, paint_text

_MARK_WIDTH, _MARK_GAP, _MARK_PX = 20.0, 2.0, 10


class HostLabels:
    """Host names along the rows of a run on several hosts, so that device names can omit them.

    The host names are left out if the run has only one host or if any of them does not fit; device names then
    keep their host prefix.

    `hosts` has the host of each row; `row_height` is in pixels. `names` are the row names to show; `width` is
    the width in pixels that the host names take up on the left.
    """

    def __init__(self, labels: Sequence[str], hosts: Sequence[str], row_height: float) -> None:
        groups = [(host, len(list(rows))) for host, rows in groupby(hosts)]
        room = {host: count * row_height - 2 * _MARK_GAP for host, count in groups}
        # All host names or none, since device names drop their host prefix together.
        is_named = any(hosts) and all(label_width([host], _MARK_PX) <= room[host] for host, _ in groups)
        self.names = list(labels)
        self.width = 0.0
        self._groups: list[tuple[str, int, int]] = []
        if is_named:
            self.width = _MARK_WIDTH
            pairs = zip(labels, hosts, strict=True)
            self.names = [label.removeprefix(f"{host} ") for label, host in pairs]
            ends = list(accumulate(count for _, count in groups))
            self._groups = [(host, end - count, end) for (host, count), end in zip(groups, ends, strict=True)]

    def paint(self, painter: QPainter, top: float, row_height: float, ink: QColor, line: QColor) -> None:
        """Paint the host names; `top` is the top of the first row."""
        for host, first, end in self._groups:
            box = QRectF(0, top + first * row_height, _MARK_WIDTH, (end - first) * row_height)
            box.adjust(0, _MARK_GAP, 0, -_MARK_GAP)
            painter.fillRect(QRectF(_MARK_WIDTH - 5, box.top(), 1, box.height()), line)
            painter.save()
            painter.translate(0, box.bottom())
            painter.rotate(-90)
            paint_text(
                painter, QRectF(0, 0, box.height(), _MARK_WIDTH - 5), host, ink, _MARK_PX, CENTER, bold=True
            )
            painter.restore()


class DeviceRows:
    """Layout of a chart's stacked rows, in pixels: `plot` is the rectangle of the rows, `width` the width of
    the chart.

    `names` are the row labels; `hosts` has the host of each row in a run on several hosts.
    """

    def __init__(
        self,
        labels: Sequence[str],
        width: float,
        room: float,
        *,
        max_row_height: float,
        number_width: float,
        top: float = 0.0,
        hosts: Sequence[str] = (),
    ) -> None:
        """Centre rows of at most `max_row_height` vertically in the `room` pixels below `top`.

        `number_width` pixels at the right are reserved for numbers.
        """
        num_rows = max(1, len(labels))
        self.width = width
        self.row_height = min(max_row_height, room / num_rows)
        self._host_labels = HostLabels(labels, hosts, self.row_height)
        self.names = self._host_labels.names
        left = self._host_labels.width + label_width(self.names, 12 if self.row_height >= 14 else 10) + 12
        top += max(0.0, (room - num_rows * self.row_height) / 2)
        self.plot = QRectF(left, top, max(40.0, width - left - number_width), num_rows * self.row_height)

    def row(self, index: int) -> QRectF:
        """Return the plot rectangle of one row."""
        top = self.plot.top() + index * self.row_height
        return QRectF(self.plot.left(), top, self.plot.width(), self.row_height)

    def paint_hosts(self, painter: QPainter, ink: QColor, line: QColor) -> None:
        self._host_labels.paint(painter, self.plot.top(), self.row_height, ink, line)

    def paint_row_texts(
        self,
        painter: QPainter,
        index: int,
        ink: QColor,
        number: tuple[str, QColor],
        *,
        bold: bool,
    ) -> None:
        """Paint a row's name and its `number`, a pair (text, colour). If rows are thin, only every second or
        fourth row gets these texts."""
        height = self.row_height
        # In thin rows only every second or fourth name fits.
        if index % (1 if height >= 8 else 2 if height >= 4.5 else 4):
            return
        px = 12 if height >= 14 else 10 if height >= 11 else 9
        # The text may extend beyond a thin row.
        row = self.row(index).adjusted(0, -4, 0, 4)
        at_right = QRectF(row.right(), row.y(), self.width - row.right(), row.height())
        named = QRectF(self._host_labels.width, row.y(), row.left() - self._host_labels.width, row.height())
        paint_text(painter, named, self.names[index], ink, px, bold=bold)
        paint_text(painter, at_right, *number, px, RIGHT, bold=bold, mono=True)


def preferred_height(num_rows: int) -> int:
    """Return the preferred total height of the rows in pixels; rows are taller if there are few of them."""
    steps = ((1, 56), (2, 46), (4, 34), (8, 26))
    return num_rows * next((height for max_rows, height in steps if num_rows <= max_rows), 18)


def label_width(labels: Sequence[str], px: int) -> float:
    """Return the width in pixels of the widest label, measured in bold type."""
    metrics = QFontMetricsF(chart_font(px, bold=True))
    return max((metrics.horizontalAdvance(label) for label in labels), default=40)
