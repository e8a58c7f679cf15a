"""Who holds the memory of one device: a bar that adds up to its capacity, and a line for each of them."""

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
from rankdeck_app.widgets.painting import RIGHT, paint_outline, paint_segments, paint_text, painted_width

_BAR = 12.0
_LINE = 18.0
_TOP = _BAR + 8


@dataclass(frozen=True)
class Holder:
    """One line. `kind` colours its segment: a kind of chart_colors.py, "driver" or "free"."""

    kind: str
    name: str
    num_bytes: int | None
    note: str = ""

    @property
    def words(self) -> str:
        return f"{self.name}  {self.note}" if self.note else self.name


@dataclass(frozen=True)
class HoldersFigure:
    """`holders` add up to `total_bytes` where all of it is known; `facts` are (name, text) below them."""

    holders: Sequence[Holder] = ()
    total_bytes: int | None = None
    facts: Sequence[tuple[str, str]] = ()


class HolderList(Chart[HoldersFigure]):
    """Painted; lines that have no room are counted in the last one."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, HoldersFigure(), tr("Who holds the memory of the device"))

    def describe(self) -> str:
        held = [f"{item.words}: {_bytes(item.num_bytes)}" for item in self.figure.holders]
        return "; ".join([*held, *(f"{name}: {text}" for name, text in self.figure.facts)])

    def sizeHint(self) -> QSize:
        return QSize(260, 200)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, 120)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        painter.fillRect(QRectF(0, 0, self.width(), _BAR), self._colors.track)
        per_byte = self.width() / self.figure.total_bytes if self.figure.total_bytes else 0.0
        clear = QBrush(Qt.BrushStyle.NoBrush)
        segments = (
            ((item.num_bytes or 0) * per_byte, self._brush(item.kind) or clear)
            for item in self.figure.holders
        )
        paint_segments(painter, QRectF(0, 0, self.width(), _BAR), segments, least=1.0)
        paint_outline(painter, QRect(0, 0, self.width(), int(_BAR)), self._theme.color("contrastBorder"))
        top = _TOP
        for line in self._lines():
            self._paint_line(painter, line, top)
            top += _LINE
        top += 6
        for name, text in self.figure.facts:
            if top + _LINE <= self.height() + 1:
                self._paint_fact(painter, name, text, top)
            top += _LINE

    def _lines(self) -> Sequence[Holder]:
        """Those that there is room for, above the facts."""
        lines, num_facts = self.figure.holders, len(self.figure.facts)
        room = self.height() - _TOP - (_LINE * num_facts + 6 if num_facts else 0)
        most = max(1, int(room // _LINE))
        if len(lines) <= most:
            return lines
        rest = lines[most - 1 :]
        known = [item.num_bytes for item in rest if item.num_bytes is not None]
        name = tr("{n} more", "{n} more", len(rest))
        return [*lines[: most - 1], Holder("", name, sum(known) if known else None)]

    def tooltip_at(self, x: float, y: float) -> str:
        """A line in full: a command is longer than most cards are wide."""
        lines, place = self._lines(), int((y - _TOP) // _LINE)
        return html.escape(lines[place].words) if 0 <= place < len(lines) and lines[place].note else ""

    def _brush(self, kind: str) -> QBrush | QColor | None:
        """The sign of a kind; what is free has none."""
        if kind == "driver":
            return QBrush(self._colors.muted, Qt.BrushStyle.BDiagPattern)
        return self._colors.kinds.get(kind)

    def _paint_line(self, painter: QPainter, item: Holder, top: float) -> None:
        colors, box = self._colors, QRectF(0, top, self.width(), _LINE)
        brush = self._brush(item.kind)
        if brush is not None:
            painter.fillRect(QRectF(0, top + 4.5, 9, 9), brush)
        ink = colors.foreground if item.num_bytes is not None else colors.muted
        held = paint_text(painter, box, _bytes(item.num_bytes), ink, 11, RIGHT, mono=True)
        used = painted_width(painter, held) + 10
        ink = colors.muted if item.kind in ("free", "driver", "") else colors.foreground
        elide = Qt.TextElideMode.ElideRight
        paint_text(painter, box.adjusted(15, 0, -used, 0), item.words, ink, 11, elide=elide)

    def _paint_fact(self, painter: QPainter, name: str, text: str, top: float) -> None:
        box = QRectF(0, top, self.width(), _LINE)
        used = painted_width(painter, paint_text(painter, box, name, self._colors.axis, 11))
        room, elide = box.adjusted(used + 12, 0, 0, 0), Qt.TextElideMode.ElideMiddle
        paint_text(painter, room, text, self._colors.muted, 11, RIGHT, elide=elide, mono=True)


def _bytes(num_bytes: int | None) -> str:
    return tr("not told") if num_bytes is None else format_bytes(num_bytes)
