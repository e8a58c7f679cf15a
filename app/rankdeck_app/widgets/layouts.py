"""What pages are put together of: rows and columns, text, buttons, framed cards, what scrolls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

Margins = tuple[int, int, int, int]
Part = QWidget | QLayout | tuple[QWidget | QLayout, int] | None
"""A widget or layout, with its share of the room if it takes one; None is room that stays empty."""
NO_MARGINS: Margins = (0, 0, 0, 0)
TOP, MIDDLE, ANYWHERE = Qt.AlignmentFlag.AlignTop, Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag(0)


def row(
    *parts: Part,
    on: QWidget | None = None,
    margins: Margins = NO_MARGINS,
    spacing: int = -1,
    align: Qt.AlignmentFlag = ANYWHERE,
) -> QHBoxLayout:
    """Parts beside each other, as the layout of `on` where it is given; a negative spacing is the style's."""
    layout = QHBoxLayout()
    _fill(layout, on, parts, margins, spacing, align)
    return layout


def column(
    *parts: Part, on: QWidget | None = None, margins: Margins = NO_MARGINS, spacing: int = -1
) -> QVBoxLayout:
    """Parts under each other."""
    layout = QVBoxLayout()
    _fill(layout, on, parts, margins, spacing, ANYWHERE)
    return layout


def _fill(
    layout: QBoxLayout,
    on: QWidget | None,
    parts: tuple[Part, ...],
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
            layout.addWidget(inner, stretch, ANYWHERE if stretch else align)


def clear(layout: QLayout) -> None:
    """Takes everything out of a layout; its widgets are deleted soon, and not seen until then."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


def text_label(text: str = "", tone: str = "", *, wrap: bool = True, selectable: bool = False) -> QLabel:
    """Plain text; `tone` is one that the style sheet knows (dim, small, section, title, mono, error)."""
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
    """`kind` is one that the style sheet knows: primary, link, quiet or segment; segments stay pressed."""
    button = QPushButton(text)
    button.setToolTip(tooltip)
    button.setCheckable(kind == "segment")
    if kind:
        button.setProperty("kind", kind)
    if height:
        button.setFixedHeight(height)
    button.clicked.connect(lambda _checked=False: on_click())
    return button


def framed(title: str) -> tuple[QFrame, QVBoxLayout]:
    """A card with its heading, and the column to go on in."""
    frame = QFrame()
    frame.setProperty("kind", "card")
    heading = text_label(title.upper(), "section")
    return frame, column(heading, on=frame, margins=(16, 12, 16, 14), spacing=6)


def scrolled(inside: QWidget, name: str) -> QScrollArea:
    """A widget that takes the width that there is, and scrolls where it is higher than its room; `name` is
    said where the keyboard scrolls it.
    """
    area = QScrollArea()
    area.setAccessibleName(name)
    area.setWidgetResizable(True)
    area.setWidget(inside)
    return area


def reading_column(page: QWidget, max_width: int, margins: Margins, spacing: int) -> QVBoxLayout:
    """The column of a page that is read: it scrolls, and is no wider than lines should be long."""
    inside = QWidget()
    inside.setMaximumWidth(max_width)
    column(scrolled(inside, page.accessibleName()), on=page)
    return column(on=inside, margins=margins, spacing=spacing)


def make_in_turns(owner: QObject, parts: Iterator[object]) -> None:
    """Take one part in each turn of the event loop: what a person does meanwhile is not kept waiting."""
    turns, none_left = QTimer(owner, interval=0), object()

    def make_next() -> None:
        if next(parts, none_left) is none_left:
            turns.stop()

    turns.timeout.connect(make_next)
    turns.start()
