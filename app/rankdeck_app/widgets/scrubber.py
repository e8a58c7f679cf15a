"""The time of a run as one line to drag along: what was trained when, and the moment that is looked at.

Every attempt is a bar of its own. Steps that a later attempt trained again are thinner and muted; where
nothing was trained there is no bar. The knob stands at the moment, or at the end, which is now.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractSlider, QSizePolicy

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_text

_HEIGHT = 18
_KNOB = 5.0
_BAR, _AGAIN = 4.0, 2.0
_GAP = 12.0
_SKIP_S = 10


@dataclass(frozen=True)
class TimeStretch:
    """When an attempt trained, in seconds since the start of the run; from `kept_s` on it was done again."""

    began_s: float
    kept_s: float
    ended_s: float


@dataclass(frozen=True)
class TimeFigure:
    """`at_s` is the moment that is looked at, None is now. `words` say it, in ever fewer words."""

    whole_s: float = 0.0
    at_s: float | None = None
    stretches: tuple[TimeStretch, ...] = ()
    words: tuple[str, ...] = ("",)
    widest: str = ""


class Scrubber(QAbstractSlider):
    """`sought` carries seconds since the start, `stepped` how many steps on or back, `skipped` seconds."""

    sought = Signal(float)
    stepped = Signal(int)
    skipped = Signal(float)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._colors = ChartColors(theme)
        self.figure = TimeFigure()
        self.setAccessibleName(tr("Moment of the run"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setToolTip(tr("Drag to look back; arrow keys go from step to step, End is now"))
        theme.changed.connect(self._retheme)

    def set_figure(self, figure: TimeFigure) -> None:
        if figure == self.figure:
            return
        self.figure = figure
        self.setRange(0, int(figure.whole_s))
        self.setValue(int(figure.whole_s if figure.at_s is None else figure.at_s))
        self.setAccessibleDescription(figure.words[0])
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, _HEIGHT)

    def _retheme(self) -> None:
        self._colors = ChartColors(self._theme)
        self.update()

    # Where things stand

    def _shown_words(self) -> tuple[str, float]:
        """The words that leave most of the width to the line, and the room that the widest of them take."""
        metrics = QFontMetricsF(chart_font(11, mono=True))
        room = self.width() * 0.45
        for place, words in enumerate(self.figure.words):
            widest = self.figure.widest if place == 0 else words
            width = max(metrics.horizontalAdvance(widest), metrics.horizontalAdvance(words))
            if width <= room:
                return words, width + _GAP
        return "", 0.0

    @property
    def line(self) -> tuple[float, float]:
        """The left and right end of the line, in pixels."""
        return _KNOB + 1, max(_KNOB + 2, self.width() - self._shown_words()[1] - _KNOB - 1)

    def x_of(self, seconds: float) -> float:
        left, right = self.line
        share = seconds / self.figure.whole_s if self.figure.whole_s > 0 else 1.0
        return left + min(1.0, max(0.0, share)) * (right - left)

    def _seconds_at(self, x: float) -> float:
        left, right = self.line
        return min(1.0, max(0.0, (x - left) / (right - left))) * self.figure.whole_s

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, figure, ink = QPainter(self), self.figure, self._colors
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, right = self.line
        middle = self.height() / 2
        painter.setPen(Qt.PenStyle.NoPen)
        self._bar(painter, left, right, _AGAIN, ink.grid)
        for one in figure.stretches:
            self._bar(painter, self.x_of(one.began_s), self.x_of(one.kept_s), _BAR, ink.rest)
            if one.ended_s > one.kept_s:
                self._bar(painter, self.x_of(one.kept_s), self.x_of(one.ended_s), _AGAIN, ink.axis)
        at = self.x_of(figure.whole_s if figure.at_s is None else figure.at_s)
        is_back = figure.at_s is not None
        focus = self._theme.color("focusBorder")
        painter.setPen(QPen(focus if self.hasFocus() else ink.card, 1.5))
        painter.setBrush(ink.foreground if is_back else ink.rest)
        painter.drawEllipse(QPointF(at, middle), _KNOB, _KNOB)
        words, width = self._shown_words()
        box = QRectF(self.width() - width, 0, width, self.height())
        paint_text(painter, box, words, ink.foreground if is_back else ink.muted, 11, RIGHT, mono=True)
        painter.end()

    def _bar(self, painter: QPainter, left: float, right: float, height: float, color: QColor) -> None:
        painter.setBrush(color)
        box = QRectF(left, self.height() / 2 - height / 2, max(2.0, right - left), height)
        painter.drawRoundedRect(box, height / 2, height / 2)

    # The mouse and keys

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the page scrolls

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.sought.emit(self._seconds_at(event.position().x()))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self.sought.emit(self._seconds_at(event.position().x()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, by = Qt.Key(event.key()), 10 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1
        steps = {Qt.Key.Key_Left: -by, Qt.Key.Key_Down: -by, Qt.Key.Key_Right: by, Qt.Key.Key_Up: by}
        skips = {Qt.Key.Key_PageUp: _SKIP_S, Qt.Key.Key_PageDown: -_SKIP_S}
        ends = {Qt.Key.Key_Home: 0.0, Qt.Key.Key_End: self.figure.whole_s}
        if key in steps:
            self.stepped.emit(steps[key])
        elif key in skips:
            self.skipped.emit(float(skips[key]))
        elif key in ends:
            self.sought.emit(ends[key])
        else:
            super().keyPressEvent(event)
