"""Memory holders of one device: a bar whose segments add up to the device's capacity, and a line per
holder."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPaintEvent

from rankdeck.base.units import format_bytes
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import RIGHT, paint_outline, paint_segments, paint_text, text_width

_BAR_HEIGHT = 12.0
_LINE_HEIGHT = 18.0
_LINES_TOP = _BAR_HEIGHT + 8


@dataclass(frozen=True)
class Holder:
    """A memory holder. `kind` sets its segment's colour: a kind from chart_colors.py, "driver" or "free"."""

    kind: str
    name: str
    num_bytes: int | None
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}  {self.note}" if self.note else self.name


@dataclass(frozen=True)
class HolderListData:
    """Memory holders of a device.

    The sizes of `holders` add up to `total_bytes` if all are known; `facts` are (name, text) lines below
    them.
    """

    holders: Sequence[Holder] = ()
    total_bytes: int | None = None
    facts: Sequence[tuple[str, str]] = ()


class HolderList(Chart[HolderListData]):
    """Painted list of holders. If some do not fit, the last line states how many are left out."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, HolderListData(), tr("Memory of the device, by owner"))

    def describe(self) -> str:
        texts = [f"{item.text}: {_bytes_text(item.num_bytes)}" for item in self.data.holders]
        return "; ".join([*texts, *(f"{name}: {text}" for name, text in self.data.facts)])

    def sizeHint(self) -> QSize:
        return QSize(260, 200)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, 120)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        painter.fillRect(QRectF(0, 0, self.width(), _BAR_HEIGHT), self._colors.track)
        per_byte = self.width() / self.data.total_bytes if self.data.total_bytes else 0.0
        # Free memory takes its share of the bar but is not painted.
        clear = QBrush(Qt.BrushStyle.NoBrush)
        segments = (
            ((item.num_bytes or 0) * per_byte, self._get_brush(item.kind) or clear)
            for item in self.data.holders
        )
        # Even a small holder stays visible.
        paint_segments(painter, QRectF(0, 0, self.width(), _BAR_HEIGHT), segments, min_width=1.0)
        paint_outline(
            painter, QRect(0, 0, self.width(), int(_BAR_HEIGHT)), self._theme.color("contrastBorder")
        )
        top = _LINES_TOP
        for line in self._visible_lines():
            self._paint_line(painter, line, top)
            top += _LINE_HEIGHT
        top += 6
        for name, text in self.data.facts:
            if top + _LINE_HEIGHT <= self.height() + 1:
                self._paint_fact(painter, name, text, top)
            top += _LINE_HEIGHT

    def _visible_lines(self) -> Sequence[Holder]:
        """Return the holders whose lines fit above the lines of the data's `facts`; if some do not fit, the
        last entry sums up the rest."""
        lines, num_facts = self.data.holders, len(self.data.facts)
        room = self.height() - _LINES_TOP - (_LINE_HEIGHT * num_facts + 6 if num_facts else 0)
        max_lines = max(1, int(room // _LINE_HEIGHT))
        if len(lines) <= max_lines:
            return lines
        rest = lines[max_lines - 1 :]
        known_bytes = [item.num_bytes for item in rest if item.num_bytes is not None]
        name = tr("{n} more", "{n} more", len(rest))
        return [*lines[: max_lines - 1], Holder("", name, sum(known_bytes) if known_bytes else None)]

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the full text of the line at `y` if the line has a note, which may be cut off; otherwise,
        return an empty text."""
        lines, index = self._visible_lines(), int((y - _LINES_TOP) // _LINE_HEIGHT)
        return html.escape(lines[index].text) if 0 <= index < len(lines) and lines[index].note else ""

    def _get_brush(self, kind: str) -> QBrush | QColor | None:
        """Return the brush of a kind; None for free memory."""
        if kind == "driver":
            return QBrush(self._colors.muted, Qt.BrushStyle.BDiagPattern)
        return self._colors.kinds.get(kind)

    def _paint_line(self, painter: QPainter, item: Holder, top: float) -> None:
        colors, box = self._colors, QRectF(0, top, self.width(), _LINE_HEIGHT)
        brush = self._get_brush(item.kind)
        if brush is not None:
            painter.fillRect(QRectF(0, top + 4.5, 9, 9), brush)
        ink = colors.foreground if item.num_bytes is not None else colors.muted
        size_text = paint_text(painter, box, _bytes_text(item.num_bytes), ink, 11, RIGHT, mono=True)
        used = text_width(painter, size_text) + 10
        ink = colors.muted if item.kind in ("free", "driver", "") else colors.foreground
        elide = Qt.TextElideMode.ElideRight
        paint_text(painter, box.adjusted(15, 0, -used, 0), item.text, ink, 11, elide=elide)

    def _paint_fact(self, painter: QPainter, name: str, text: str, top: float) -> None:
        box = QRectF(0, top, self.width(), _LINE_HEIGHT)
        used = text_width(painter, paint_text(painter, box, name, self._colors.axis, 11))
        room, elide = box.adjusted(used + 12, 0, 0, 0), Qt.TextElideMode.ElideMiddle
        paint_text(painter, room, text, self._colors.muted, 11, RIGHT, elide=elide, mono=True)


def _bytes_text(num_bytes: int | None) -> str:
    return tr("not reported") if num_bytes is None else format_bytes(num_bytes)
