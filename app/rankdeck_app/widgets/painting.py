"""What everything that is painted by hand is painted with: faces, one line of text, bars of segments, rows of
lists.

All text goes through `paint_text` and `paint_wrapped_text` and nowhere else: so that what does not fit its
place can be told (`watch_overflows`), instead of being cut where nobody looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from rankdeck_app.theme import Theme, draw_icon

LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
CENTER = Qt.AlignmentFlag.AlignCenter
_ONE_LINE = int(Qt.TextFlag.TextSingleLine)
DATA_ROLE = int(Qt.ItemDataRole.UserRole)
"""Under which a model gives the object of a row, for delegates."""

Index = QModelIndex | QPersistentModelIndex
chart_font = Theme.font


@dataclass(frozen=True)
class Overflow:
    """A text that was painted wider or higher than its place, or out of its widget; all in pixels."""

    text: str
    needed: tuple[float, float]
    box: tuple[float, float]

    def __str__(self) -> str:
        needed, box = (f"{width:.0f}x{height:.0f}" for width, height in (self.needed, self.box))
        return f"{self.text!r} takes {needed} in {box}"


_overflow_callbacks: list[Callable[[Overflow], object]] = []
_text_callbacks: list[Callable[[str], object]] = []


@contextmanager
def record_painted_text(tell: Callable[[str], object]) -> Iterator[None]:
    """Tells every text that is painted while this lasts, before it is shortened."""
    _text_callbacks.append(tell)
    try:
        yield
    finally:
        _text_callbacks.remove(tell)


@contextmanager
def watch_overflows(tell: Callable[[Overflow], object]) -> Iterator[None]:
    """Tells of every text that does not fit while this lasts, the innermost alone; nothing is
    measured otherwise."""
    _overflow_callbacks.append(tell)
    try:
        yield
    finally:
        _overflow_callbacks.remove(tell)


def _check_overflow(painter: QPainter, box: QRectF, text: str, painted: QRectF) -> None:
    """Compares what was painted with its box, and sidewards with the widget, unless the painter clips: rows
    are scrolled up and down, and what scrolls sidewards says so by its clip. A pixel more is rounding.
    """
    ink = painter.fontMetrics().tightBoundingRect(text)
    lines = max(1.0, painted.height() / painter.fontMetrics().height())
    height = ink.height() if lines < 2 else painted.height()
    window = QRectF(painter.window())
    shown = painter.transform().mapRect(painted)
    if not text or shown.bottom() <= window.top() or shown.top() >= window.bottom():
        return
    is_out = not painter.hasClipping() and (
        shown.left() < window.left() - 1 or shown.right() > window.right() + 1
    )
    if painted.width() > box.width() + 1 or height > box.height() + 1 or is_out:
        _overflow_callbacks[-1](Overflow(text, (painted.width(), height), (box.width(), box.height())))


def paint_text(
    painter: QPainter,
    box: QRectF | QRect,
    text: str,
    ink: QColor,
    px: int,
    align: Qt.AlignmentFlag = LEFT,
    *,
    bold: bool = False,
    mono: bool = False,
    elide: Qt.TextElideMode = Qt.TextElideMode.ElideNone,
    font: QFont | None = None,
) -> str:
    """One line of text in a box, shortened to its width if `elide` says where; the text as it was painted.

    `font` stands for the face that the size names: that of the widget that asks for its room by it.
    """
    for tell in _text_callbacks:
        tell(text)
    painter.setFont(font or chart_font(px, bold, mono))
    painter.setPen(ink)
    if elide != Qt.TextElideMode.ElideNone:
        text = painter.fontMetrics().elidedText(text, elide, int(box.width()))
    painter.drawText(box, align, text)
    if _overflow_callbacks:
        place = QRectF(box)
        _check_overflow(painter, place, text, painter.boundingRect(place, align.value | _ONE_LINE, text))
    return text


def paint_wrapped_text(painter: QPainter, box: QRect, text: str, ink: QColor, px: int) -> None:
    """Text over as many lines as a box has, from its left; … where words are left out."""
    for tell in _text_callbacks:
        tell(text)
    painter.setFont(chart_font(px))
    painter.setPen(ink)
    flags = int(Qt.TextFlag.TextWordWrap | Qt.AlignmentFlag.AlignVCenter)
    shown = elide_wrapped_text(painter.fontMetrics(), text, box.width(), box.height())
    painter.drawText(box, flags, shown)
    if _overflow_callbacks:
        _check_overflow(painter, QRectF(box), shown, QRectF(painter.boundingRect(box, flags, shown)))


def text_width(painter: QPainter, text: str) -> int:
    """The pixels that a text takes in the font that was used last."""
    return painter.fontMetrics().horizontalAdvance(text)


def elide_wrapped_text(metrics: QFontMetrics, text: str, width: int, height: int) -> str:
    """As many words of a text as fit a box, wrapped; … where some are left out."""
    box, flags = QRect(0, 0, width, 10_000), int(Qt.TextFlag.TextWordWrap)

    def overflows(shown: str) -> bool:
        return metrics.boundingRect(box, flags, shown).height() > height

    if not overflows(text):
        return text
    words = text.split()
    starts = [" ".join(words[:count]) + "…" for count in range(len(words))]
    return starts[max(0, bisect_left(starts, True, key=overflows) - 1)] if starts else text


def dashed_pen(color: QColor, pattern: Sequence[float] = (4, 3)) -> QPen:
    """The pen of a limit: one pixel wide, with dashes and gaps as given."""
    pen = QPen(color, 1, Qt.PenStyle.CustomDashLine)
    pen.setDashPattern(list(pattern))
    return pen


def paint_outline(painter: QPainter, rect: QRect, color: QColor) -> None:
    """A line of one pixel just inside a box: what is chosen in a high-contrast theme, or has the keyboard."""
    if color.alpha():
        # Filled: half of a pen would be cut off where a pixel is no whole number of the screen's.
        for side in (
            QRect(rect.left(), rect.top(), rect.width(), 1),
            QRect(rect.left(), rect.bottom(), rect.width(), 1),
            QRect(rect.left(), rect.top(), 1, rect.height()),
            QRect(rect.right(), rect.top(), 1, rect.height()),
        ):
            painter.fillRect(side, color)


def paint_rounded_box(painter: QPainter, theme: Theme, box: QRectF, radius: float, color: QColor) -> None:
    """A rounded box; high-contrast themes have a line around it."""
    line = theme.color("contrastBorder")
    painter.setPen(line if line.alpha() else Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5) if line.alpha() else box, radius, radius)


def paint_track(painter: QPainter, theme: Theme, box: QRectF) -> None:
    """The ground of a bar; high-contrast themes have a line around it, out of the way of thin segments."""
    if not box.isEmpty():
        painter.fillRect(box.adjusted(-1, -1, 1, 1), theme.color("contrastBorder"))
        painter.fillRect(box, theme.color("rankdeck.track"))


def paint_progress(painter: QPainter, theme: Theme, line: QRect, share: float, ink: QColor) -> None:
    """How much of a line is done, in whatever ink its row has: what is left is thin and muted; in
    high-contrast themes it stands off its ground."""
    left = QColor(ink)
    left.setAlphaF(0.65 if theme.color("contrastBorder").alpha() else 0.35)
    painter.fillRect(QRect(line.left(), line.bottom(), line.width(), 1), left)
    painter.fillRect(QRect(line.topLeft(), QSize(round(line.width() * min(share, 1.0)), line.height())), ink)


def paint_segments(
    painter: QPainter, box: QRectF, widths: Iterable[tuple[float, QBrush | QColor]], *, min_width: float = 0.0
) -> float:
    """Segments of a bar from the left, each as wide as given, in pixels; where the last one ends.

    A pixel of gap parts them; a segment thinner than that still shows as a hair, or as `min_width`. None
    reaches out of the box.
    """
    left = box.left()
    for width, brush in widths:
        shown = min(max(min(width, 1.0), width - 1, min_width), box.right() - left)
        if width > 0 and shown > 0:
            painter.fillRect(QRectF(left, box.top(), shown, box.height()), brush)
        left += width
    return left


class IconWidget(QWidget):
    """A codicon in a colour of the theme, in the middle of a fixed size."""

    def __init__(self, theme: Theme, icon: str, tone: str, size: QSize, px: int) -> None:
        super().__init__()
        self._theme, self._icon, self._tone, self._px = theme, icon, tone, px
        self.setFixedSize(size)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        left, top = (self.width() - self._px) / 2, (self.height() - self._px) / 2
        box = QRectF(left, top, self._px, self._px)
        draw_icon(painter, self._icon, box, self._theme.color(self._tone))
        painter.end()


class ListRowDelegate(QStyledItemDelegate):
    """Base of what paints the rows of a list: the ground and the focus are the theme's, the rest is
    `paint_row`'s.
    """

    def __init__(self, theme: Theme, parent: QWidget, height: int) -> None:
        super().__init__(parent)
        self._theme = theme
        self._height = height

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(180, self._height)

    def selected_background(self, state: QStyle.StateFlag) -> str:
        """The colour id that a chosen row is filled with."""
        return "list.activeSelectionBackground"

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        """Paints a row; `ink` says how a colour id is painted: where it is chosen, in one colour."""
        raise NotImplementedError

    def _selected_color(self, _key: str) -> QColor:
        return self._theme.color("list.activeSelectionForeground")

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        color, rect = self._theme.color, option.rect
        state: QStyle.StateFlag = option.state
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen:
            painter.fillRect(rect, color(self.selected_background(state)))
            paint_outline(painter, rect, color("contrastActiveBorder"))
        elif state & QStyle.StateFlag.State_MouseOver:
            painter.fillRect(rect, color("list.hoverBackground"))
        self.paint_row(painter, rect, index, self._selected_color if chosen else color)
        if state & QStyle.StateFlag.State_HasFocus:
            paint_outline(painter, rect, color("focusBorder"))
