"""Shared helpers for hand-painted widgets: fonts, text, bars of segments and list rows.

All text is painted by `paint_text` and `paint_wrapped_text`, so that tests can detect text that does not fit
(`watch_overflows`).
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
"""Item role under which a model returns the object that a delegate paints."""

Index = QModelIndex | QPersistentModelIndex
chart_font = Theme.font


@dataclass(frozen=True)
class Overflow:
    """A text that was painted larger than its box or outside its widget; sizes in pixels."""

    text: str
    needed: tuple[float, float]
    box: tuple[float, float]

    def __str__(self) -> str:
        needed, box = (f"{width:.0f}x{height:.0f}" for width, height in (self.needed, self.box))
        return f"{self.text!r} takes {needed} in {box}"


# Both lists are filled only by tests; they are empty in the app.
_overflow_callbacks: list[Callable[[Overflow], object]] = []
_text_callbacks: list[Callable[[str], object]] = []


@contextmanager
def record_painted_text(callback: Callable[[str], object]) -> Iterator[None]:
    """Call `callback` with the unelided version of every text painted inside the context."""
    _text_callbacks.append(callback)
    try:
        yield
    finally:
        _text_callbacks.remove(callback)


@contextmanager
def watch_overflows(callback: Callable[[Overflow], object]) -> Iterator[None]:
    """Call `callback` for every text that does not fit when it is painted inside the context. If contexts are
    nested, only the innermost callback is called.

    Outside any such context, nothing is measured.
    """
    _overflow_callbacks.append(callback)
    try:
        yield
    finally:
        _overflow_callbacks.remove(callback)


def _check_overflow(painter: QPainter, box: QRectF, text: str, painted: QRectF) -> None:
    """Report a text that is larger than its box or, if the painter does not clip, extends beyond the left or
    right edge of the widget.

    Text beyond the top or bottom edge is not reported, because lists scroll vertically; widgets that scroll
    horizontally set a clip on the painter. One extra pixel is allowed for rounding.
    """
    # A box may be lower than a line of the font, as long as the glyphs fit.
    ink = painter.fontMetrics().tightBoundingRect(text)
    lines = max(1.0, painted.height() / painter.fontMetrics().height())
    height = ink.height() if lines < 2 else painted.height()
    window = QRectF(painter.window())
    mapped = painter.transform().mapRect(painted)
    if not text or mapped.bottom() <= window.top() or mapped.top() >= window.bottom():
        return
    is_out = not painter.hasClipping() and (
        mapped.left() < window.left() - 1 or mapped.right() > window.right() + 1
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
    """Paint one line of text, elided to the box if `elide` is set, and return the painted text.

    `font`, such as the font that a widget's size hint is based on, replaces the font selected by `px`, `bold`
    and `mono`.
    """
    for callback in _text_callbacks:
        callback(text)
    painter.setFont(font or chart_font(px, bold, mono))
    painter.setPen(ink)
    if elide != Qt.TextElideMode.ElideNone:
        text = painter.fontMetrics().elidedText(text, elide, int(box.width()))
    painter.drawText(box, align, text)
    if _overflow_callbacks:
        text_box = QRectF(box)
        _check_overflow(
            painter, text_box, text, painter.boundingRect(text_box, align.value | _ONE_LINE, text)
        )
    return text


def paint_wrapped_text(painter: QPainter, box: QRect, text: str, ink: QColor, px: int) -> None:
    """Paint left-aligned text wrapped to fit a box; … marks omitted words."""
    for callback in _text_callbacks:
        callback(text)
    painter.setFont(chart_font(px))
    painter.setPen(ink)
    flags = int(Qt.TextFlag.TextWordWrap | Qt.AlignmentFlag.AlignVCenter)
    elided = elide_wrapped_text(painter.fontMetrics(), text, box.width(), box.height())
    painter.drawText(box, flags, elided)
    if _overflow_callbacks:
        _check_overflow(painter, QRectF(box), elided, QRectF(painter.boundingRect(box, flags, elided)))


def text_width(painter: QPainter, text: str) -> int:
    """Return the width of a text in the painter's current font, in pixels."""
    return painter.fontMetrics().horizontalAdvance(text)


def elide_wrapped_text(metrics: QFontMetrics, text: str, width: int, height: int) -> str:
    """Return as many words of a text as fit in a box when wrapped; … marks omitted words."""
    # High enough for any text.
    box, flags = QRect(0, 0, width, 10_000), int(Qt.TextFlag.TextWordWrap)

    def overflows(candidate: str) -> bool:
        return metrics.boundingRect(box, flags, candidate).height() > height

    if not overflows(text):
        return text
    words = text.split()
    starts = [" ".join(words[:count]) + "…" for count in range(len(words))]
    # Binary search for the longest start that fits, since measuring text is slow.
    return starts[max(0, bisect_left(starts, True, key=overflows) - 1)] if starts else text


def dashed_pen(color: QColor, pattern: Sequence[float] = (4, 3)) -> QPen:
    """Return a pen for lines that mark limits: one pixel wide, with the dash pattern `pattern`."""
    pen = QPen(color, 1, Qt.PenStyle.CustomDashLine)
    pen.setDashPattern(list(pattern))
    return pen


def paint_outline(painter: QPainter, rect: QRect, color: QColor) -> None:
    """Paint a one-pixel outline just inside a rectangle; paint nothing if the colour is transparent."""
    if color.alpha():
        # Filled rectangles: at a fractional scale, half of a pen's width would be cut off.
        for side in (
            QRect(rect.left(), rect.top(), rect.width(), 1),
            QRect(rect.left(), rect.bottom(), rect.width(), 1),
            QRect(rect.left(), rect.top(), 1, rect.height()),
            QRect(rect.right(), rect.top(), 1, rect.height()),
        ):
            painter.fillRect(side, color)


def paint_rounded_box(painter: QPainter, theme: Theme, box: QRectF, radius: float, color: QColor) -> None:
    """Paint a rounded box, with an outline in high-contrast themes."""
    line = theme.color("contrastBorder")
    painter.setPen(line if line.alpha() else Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5) if line.alpha() else box, radius, radius)


def paint_track(painter: QPainter, theme: Theme, box: QRectF) -> None:
    """Paint the background of a bar, with an outline around it in high-contrast themes."""
    if not box.isEmpty():
        # Transparent except in high-contrast themes.
        painter.fillRect(box.adjusted(-1, -1, 1, 1), theme.color("contrastBorder"))
        painter.fillRect(box, theme.color("rankdeck.track"))


def paint_progress(painter: QPainter, theme: Theme, line: QRect, share: float, ink: QColor) -> None:
    """Paint a progress line in `ink`, the row's text colour; the remaining part is thin and muted.

    In high-contrast themes, the remaining part is less muted.
    """
    left = QColor(ink)
    left.setAlphaF(0.65 if theme.color("contrastBorder").alpha() else 0.35)
    painter.fillRect(QRect(line.left(), line.bottom(), line.width(), 1), left)
    painter.fillRect(QRect(line.topLeft(), QSize(round(line.width() * min(share, 1.0)), line.height())), ink)


def paint_segments(
    painter: QPainter, box: QRectF, widths: Iterable[tuple[float, QBrush | QColor]], *, min_width: float = 0.0
) -> float:
    """Paint the segments of a bar from the left, with widths in pixels, and return the right end of the last
    segment.

    Segments are one pixel apart and at least `min_width` wide; very thin segments are drawn as hairlines. No
    segment extends beyond the box.
    """
    left = box.left()
    for width, brush in widths:
        visible_width = min(max(min(width, 1.0), width - 1, min_width), box.right() - left)
        if width > 0 and visible_width > 0:
            painter.fillRect(QRectF(left, box.top(), visible_width, box.height()), brush)
        left += width
    return left


class IconWidget(QWidget):
    """A widget of fixed size with a centred codicon in a theme colour."""

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
    """Base delegate for list rows. It paints the background and the focus outline; subclasses implement
    `paint_row`."""

    def __init__(self, theme: Theme, parent: QWidget, height: int) -> None:
        super().__init__(parent)
        self._theme = theme
        self._height = height

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(180, self._height)

    def selected_background(self, state: QStyle.StateFlag) -> str:
        """Return the colour id of a selected row's background."""
        return "list.activeSelectionBackground"

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        """Paint a row. `ink` maps a colour id to a colour; in a selected row, it returns the same colour for
        every id."""
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
