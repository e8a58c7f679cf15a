"""The box at the top middle: commands (Ctrl+Shift+P, ">"), quick open (Ctrl+P), choices and short questions
of commands.

Quick open asks every provider for its items once per opening. Items are filtered by fuzzy.py while typing.
`pick` and `ask` show the same box for one question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QSignalBlocker,
    QSize,
    Qt,
    QTimer,
)
from PySide6.QtGui import QColor, QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QGraphicsDropShadowEffect,
    QLineEdit,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from rankdeck_app.language import tr
from rankdeck_app.shell.fuzzy import Match, fuzzy_match
from rankdeck_app.shell.services import Services
from rankdeck_app.theme import draw_icon
from rankdeck_app.widgets.painting import RIGHT, paint_text, painted_width

WIDTH = 600
ROW_HEIGHT = 27
MAX_ROWS = 14
COMMAND_PREFIX = ">"
# What is previewed may cost a good part of a second: not for rows that one hurries over.
PREVIEW_AFTER_MS = 80
_STEPS = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1, Qt.Key.Key_PageDown: MAX_ROWS, Qt.Key.Key_PageUp: -MAX_ROWS}


@dataclass(frozen=True)
class QuickItem:
    """A row: what it says, what it says in grey, what stands at its right, what choosing it does, what
    being on it does, and what else it is found by. One that `stays` is first, whatever is typed.
    """

    label: str
    description: str = ""
    callback: Callable[[], object] | None = None
    right: str = ""
    icon: str = ""
    preview: Callable[[], object] | None = None
    also: str = ""
    stays: bool = False


QuickProvider = Callable[[], Sequence[QuickItem]]
"""Where quick open's rows come from. It must be quick: it runs when the box opens."""


@dataclass(frozen=True)
class PaletteRow:
    """An item with the places in its label that the typed text matched."""

    item: QuickItem
    marks: tuple[int, ...] = ()


class RowModel(QAbstractListModel):
    ROW = int(Qt.ItemDataRole.UserRole)
    rows: Sequence[PaletteRow] = ()

    def set_rows(self, rows: list[PaletteRow]) -> None:
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: QModelIndex | QPersistentModelIndex, role: int = 0) -> Any:
        row = self.rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return row.item.label
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return ", ".join(filter(None, (row.item.label, row.item.description, row.item.right)))
        return row if role == self.ROW else None


class RowDelegate(QStyledItemDelegate):
    def __init__(self, services: Services, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = services.theme

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(100, ROW_HEIGHT)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        row: PaletteRow = index.data(RowModel.ROW)
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        selected = bool(state & QStyle.StateFlag.State_Selected)
        color = self._theme.color
        painter.save()
        if selected or state & QStyle.StateFlag.State_MouseOver:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(color("contrastActiveBorder") if selected else Qt.PenStyle.NoPen)
            painter.setBrush(color("list.activeSelectionBackground" if selected else "list.hoverBackground"))
            painter.drawRoundedRect(
                rect.toRectF().adjusted(0.5, 0.5, -0.5, -0.5) if selected else rect.toRectF(), 3, 3
            )
        dim = color("list.activeSelectionForeground" if selected else "descriptionForeground")
        ink = color("quickInput.foreground") if row.item.callback and not selected else dim
        x = rect.x() + 16
        if row.item.icon:
            draw_icon(painter, row.item.icon, QRect(rect.x() + 12, rect.y() + 6, 15, 15).toRectF(), ink)
            x += 18
        right = rect.right() - 14
        if row.item.right:
            room = QRect(x, rect.y(), right - x, rect.height())
            right -= painted_width(painter, paint_text(painter, room, row.item.right, dim, 12, RIGHT))
        x = self._paint_label(painter, row, QRect(x, rect.y(), right - x - 12, rect.height()), ink)
        if row.item.description and right - x > 30:
            area = QRect(x + 10, rect.y(), right - x - 22, rect.height())
            paint_text(painter, area, row.item.description, dim, 11, elide=Qt.TextElideMode.ElideMiddle)
        painter.restore()

    def _paint_label(self, painter: QPainter, row: PaletteRow, area: QRect, ink: QColor) -> int:
        """Draw the label with its matched letters lit; where it ended."""
        label = paint_text(painter, area, row.item.label, ink, 12, elide=Qt.TextElideMode.ElideRight)
        metrics = painter.fontMetrics()
        lit = self._theme.color("list.highlightForeground")
        num_whole = len(label) if label == row.item.label else len(label) - 1
        for at in (at for at in row.marks if at < num_whole):
            x = area.x() + metrics.horizontalAdvance(label[:at])
            box = QRect(x, area.y(), metrics.horizontalAdvance(label[at]) + 1, area.height())
            paint_text(painter, box, label[at], lit, 12)
        return area.x() + metrics.horizontalAdvance(label)


class Palette(QFrame):
    """One box for all its uses; hidden when not in use. Escape or a click elsewhere closes it."""

    def __init__(self, services: Services, parent: QWidget) -> None:
        super().__init__(parent)
        self._room = parent
        self._services = services
        self._providers: list[QuickProvider] = []
        self._recent: list[str] = []
        self._rows_for: Callable[[str], list[PaletteRow]] = lambda _text: []
        self._is_general = False
        self._focus_before: QWidget | None = None
        self._left: Callable[[], object] | None = None
        self._preview_timer = QTimer(self, interval=PREVIEW_AFTER_MS, singleShot=True)
        self._preview_timer.timeout.connect(self._preview)
        self.setProperty("kind", "floating")
        self.setAccessibleName(tr("Command palette"))
        self.input = QLineEdit()
        self.input.setAccessibleName(tr("Type to search"))
        self.input.textChanged.connect(self._refilter)
        self.input.installEventFilter(self)
        self.list = QListView()
        self.list.setAccessibleName(tr("Results"))
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setMouseTracking(True)
        self.list.setUniformItemSizes(True)
        self.model = RowModel(self.list)
        self.list.setModel(self.model)
        self.list.setItemDelegate(RowDelegate(services, self.list))
        self.list.clicked.connect(self._choose)
        self.list.selectionModel().currentChanged.connect(lambda _new, _old: self._preview_timer.start())
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 8, 8, 8)
        column.setSpacing(6)
        column.addWidget(self.input)
        column.addWidget(self.list)
        shadow = QGraphicsDropShadowEffect(self)
        shadow.setBlurRadius(24)
        shadow.setOffset(0, 6)
        self.setGraphicsEffect(shadow)
        self._shadow = shadow
        services.commands.ran.connect(self._remember)
        self.hide()

    def add_provider(self, provider: QuickProvider) -> None:
        """Add a source of quick open rows."""
        self._providers.append(provider)
        self._services.context.set("quickOpen", True)

    def show_commands(self) -> None:
        self._begin(COMMAND_PREFIX, "", self._general_rows())
        self._is_general = True

    def show_quick_open(self, text: str = "") -> None:
        self._begin(text, tr("Search by name; > for commands"), self._general_rows())
        self._is_general = True

    def refresh_quick_open(self) -> None:
        """A provider has found more: list it, if quick open is what is shown."""
        if self.isVisible() and self._is_general:
            self._rows_for = self._general_rows()
            self._refilter(self.input.text())

    def pick(
        self,
        items: Sequence[QuickItem],
        placeholder: str,
        *,
        at: int = 0,
        left: Callable[[], object] | None = None,
        goes_on: bool = False,
    ) -> None:
        """Ask for one of `items`, beginning on the one `at`; the chosen one's callback runs, or `left` where
        none is chosen. Where the question `goes_on` after a choice, what was typed holds until something else
        is, and the list stays where it was.
        """
        bar = self.list.verticalScrollBar()
        text, scrolled = (self.input.text(), bar.value()) if goes_on else ("", 0)
        self._begin(text, placeholder, lambda text: _filtered(text, items))
        self._left = left
        self.input.selectAll()
        self.list.setCurrentIndex(self.model.index(at))
        if goes_on:
            bar.setValue(scrolled)

    def ask(self, placeholder: str, answer: Callable[[str], object], text: str = "") -> None:
        """Ask for a line of text; `answer` gets it on Enter."""

        def rows_for(typed: str) -> list[PaletteRow]:
            hint = tr("Enter to accept, Escape to leave")
            return [PaletteRow(QuickItem(placeholder, hint, partial(answer, typed)))]

        self._begin(text, placeholder, rows_for)
        self.input.selectAll()

    def _begin(self, text: str, placeholder: str, rows_for: Callable[[str], list[PaletteRow]]) -> None:
        if not self.isVisible():
            self._focus_before = QApplication.focusWidget()
        self._leave()
        self._rows_for, self._is_general = rows_for, False
        self.input.setPlaceholderText(placeholder)
        self._shadow.setColor(self._services.theme.color("widget.shadow"))
        with QSignalBlocker(self.input):
            self.input.setText(text)
        self._refilter(text)
        self.show()
        self.raise_()
        self.input.setFocus(Qt.FocusReason.PopupFocusReason)
        self._services.context.set("paletteOpen", True)

    def dismiss(self) -> None:
        """Close without choosing; the keyboard goes back to where it was."""
        if not self.isVisible():
            return
        self.hide()
        self._leave()
        self._services.context.set("paletteOpen", False)
        before, self._focus_before = self._focus_before, None
        if before is not None and before.isVisible():
            before.setFocus(Qt.FocusReason.PopupFocusReason)

    def _leave(self) -> None:
        """What was previewed and not chosen is taken back."""
        self._preview_timer.stop()
        left, self._left = self._left, None
        if left is not None:
            left()

    def _preview(self) -> None:
        row = self.list.currentIndex().row()
        preview = self.model.rows[row].item.preview if 0 <= row < len(self.model.rows) else None
        show = preview or self._left
        if show is not None and self.isVisible():
            show()

    def place(self) -> None:
        """Keep to the top middle of the window."""
        room = self._room.size()
        num_rows = max(1, min(MAX_ROWS, len(self.model.rows)))
        self.list.setFixedHeight(num_rows * ROW_HEIGHT)
        width = min(WIDTH, room.width() - 32)
        self.setFixedWidth(width)
        self.adjustSize()
        self.move((room.width() - width) // 2, 6)

    def _general_rows(self) -> Callable[[str], list[PaletteRow]]:
        """Rows for commands and quick open. Providers are asked once per opening."""

        @cache
        def listed() -> list[QuickItem]:
            return [item for provider in self._providers for item in provider()]

        def rows_for(text: str) -> list[PaletteRow]:
            if text.startswith(COMMAND_PREFIX):
                return _filtered(text[1:], self._command_items())
            return _filtered(text, listed())

        return rows_for

    def _command_items(self) -> list[QuickItem]:
        """Commands that apply now; those used last come first. Each is found by its English title, too."""
        services = self._services
        rank = {command_id: at for at, command_id in enumerate(self._recent)}
        commands = [c for c in services.commands if c.palette and services.commands.enabled(c.id)]
        commands.sort(key=lambda c: (rank.get(c.id, len(rank)), c.shown))
        run, keys_of = services.commands.run, services.keymap.text_for
        return [QuickItem(c.shown, "", partial(run, c.id), keys_of(c.id), also=c.title) for c in commands]

    def _remember(self, command_id: str) -> None:
        if command_id.startswith("palette.") or not self._services.commands[command_id].palette:
            return
        self._recent = [command_id, *(other for other in self._recent if other != command_id)][:20]

    def _refilter(self, text: str) -> None:
        rows = self._rows_for(text)
        num_staying = sum(row.item.stays for row in rows)
        if num_staying == len(rows):
            rows = [*rows, PaletteRow(QuickItem(tr("Nothing matches")))]
        self.model.set_rows(rows)
        self.list.setCurrentIndex(self.model.index(num_staying if text.strip() else 0))
        self.place()

    def _choose(self, index: QModelIndex) -> None:
        if index.isValid() and (callback := self.model.rows[index.row()].item.callback) is not None:
            self._left = None
            self.dismiss()
            callback()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusOut and self.isVisible():
            if not self.isAncestorOf(QApplication.focusWidget() or self.window()):
                self._focus_before = None
                self.dismiss()
        elif event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            return self._on_key(Qt.Key(event.key()), event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        return False

    def _on_key(self, key: Qt.Key, shift: Qt.KeyboardModifier) -> bool:
        """Whether it is the list's; Home and End are the text's where they select, or there is one row."""
        last = len(self.model.rows) - 1
        ends = {} if shift or not last else {Qt.Key.Key_Home: 0, Qt.Key.Key_End: last}
        row = self.list.currentIndex().row()
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._choose(self.list.currentIndex())
        elif key == Qt.Key.Key_Escape:
            self.dismiss()
        elif step := _STEPS.get(key):
            wrapped = (row + step) % (last + 1) if abs(step) == 1 else min(last, max(0, row + step))
            self.list.setCurrentIndex(self.model.index(wrapped))
        elif key in ends:
            self.list.setCurrentIndex(self.model.index(ends[key]))
        else:
            return False
        return True


def _filtered(text: str, items: Sequence[QuickItem]) -> list[PaletteRow]:
    """Best matches first; without text, all in their own order."""
    if not text.strip():
        return [PaletteRow(item) for item in items]
    staying = [PaletteRow(item) for item in items if item.stays]
    others = [item for item in items if not item.stays]
    matches = [(match, item) for item in others if (match := _match(text, item)) is not None]
    matches.sort(key=lambda pair: -pair[0].score)
    return staying + [PaletteRow(item, match.at) for match, item in matches]


def _match(text: str, item: QuickItem) -> Match | None:
    """In what an item says, else in what it is also found by, of which no letter is seen."""
    match = fuzzy_match(text, item.label)
    if match is None and (also := fuzzy_match(text, item.also)) is not None:
        match = Match(also.score, ())
    return match
