"""Who holds the memory of one device: a bar that adds up to its capacity, and a line for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck.base.units import format_bytes
from rankdeck_app.widgets.chart import LEFT, RIGHT, Chart
from rankdeck_app.widgets.chart_colors import ThemeColors, chart_font

_BAR = 12.0
_LINE = 18.0


@dataclass(frozen=True)
class Holder:
    """One line. `kind` colours its segment: a kind of chart_colors.py, "driver" or "free"."""

    kind: str
    name: str
    num_bytes: int | None
    note: str = ""


@dataclass(frozen=True)
class HoldersFigure:
    """`holders` add up to `total_bytes` where all of it is known; `facts` are (name, text) below them."""

    holders: Sequence[Holder] = ()
    total_bytes: int | None = None
    facts: Sequence[tuple[str, str]] = ()


class HolderList(Chart[HoldersFigure]):
    """Painted; lines that have no room are counted in the last one."""

    def __init__(self, theme: ThemeColors, parent: QWidget | None = None) -> None:
        super().__init__(theme, HoldersFigure(), "Who holds the memory of the device", parent)

    def describe(self) -> str:
        held = [f"{item.name}: {_bytes(item.num_bytes)}" for item in self._figure.holders]
        return "; ".join([*held, *(f"{name}: {text}" for name, text in self._figure.facts)])

    def sizeHint(self) -> QSize:
        return QSize(260, 200)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, 120)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        self._paint_bar(painter)
        top = _BAR + 8
        facts = list(self._figure.facts)
        room = self.height() - top
        lines = list(self._figure.holders)
        most = max(1, int((room - (_LINE * len(facts) + 6 if facts else 0)) // _LINE))
        if len(lines) > most:
            rest = lines[most - 1 :]
            known = [item.num_bytes for item in rest if item.num_bytes is not None]
            lines = [*lines[: most - 1], Holder("", f"{len(rest)} more", sum(known) if known else None)]
        for line in lines:
            self._paint_line(painter, line, top)
            top += _LINE
        top = max(top + 6, self.height() - _LINE * len(facts))
        for name, text in facts:
            if top + _LINE <= self.height() + 1:
                self._paint_fact(painter, name, text, top)
            top += _LINE

    def _paint_bar(self, painter: QPainter) -> None:
        painter.fillRect(QRectF(0, 0, self.width(), _BAR), self._colors.track)
        if not self._figure.total_bytes:
            return
        left = 0.0
        for item in self._figure.holders:
            width = self.width() * (item.num_bytes or 0) / self._figure.total_bytes
            if item.kind != "free" and width > 0:
                box = QRectF(left, 0, max(1.0, width - 1), _BAR)
                if item.kind == "driver":
                    painter.fillRect(box, self._hatch())
                else:
                    painter.fillRect(box, self._colors.kinds[item.kind])
            left += width

    def _hatch(self) -> QBrush:
        return QBrush(self._colors.muted, Qt.BrushStyle.BDiagPattern)

    def _paint_line(self, painter: QPainter, item: Holder, top: float) -> None:
        box = QRectF(0, top, self.width(), _LINE)
        if item.kind in self._colors.kinds:
            painter.fillRect(QRectF(0, top + 4.5, 9, 9), self._colors.kinds[item.kind])
        elif item.kind == "driver":
            painter.fillRect(QRectF(0, top + 4.5, 9, 9), self._hatch())
        painter.setFont(chart_font(11, mono=True))
        painter.setPen(self._colors.foreground if item.num_bytes is not None else self._colors.muted)
        text = _bytes(item.num_bytes)
        painter.drawText(box, RIGHT, text)
        used = painter.fontMetrics().horizontalAdvance(text) + 10
        painter.setFont(chart_font(11))
        painter.setPen(self._colors.muted if item.kind in ("free", "driver", "") else self._colors.foreground)
        room = box.adjusted(15, 0, -used, 0)
        words = f"{item.name}  {item.note}" if item.note else item.name
        painter.drawText(
            room,
            LEFT,
            painter.fontMetrics().elidedText(words, Qt.TextElideMode.ElideRight, int(room.width())),
        )

    def _paint_fact(self, painter: QPainter, name: str, text: str, top: float) -> None:
        box = QRectF(0, top, self.width(), _LINE)
        painter.setFont(chart_font(10))
        painter.setPen(self._colors.axis)
        painter.drawText(box, LEFT, name)
        painter.setPen(self._colors.muted)
        room = box.adjusted(painter.fontMetrics().horizontalAdvance(name) + 12, 0, 0, 0)
        shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, int(room.width()))
        painter.drawText(room, RIGHT, shown)


def _bytes(num_bytes: int | None) -> str:
    return "not told" if num_bytes is None else format_bytes(num_bytes)
