"""Grid of small charts, one per metric that a script logs, each with the metric's name and newest value.

Each curve has its own scale, so that an accuracy and a loss are both readable; only their shapes can be
compared. Only visible curves are drawn. One curve can be selected, by click or arrow keys, to be enlarged in
another chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF

from rankdeck.base.units import format_count
from rankdeck.run.series import Curve, Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import UNKNOWN, Chart
from rankdeck_app.widgets.painting import RIGHT, paint_text
from rankdeck_app.widgets.zoom_plot import value_before

MIN_CURVE_WIDTH = 150
MIN_CURVE_HEIGHT = 66
_GAP = 12
_HEADER_HEIGHT = 18
_MAX_DOTTED_POINTS = 12


@dataclass(frozen=True)
class MetricCurve:
    """A logged metric. `step` is the step of the last value; `note` names the metric's source."""

    name: str
    curve: Curve | Series
    last: float | None
    step: int | None
    note: str = ""


@dataclass(frozen=True, eq=False)
class MetricCurvesData:
    """Curves to draw. Instances never compare equal, since curves grow in place."""

    curves: Sequence[MetricCurve] = ()


class MetricCurves(Chart[MetricCurvesData]):
    """Grid of curves with as many columns as fit; its height follows from the number of rows.

    `selection_changed` carries the name of the selected curve, "" for none.
    """

    selection_changed = Signal(str)

    def __init__(self, theme: Theme) -> None:
        self.selected = ""
        super().__init__(theme, MetricCurvesData(), tr("Metrics logged by the script"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def select(self, name: str) -> None:
        if name != self.selected:
            self.selected = name
            self.selection_changed.emit(name)
            self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        at = event.position()
        hit = (
            curve.name for index, curve in enumerate(self.data.curves) if self.curve_rect(index).contains(at)
        )
        name = next(hit, "")
        self.select("" if name == self.selected else name)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        names = [curve.name for curve in self.data.curves]
        columns, key = self._num_columns(), event.key()
        steps = {
            Qt.Key.Key_Right: 1, Qt.Key.Key_Left: -1, Qt.Key.Key_Down: columns, Qt.Key.Key_Up: -columns,
        }  # fmt: skip
        if key == Qt.Key.Key_Escape and self.selected:
            self.select("")
        elif key in steps and names:
            at = names.index(self.selected) + steps[Qt.Key(key)] if self.selected in names else 0
            self.select(names[max(0, min(len(names) - 1, at))])
        else:
            super().keyPressEvent(event)

    def describe(self) -> str:
        return ", ".join(f"{curve.name} {metric_value_text(curve.last)}" for curve in self.data.curves)

    def sizeHint(self) -> QSize:
        return QSize(300, 150)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, MIN_CURVE_HEIGHT)

    def _num_columns(self) -> int:
        fitting = max(1, (self.width() + _GAP) // (MIN_CURVE_WIDTH + _GAP))
        # No empty columns: a few curves become wider.
        return int(max(1, min(fitting, len(self.data.curves))))

    def relayout(self) -> None:
        rows = math.ceil(len(self.data.curves) / self._num_columns())
        self.setMinimumHeight(max(1, rows) * MIN_CURVE_HEIGHT)

    def curve_rect(self, index: int) -> QRectF:
        """Return the rectangle of a curve."""
        columns = self._num_columns()
        rows = max(1, math.ceil(len(self.data.curves) / columns))
        width = (self.width() - 8 - _GAP * (columns - 1)) / columns
        height = self.height() / rows
        left = 4 + (index % columns) * (width + _GAP)
        return QRectF(left, (index // columns) * height, width, height - 6)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        for index, curve in enumerate(self.data.curves):
            box = self.curve_rect(index)
            # Only visible curves: a script may log many.
            if box.intersects(event.rect().toRectF()):
                self._paint_metric(painter, box, curve)

    def _paint_metric(self, painter: QPainter, box: QRectF, curve: MetricCurve) -> None:
        colors = self._colors
        if curve.name == self.selected:
            painter.fillRect(box.adjusted(-4, 0, 4, 4), colors.track)
            if self.hasFocus():
                painter.setPen(QPen(self._theme.color("focusBorder"), 1))
                painter.drawRect(box.adjusted(-3.5, 0.5, 3.5, 3.5))
        header = QRectF(box.left(), box.top(), box.width(), _HEADER_HEIGHT)
        value = metric_value_text(curve.last)
        paint_text(painter, header, value, colors.foreground, 12, RIGHT, bold=True, mono=True)
        used = painter.fontMetrics().horizontalAdvance(value) + 8
        name = header.adjusted(0, 0, -used, 0)
        paint_text(painter, name, curve.name, colors.muted, 11, elide=Qt.TextElideMode.ElideMiddle)
        plot = box.adjusted(0, _HEADER_HEIGHT + 2, 0, 0)
        painter.setPen(QPen(colors.grid, 1))
        painter.drawLine(plot.bottomLeft(), plot.bottomRight())
        self._paint_curve(painter, plot.adjusted(1, 2, -2, -3), curve.curve)

    def _paint_curve(self, painter: QPainter, plot: QRectF, curve: Curve | Series) -> None:
        first, last = curve.first_x, curve.last_x
        if first is None or last is None or plot.height() < 4:
            return
        window = curve.window(first, last, max(16, int(plot.width())))
        x, y = window.polyline()
        is_finite = np.isfinite(y)
        if not is_finite.any():
            return
        low, high = float(y[is_finite].min()), float(y[is_finite].max())
        xs = plot.left() + (x[is_finite] - first) / max(last - first, 1e-12) * plot.width()
        span = high - low
        share = (y[is_finite] - low) / span if span > 0 else np.full(int(is_finite.sum()), 0.5)
        ys = plot.bottom() - share * plot.height()
        points = [QPointF(px, py) for px, py in zip(xs.tolist(), ys.tolist(), strict=True)]
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._colors.loss, 1))
        painter.drawPolyline(QPolygonF(points))
        # Dots show which steps of a short curve have a value.
        if len(points) <= _MAX_DOTTED_POINTS:
            painter.setBrush(self._colors.loss)
            for point in points:
                painter.drawEllipse(point, 1.5, 1.5)
            painter.setBrush(Qt.BrushStyle.NoBrush)

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the value under the pointer and the last value of the curve."""
        for index, curve in enumerate(self.data.curves):
            box = self.curve_rect(index)
            if box.contains(x, y):
                return self._curve_tooltip(curve, (x - box.left()) / max(1.0, box.width()))
        return ""

    def _curve_tooltip(self, curve: MetricCurve, share: float) -> str:
        first, last = curve.curve.first_x, curve.curve.last_x
        lines = [curve.name]
        if first is not None and last is not None:
            # Only whole steps have values.
            at = float(round(first + share * (last - first)))
            bounds = value_before(curve.curve, at)
            if bounds is not None:
                step, value = format_count(at), metric_value_text(sum(bounds) / 2)
                lines.append(tr("step {step}: {value}", step=step, value=value))
        if curve.step is not None:
            step, value = format_count(curve.step), metric_value_text(curve.last)
            lines.append(tr("last: {value} at step {step}", value=value, step=step))
        lines.append(tr("Click to enlarge"))
        return "\n".join([*lines, *filter(None, [curve.note])])


def metric_value_text(value: float | None) -> str:
    """Format a value with at most four significant digits, or a large whole number in full: '0.9312',
    '1.20e-05', '12 345'."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return format_count(value) if 1e4 <= abs(value) < 1e9 and value == round(value) else f"{value:.2e}"
