"""Timeline of a run with a draggable handle: the training intervals and the viewed time.

Every attempt is a bar. Parts that a later attempt repeated are thinner and muted; there is no bar for times
without training. The handle is at the viewed time, or at the end of the timeline if the viewed time is now.
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
_HANDLE_RADIUS = 5.0
_BAR_HEIGHT, _REPEATED_HEIGHT = 4.0, 2.0
_GAP = 12.0
_SKIP_S = 10


@dataclass(frozen=True)
class AttemptInterval:
    """Interval in which an attempt trained, in seconds since the start of the run. A later attempt repeated
    the part after `kept_until_s`."""

    start_s: float
    kept_until_s: float
    end_s: float


@dataclass(frozen=True)
class ScrubberData:
    """Timeline of a run. `viewed_s` is the viewed time, None for now. `texts` describe the viewed time in
    successively shorter variants."""

    total_s: float = 0.0
    viewed_s: float | None = None
    intervals: tuple[AttemptInterval, ...] = ()
    texts: tuple[str, ...] = ("",)
    widest_text: str = ""


class Scrubber(QAbstractSlider):
    """Timeline slider.

    `seek_requested` carries seconds since the start, `step_requested` a number of steps forward or back,
    `skip_requested` a number of seconds.
    """

    seek_requested = Signal(float)
    step_requested = Signal(int)
    skip_requested = Signal(float)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._colors = ChartColors(theme)
        self.data = ScrubberData()
        self.setAccessibleName(tr("Run timeline"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setToolTip(tr("Drag to view an earlier time. Arrow keys move by one step, End returns to now."))
        theme.changed.connect(self._retheme)

    def set_data(self, data: ScrubberData) -> None:
        if data == self.data:
            return
        self.data = data
        # QAbstractSlider reports range and value to screen readers.
        self.setRange(0, int(data.total_s))
        self.setValue(int(data.total_s if data.viewed_s is None else data.viewed_s))
        self.setAccessibleDescription(data.texts[0])
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, _HEIGHT)

    def _retheme(self) -> None:
        self._colors = ChartColors(self._theme)
        self.update()

    # Layout

    def _fit_text(self) -> tuple[str, float]:
        """Return (text, width) of the longest text that leaves most of the width for the slider's line."""
        metrics = QFontMetricsF(chart_font(11, mono=True))
        room = self.width() * 0.45
        for index, text in enumerate(self.data.texts):
            widest = self.data.widest_text if index == 0 else text
            width = max(metrics.horizontalAdvance(widest), metrics.horizontalAdvance(text))
            if width <= room:
                return text, width + _GAP
        return "", 0.0

    @property
    def line(self) -> tuple[float, float]:
        """The x coordinates of the left and right ends of the slider's line, in pixels."""
        return _HANDLE_RADIUS + 1, max(
            _HANDLE_RADIUS + 2, self.width() - self._fit_text()[1] - _HANDLE_RADIUS - 1
        )

    def to_x(self, seconds: float) -> float:
        left, right = self.line
        share = seconds / self.data.total_s if self.data.total_s > 0 else 1.0
        return left + min(1.0, max(0.0, share)) * (right - left)

    def _seconds_at(self, x: float) -> float:
        left, right = self.line
        return min(1.0, max(0.0, (x - left) / (right - left))) * self.data.total_s

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, data, ink = QPainter(self), self.data, self._colors
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, right = self.line
        middle = self.height() / 2
        painter.setPen(Qt.PenStyle.NoPen)
        self._paint_bar(painter, left, right, _REPEATED_HEIGHT, ink.grid)
        for interval in data.intervals:
            self._paint_bar(
                painter, self.to_x(interval.start_s), self.to_x(interval.kept_until_s), _BAR_HEIGHT, ink.rest
            )
            if interval.end_s > interval.kept_until_s:
                self._paint_bar(
                    painter,
                    self.to_x(interval.kept_until_s),
                    self.to_x(interval.end_s),
                    _REPEATED_HEIGHT,
                    ink.axis,
                )
        at = self.to_x(data.total_s if data.viewed_s is None else data.viewed_s)
        is_back = data.viewed_s is not None
        focus = self._theme.color("focusBorder")
        painter.setPen(QPen(focus if self.hasFocus() else ink.card, 1.5))
        painter.setBrush(ink.foreground if is_back else ink.rest)
        painter.drawEllipse(QPointF(at, middle), _HANDLE_RADIUS, _HANDLE_RADIUS)
        text, width = self._fit_text()
        box = QRectF(self.width() - width, 0, width, self.height())
        paint_text(painter, box, text, ink.foreground if is_back else ink.muted, 11, RIGHT, mono=True)
        painter.end()

    def _paint_bar(self, painter: QPainter, left: float, right: float, height: float, color: QColor) -> None:
        painter.setBrush(color)
        box = QRectF(left, self.height() / 2 - height / 2, max(2.0, right - left), height)
        painter.drawRoundedRect(box, height / 2, height / 2)

    # Mouse and keyboard

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the page scrolls

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.seek_requested.emit(self._seconds_at(event.position().x()))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self.seek_requested.emit(self._seconds_at(event.position().x()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, by = Qt.Key(event.key()), 10 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1
        steps = {Qt.Key.Key_Left: -by, Qt.Key.Key_Down: -by, Qt.Key.Key_Right: by, Qt.Key.Key_Up: by}
        skips = {Qt.Key.Key_PageUp: _SKIP_S, Qt.Key.Key_PageDown: -_SKIP_S}
        ends = {Qt.Key.Key_Home: 0.0, Qt.Key.Key_End: self.data.total_s}
        if key in steps:
            self.step_requested.emit(steps[key])
        elif key in skips:
            self.skip_requested.emit(float(skips[key]))
        elif key in ends:
            self.seek_requested.emit(ends[key])
        else:
            super().keyPressEvent(event)
