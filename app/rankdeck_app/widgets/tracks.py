"""Readings over time as they were read: every value holds until the next one, and ends where it turned old.

Tables and grids show a hundred of these curves at once. They are made into pixels by numpy, all rows of a
column in one go, which costs a twentieth of drawing them as paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QImage

from rankdeck.run.series import Floats, Series


def held(series: Series | None, x0: float, x1: float, hold_s: float, num_columns: int) -> Floats:
    """The value of every column of pixels in a window, NaN where nothing is known; it holds for `hold_s`.

    Where several values share a column the greatest of them stays in sight.
    """
    levels = np.full(num_columns, np.nan)
    if series is None:
        return levels
    window = series.window(x0, x1, num_columns)
    if not len(window.x):
        return levels
    width_s = (x1 - x0) / num_columns
    right = x0 + width_s * np.arange(1, num_columns + 1)
    at = np.searchsorted(window.x, right) - 1
    # Points stand further apart than readings where the window is coarse.
    age_s = right - width_s - window.x[np.maximum(at, 0)]
    known = (at >= 0) & (age_s <= max(hold_s, 2.5 * width_s))
    levels[known] = window.high[at[known]]
    return levels


def value_at(series: Series | None, at: float, hold_s: float, within_s: float) -> float | None:
    """The value at a moment, give or take a column of `within_s`; None where nothing is known."""
    if series is None or not len(series):
        return None
    window = series.window(at, at, 64)
    place = int(np.searchsorted(window.x, at, side="right")) - 1
    if place < 0 or at - window.x[place] > max(hold_s, 2.5 * within_s):
        return None
    level = float(window.high[place])
    return level if math.isfinite(level) else None


def area_image(
    levels: NDArray[np.floating],
    height: int,
    lines: Sequence[QColor],
    fills: Sequence[QColor],
    ground: QColor,
    second: tuple[NDArray[np.floating], QColor] | None = None,
) -> QImage:
    """Curves one below the other, each `height` pixels: `levels` (curves, columns) from 0 to 1, NaN unknown.

    `lines` and `fills` are a colour per curve; `second`, levels too, is drawn under them as a line.
    """
    count, width = levels.shape
    pixels = np.empty((count, height, width), dtype=np.uint32)
    pixels[:] = ground.rgb()
    rows = np.arange(height - 1, -1, -1)[None, :, None]
    if second is not None:
        low, high = _span(second[0], height)
        pixels[(rows >= low) & (rows <= high)] = second[1].rgb()
    low, high = _span(levels, height)
    below, on = rows < low, (rows >= low) & (rows <= high)
    for index in range(count):
        pixels[index][below[index]] = _over(fills[index], ground)
        pixels[index][on[index]] = lines[index].rgb()
    return image_of(pixels.reshape(count * height, width))


def image_of(pixels: NDArray[np.uint32]) -> QImage:
    """(height, width) pixels as 0xAARRGGBB, opaque."""
    height, width = pixels.shape
    # copy(): the image must not outlive the array whose memory it would borrow.
    return QImage(pixels.tobytes(), width, height, 4 * width, QImage.Format.Format_RGB32).copy()


def _span(levels: NDArray[np.floating], height: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(lowest, highest) pixel of the line in every column, each (curves, 1, columns); nothing where unknown.

    A step reaches from the level before to its own, so that the line is whole.
    """
    known = np.isfinite(levels)
    own = np.where(known, np.rint(np.clip(np.nan_to_num(levels), 0, 1) * (height - 1)), -1).astype(np.intp)
    before = np.concatenate([own[:, :1], own[:, :-1]], axis=1)
    before = np.where(known & (before >= 0), before, own)
    low = np.where(known, np.minimum(own, before), 0)
    high = np.where(known, np.maximum(own, before), -1)
    return low[:, None, :], high[:, None, :]


def _over(color: QColor, ground: QColor) -> int:
    """A translucent colour on the ground, as one opaque pixel."""
    share = color.alphaF()
    channels = zip(color.getRgb()[:3], ground.getRgb()[:3], strict=True)  # type: ignore[index]
    return QColor(*(round(share * top + (1 - share) * under) for top, under in channels)).rgb()
