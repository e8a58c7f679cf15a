"""A reading over time as it was read: every value holds until the next one, and ends where it turned old.

Painted by hand, for tables and grids of many small curves: one costs about 30 microseconds.
"""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen

from rankdeck_app.state.series import Floats, Series


def held(series: Series, x0: float, x1: float, hold_s: float, num_points: int) -> tuple[Floats, Floats]:
    """(x, y) of the steps in a window, NaN where nothing is known; a value holds for `hold_s` at most.

    Where several values share a point it is the greatest: a short peak stays in sight.
    """
    window = series.window(x0, x1, num_points)
    if not len(window.x):
        return np.empty(0), np.empty(0)
    x, y = window.x, window.high.astype(np.float64)
    # Points stand further apart once the window is coarse: then the distance of points is what holds.
    usual = 2.5 * (x1 - x0) / num_points
    ends = np.minimum(np.append(x[1:], x1), x + max(hold_s, usual))
    steps_x = np.column_stack([x, ends, ends]).ravel()
    steps_y = np.column_stack([y, y, y]).ravel()
    # The third point of a step parts it from the next where there is a gap between them.
    gap = np.append(x[1:] - ends[:-1] > 1e-6, True)
    steps_y[2::3][gap] = np.nan
    return np.clip(steps_x, x0, x1), steps_y


def paint_steps(
    painter: QPainter,
    box: QRectF,
    steps: tuple[Floats, Floats],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    line: QColor,
    fill: QColor | None = None,
) -> None:
    """Draw what `held` gave into a box; `fill` shades what is below it."""
    x, y = steps
    if not len(x):
        return
    across = box.width() / max(1e-9, x_range[1] - x_range[0])
    up = box.height() / max(1e-9, y_range[1] - y_range[0])
    at_x = box.left() + (x - x_range[0]) * across
    at_y = box.bottom() - (np.clip(y, *y_range) - y_range[0]) * up
    if fill is not None:
        ground = np.where(np.isfinite(at_y), at_y, box.bottom())
        outline = QPainterPath(
            pg.arrayToQPath(
                np.concatenate([at_x[:1], at_x, at_x[-1:]]),
                np.concatenate([[box.bottom()], ground, [box.bottom()]]),
            )
        )
        painter.fillPath(outline, fill)
    painter.setPen(QPen(line, 1))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPath(pg.arrayToQPath(at_x, at_y, connect="finite"))
