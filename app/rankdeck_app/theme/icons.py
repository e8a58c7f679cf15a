"""Icons of the codicon font: names, code points, and an icon engine that draws a glyph in a theme colour.

The colour is looked up when the icon is drawn, so icons follow theme changes. To use another icon of the
font, add its row to CODEPOINTS (names and numbers as in the font's own table).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QIcon, QIconEngine, QPainter, QPixmap

FONT_FILE = Path(__file__).parent / "fonts" / "codicon.ttf"

CODEPOINTS: dict[str, int] = {
    "add": 0xEA60,
    "arrow-down": 0xEA9A,
    "arrow-up": 0xEAA1,
    "bell": 0xEAA2,
    "bell-dot": 0xEB9A,
    "case-sensitive": 0xEAB1,
    "check": 0xEAB2,
    "checklist": 0xEAB3,
    "chevron-down": 0xEAB4,
    "chevron-left": 0xEAB5,
    "chevron-right": 0xEAB6,
    "chevron-up": 0xEAB7,
    "circle": 0xEABC,
    "circle-slash": 0xEABD,
    "circuit-board": 0xEABE,
    "clear-all": 0xEABF,
    "close": 0xEA76,
    "color-mode": 0xEAC6,
    "debug-continue": 0xEACF,
    "debug-pause": 0xEAD1,
    "debug-rerun": 0xEBC0,
    "debug-stop": 0xEAD7,
    "ellipsis": 0xEA7C,
    "error": 0xEA87,
    "file": 0xEA7B,
    "file-code": 0xEAE9,
    "folder": 0xEA83,
    "folder-opened": 0xEAF7,
    "git-compare": 0xEAFD,
    "graph-line": 0xEBE2,
    "history": 0xEA82,
    "info": 0xEA74,
    "keyboard-tab": 0xEC3C,
    "layers": 0xEBD2,
    "layout-centered": 0xEBF7,
    "layout-panel": 0xEBF2,
    "layout-sidebar-left": 0xEBF3,
    "lightbulb": 0xEA61,
    "link-external": 0xEB14,
    "list-ordered": 0xEB16,
    "loading": 0xEB19,
    "lock": 0xEA75,
    "multiple-windows": 0xEB23,
    "note": 0xEB26,
    "output": 0xEB9D,
    "pass": 0xEBA4,
    "pie-chart": 0xEBE4,
    "pinned": 0xEBA0,
    "play": 0xEB2C,
    "primitive-square": 0xEA72,
    "pulse": 0xEB31,
    "python": 0xEC39,
    "question": 0xEB32,
    "refresh": 0xEB37,
    "regex": 0xEB38,
    "remove": 0xEB3B,
    "rocket": 0xEB44,
    "run-all": 0xEB9E,
    "save": 0xEB4B,
    "search": 0xEA6D,
    "server": 0xEB50,
    "settings": 0xEB52,
    "settings-gear": 0xEB51,
    "split-horizontal": 0xEB56,
    "split-vertical": 0xEB57,
    "star-full": 0xEB59,
    "stop-circle": 0xEBA5,
    "sync": 0xEA77,
    "table": 0xEBB7,
    "type-hierarchy": 0xEBB9,
    "type-hierarchy-sub": 0xEBBA,
    "verified": 0xEB77,
    "versions": 0xEB78,
    "warning": 0xEA6C,
    "zoom-in": 0xEB81,
}

ColorSource = Callable[[], QColor]


@cache
def _font_family() -> str:
    """Load the font into the application and return its family name."""
    families = QFontDatabase.applicationFontFamilies(QFontDatabase.addApplicationFont(str(FONT_FILE)))
    assert families, f"{FONT_FILE} is missing or not a font"
    return families[0]


def draw_icon(painter: QPainter, name: str, rect: QRectF, color: QColor) -> None:
    """Draw an icon in the largest centred square of `rect`; for widgets that paint themselves."""
    side = min(rect.width(), rect.height())
    font = QFont(_font_family())
    # Qt rejects a size of 0.
    font.setPixelSize(max(1, round(side)))
    painter.save()
    painter.setFont(font)
    painter.setPen(color)
    square = QRectF(rect.center() - QPointF(side / 2, side / 2), rect.center() + QPointF(side / 2, side / 2))
    painter.drawText(square, Qt.AlignmentFlag.AlignCenter, chr(CODEPOINTS[name]))
    painter.restore()


class CodiconEngine(QIconEngine):
    """Icon engine for one glyph; `disabled` is the colour for QIcon.Mode.Disabled."""

    def __init__(self, name: str, color: ColorSource, disabled: ColorSource) -> None:
        super().__init__()
        self._glyph = name
        self._color = color
        self._disabled_color = disabled

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        color = self._disabled_color() if mode == QIcon.Mode.Disabled else self._color()
        draw_icon(painter, self._glyph, QRectF(rect), color)

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        # QIconEngine's own `pixmap` does not clear the image, so icons would have an opaque background.
        image = QPixmap(size)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        self.paint(painter, QRect(0, 0, size.width(), size.height()), mode, state)
        # A pixmap must not be used while a painter is active on it, and Python may destroy the painter later.
        painter.end()
        return image

    def clone(self) -> QIconEngine:
        return CodiconEngine(self._glyph, self._color, self._disabled_color)
