"""Building blocks of pages: rows and columns, text, buttons, framed cards and scroll areas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from PySide6.QtCore import QObject, QPoint, QRect, QSize, Qt, QTimer
from PySide6.QtGui import (
    QFontMetrics,
    QResizeEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLayoutItem,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QTextEdit,
    QVBoxLayout,
    QWidget,
)

from rankdeck_app.theme import Theme

Margins = tuple[int, int, int, int]
LayoutPart = QWidget | QLayout | tuple[QWidget | QLayout, int] | None
"""A widget or layout, optionally with its stretch factor; None is a stretch."""
NO_MARGINS: Margins = (0, 0, 0, 0)
TOP, MIDDLE, NO_ALIGNMENT = Qt.AlignmentFlag.AlignTop, Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag(0)


def row(
    *parts: LayoutPart,
    on: QWidget | None = None,
    margins: Margins = NO_MARGINS,
    spacing: int = -1,
    align: Qt.AlignmentFlag = NO_ALIGNMENT,
) -> QHBoxLayout:
    """Lay out parts side by side and return the layout; if `on` is not None, the layout is set on that
    widget.

    A negative `spacing` uses the style's default.
    """
    layout = QHBoxLayout()
    _add_parts(layout, on, parts, margins, spacing, align)
    return layout


def column(
    *parts: LayoutPart, on: QWidget | None = None, margins: Margins = NO_MARGINS, spacing: int = -1
) -> QVBoxLayout:
    """Lay out parts from top to bottom and return the layout; if `on` is not None, the layout is set on that
    widget. A negative `spacing` uses the style's default."""
    layout = QVBoxLayout()
    _add_parts(layout, on, parts, margins, spacing, NO_ALIGNMENT)
    return layout


def _add_parts(
    layout: QBoxLayout,
    on: QWidget | None,
    parts: tuple[LayoutPart, ...],
    margins: Margins,
    spacing: int,
    align: Qt.AlignmentFlag,
) -> None:
    if on is not None:
        on.setLayout(layout)
    layout.setContentsMargins(*margins)
    layout.setSpacing(spacing)
    for part in parts:
        inner, stretch = part if isinstance(part, tuple) else (part, 0)
        if inner is None:
            layout.addStretch(1)
        elif isinstance(inner, QLayout):
            layout.addLayout(inner, stretch)
        else:
            # An aligned widget would not fill its stretch.
            layout.addWidget(inner, stretch, NO_ALIGNMENT if stretch else align)


def clear_layout(layout: QLayout) -> None:
    """Remove everything from a layout; its widgets are hidden at once and deleted later."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


def text_label(text: str = "", tone: str = "", *, wrap: bool = True, selectable: bool = False) -> QLabel:
    """Return a plain-text label; `tone` is a style-sheet tone: dim, small, section, title, mono or error."""
    label = QLabel(text)
    label.setWordWrap(wrap)
    label.setTextFormat(Qt.TextFormat.PlainText)
    if tone:
        label.setProperty("tone", tone)
    if selectable:
        label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


def push_button(
    text: str, tooltip: str, on_click: Callable[[], object], *, kind: str = "", height: int = 0
) -> QPushButton:
    """Return a button. `kind` is a style-sheet kind: primary, link, quiet, or segment (checkable)."""
    button = QPushButton(text)
    button.setToolTip(tooltip)
    button.setCheckable(kind == "segment")
    if kind:
        button.setProperty("kind", kind)
    if height:
        button.setFixedHeight(height)
    button.clicked.connect(lambda _checked=False: on_click())
    return button


def make_card_frame(title: str) -> tuple[QFrame, QVBoxLayout]:
    """Return a card frame with a heading, and the column layout for its content."""
    frame = QFrame()
    frame.setProperty("kind", "card")
    heading = text_label(title.upper(), "section")
    return frame, column(heading, on=frame, margins=(16, 12, 16, 14), spacing=6)


def make_scroll_area(inside: QWidget, name: str) -> QScrollArea:
    """Return a scroll area that fits `inside` to the available width; `name` is the area's accessible
    name."""
    area = QScrollArea()
    area.setAccessibleName(name)
    area.setWidgetResizable(True)
    area.setWidget(inside)
    return area


def make_reading_column(page: QWidget, max_width: int, margins: Margins, spacing: int) -> QVBoxLayout:
    """Return the column layout of a text page that scrolls and has a readable line length."""
    inside = QWidget()
    inside.setMaximumWidth(max_width)
    column(make_scroll_area(inside, page.accessibleName()), on=page)
    return column(on=inside, margins=margins, spacing=spacing)


def build_incrementally(owner: QObject, items: Iterator[object]) -> None:
    """Consume one item of `items` per turn of the event loop, so that user input is not delayed."""
    # A sentinel, since an item may be None.
    turns, none_left = QTimer(owner, interval=0), object()

    def make_next() -> None:
        if next(items, none_left) is none_left:
            turns.stop()

    turns.timeout.connect(make_next)
    turns.start()


# Widgets side by side that wrap like words.


class FlowLayout(QLayout):
    """Layout that wraps its widgets into rows, like words into lines; `gap` separates widgets and rows."""

    def __init__(self, parent: QWidget, gap: int = 8) -> None:
        super().__init__(parent)
        self._gap = gap
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._layout_items(width)[1]

    def sizeHint(self) -> QSize:
        return self.minimumSize()

    def minimumSize(self) -> QSize:
        size = QSize()
        for item in self._items:
            size = size.expandedTo(item.minimumSize())
        return size

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        for item, item_rect in zip(self._items, self._layout_items(rect.width())[0], strict=True):
            item.setGeometry(item_rect.translated(rect.topLeft()))

    def _layout_items(self, width: int) -> tuple[list[QRect], int]:
        """Return the rectangle of each item in a layout of this width, and the total height."""
        rects, corner, bottom = list[QRect](), QPoint(0, 0), 0
        for item in self._items:
            size_hint = item.sizeHint()
            if corner.x() > 0 and corner.x() + size_hint.width() > width:
                corner = QPoint(0, bottom + self._gap)
            rect = QRect(corner, size_hint.boundedTo(QSize(max(width, 0), size_hint.height())))
            rects.append(rect)
            corner.setX(rect.right() + 1 + self._gap)
            bottom = max(bottom, rect.bottom() + 1)
        return rects, bottom


# Preformatted lines in a monospace font: full height, horizontal scrolling.


class TextBlock(QPlainTextEdit):
    def __init__(self, theme: Theme, lines: Sequence[str], accessible_name: str) -> None:
        super().__init__("\n".join(lines))
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setFont(theme.font(11, mono=True))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(accessible_name)
        self.document().setDocumentMargin(0)
        self.viewport().setAutoFillBackground(False)

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(self.font())
        bar = self.horizontalScrollBar()
        scrolled = bar.sizeHint().height() if bar.maximum() > 0 else 0
        return QSize(200, self.blockCount() * metrics.lineSpacing() + scrolled + 4)

    minimumSizeHint = sizeHint

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.updateGeometry()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Scroll horizontally only; the page handles vertical scrolling."""
        if event.angleDelta().x():
            super().wheelEvent(event)
        else:
            event.ignore()


# Selectable paragraphs with the available width and the height that they need. Unlike a label, they break
# words that are longer than a line, so that a path is complete at any width.

Paragraph = tuple[str, str]
"""A text and its look: "" for body text, "apart" for body text with more space above, "dim" or "mono"."""
_GAP_PX, _APART_GAP_PX = 2, 6
_SMALL_STYLES = ("dim", "mono")


class WrappedText(QTextEdit):
    """Selectable paragraphs that take the available width; `name` is the accessible name."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__()
        self._theme = theme
        self._paragraphs: list[Paragraph] = []
        self.setReadOnly(True)
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        # Not in the tab order, but its text can be selected with the mouse.
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setTabChangesFocus(True)
        self.setUndoRedoEnabled(False)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.viewport().setAutoFillBackground(False)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        # Height by width, cached because measuring clones the document.
        self._heights: dict[int, int] = {}
        theme.changed.connect(self._rebuild)

    def set_paragraphs(self, paragraphs: Sequence[Paragraph]) -> None:
        if list(paragraphs) != self._paragraphs:
            self._paragraphs = list(paragraphs)
            self._rebuild()

    @property
    def text(self) -> str:
        return "\n".join(text for text, _ in self._paragraphs)

    def _rebuild(self) -> None:
        # Rebuilt on a theme change too, since the formats contain its colours.
        self.document().clear()
        cursor = QTextCursor(self.document())
        block = QTextBlockFormat()
        for at, (text, style) in enumerate(self._paragraphs):
            block.setTopMargin(_APART_GAP_PX if style == "apart" else _GAP_PX)
            letters = QTextCharFormat()
            letters.setFont(self._theme.font(11 if style in _SMALL_STYLES else 12, mono=style == "mono"))
            ink = "descriptionForeground" if style == "dim" else "foreground"
            letters.setForeground(self._theme.color(ink))
            if at:
                cursor.insertBlock(block)
            cursor.insertText(text, letters)
        self._heights.clear()
        self.updateGeometry()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        """Return the height at `width`, measured on a copy of the document, because the original is laid out
        for the current width."""
        if width not in self._heights:
            measured = self.document().clone()
            measured.setDefaultTextOption(self.document().defaultTextOption())
            measured.setTextWidth(width)
            self._heights[width] = int(measured.size().height()) + 1
            measured.deleteLater()
        return self._heights[width]

    def sizeHint(self) -> QSize:
        return QSize(200, self.fontMetrics().height())

    minimumSizeHint = sizeHint

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Ignore the wheel, so that the page scrolls."""
        event.ignore()
