"""What a person can read in a widget, whether it is set or painted; and what of it is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from PySide6.QtCore import QAbstractListModel, QAbstractTableModel, QModelIndex, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QComboBox,
    QGraphicsSimpleTextItem,
    QGraphicsTextItem,
    QGraphicsView,
    QGroupBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QTabBar,
    QToolButton,
    QWidget,
)

UNTRANSLATED = Path(__file__).with_name("untranslated.txt")
"""A regular expression a line: what reads alike in every language, and why (after #)."""

_MAX_ROWS = 40
_FLAT_MODELS = (QAbstractListModel, QAbstractTableModel)


def untranslated_words(text: str, exceptions: re.Pattern[str]) -> list[str]:
    """The words of a text in the made-up language that are as they are in English: three plain letters or
    more in a row, beside no accented one, that are not to be kept.
    """
    plain_text = re.sub(r"<[^<>]+>", " ", text)
    return re.findall(r"(?<![^\W\d_])[A-Za-z]{3,}(?![^\W\d_])", exceptions.sub(" ", unescape(plain_text)))


def untranslated_pattern() -> re.Pattern[str]:
    lines = (line.split("  #")[0].strip() for line in UNTRANSLATED.read_text("utf-8").splitlines())
    return re.compile("|".join(f"(?:{line})" for line in lines if line and not line.startswith("#")))


def visible_texts(root: QWidget) -> Iterator[tuple[str, str]]:
    """Where and what: of a widget and all that is visible in it, with tooltips and accessible names."""
    for widget in (root, *root.findChildren(QWidget)):
        if widget is root or widget.isVisibleTo(root):
            where = type(widget).__name__
            yield from ((where, text) for text in _property_texts(widget) if text)


def _property_texts(widget: QWidget) -> Iterator[str]:
    yield from (widget.toolTip(), widget.accessibleName(), widget.accessibleDescription())
    if isinstance(widget, QAbstractButton | QLabel):
        yield widget.text()
    if isinstance(widget, QGroupBox | QMenu):
        yield widget.title()
    if isinstance(widget, QLineEdit | QPlainTextEdit):
        yield widget.placeholderText()
    if isinstance(widget, QComboBox):
        yield from (widget.itemText(at) for at in range(widget.count()))
        yield from (
            str(widget.itemData(at, Qt.ItemDataRole.ToolTipRole) or "") for at in range(widget.count())
        )
    if isinstance(widget, QTabBar):
        yield from (widget.tabText(at) for at in range(widget.count()))
        yield from (widget.tabToolTip(at) for at in range(widget.count()))
    if isinstance(widget, QGraphicsView):
        yield from _scene_texts(widget)
    if isinstance(widget, QAbstractItemView) and not isinstance(widget, QHeaderView):
        yield from _row_texts(widget)
    for action in widget.actions():
        yield from _action_texts(action)


def _scene_texts(view: QGraphicsView) -> Iterator[str]:
    for item in view.scene().items() if view.scene() is not None else ():
        if isinstance(item, QGraphicsTextItem) and item.isVisible():
            yield item.toPlainText()
        elif isinstance(item, QGraphicsSimpleTextItem) and item.isVisible():
            yield item.text()


def _action_texts(action: QAction) -> Iterator[str]:
    yield from (action.text(), action.toolTip(), action.statusTip())


def _row_texts(view: QAbstractItemView, parent: QModelIndex | None = None) -> Iterator[str]:
    model = view.model()
    if model is None:
        return
    above = parent or QModelIndex()
    is_list, is_tree = isinstance(model, QAbstractListModel), not isinstance(model, _FLAT_MODELS)
    for column in range(1 if is_list else model.columnCount(above)):
        yield str(model.headerData(column, Qt.Orientation.Horizontal) or "")
        for row in range(min(model.rowCount(above), _MAX_ROWS)):
            index = model.index(row, column, above)
            for role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
                value = index.data(role)
                yield value if isinstance(value, str) else ""
            if column == 0 and is_tree and model.hasChildren(index):
                yield from _row_texts(view, index)


def cut_texts(root: QWidget) -> Iterator[str]:
    """Labels and buttons whose text is wider than they are, or higher where it wraps."""
    for widget in root.findChildren(QWidget):
        if not widget.isVisibleTo(root) or not widget.isVisible():
            continue
        if isinstance(widget, QLabel) and widget.text() and widget.textFormat() != Qt.TextFormat.RichText:
            yield from _cut_label_texts(widget)
        elif isinstance(widget, QAbstractButton) and widget.text() and not isinstance(widget, QToolButton):
            needed = widget.minimumSizeHint().width()
            if widget.width() + 1 < needed:
                yield f"{type(widget).__name__} {widget.text()!r}: {widget.width()} of {needed} px"


def _cut_label_texts(label: QLabel) -> Iterator[str]:
    room = label.contentsRect()
    if label.wordWrap():
        needed = label.heightForWidth(label.width())
        if label.height() + 1 < needed:
            yield f"{type(label).__name__} {label.text()!r}: {label.height()} of {needed} px high"
    elif label.text() in label.toolTip():
        return  # it is told that there is more
    elif room.width() + 1 < label.fontMetrics().horizontalAdvance(label.text().split("\n")[0]):
        yield f"{type(label).__name__} {label.text()!r}: {room.width()} px wide"
