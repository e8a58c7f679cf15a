"""The command palette: commands (Ctrl+Shift+P, ">"), quick open (Ctrl+P), lists to pick from and short
questions.

Each time it opens, quick open asks every provider for its items once. fuzzy.py filters the items while the
user types. `pick` and `prompt` use the same box for a single question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from PySide6.QtCore import QEvent, QModelIndex, QObject, QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget

from rankdeck_app.language import tr
from rankdeck_app.shell.floating_list import MAX_ROWS, FloatingList, PaletteRow, QuickPickItem
from rankdeck_app.shell.fuzzy import FuzzyMatch, fuzzy_match
from rankdeck_app.shell.services import Services
from rankdeck_app.widgets.layouts import column

COMMAND_PREFIX = ">"
# A preview may take a good part of a second, so rows that the user only passes are not previewed.
PREVIEW_DELAY_MS = 80
_KEY_STEPS = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: MAX_ROWS,
    Qt.Key.Key_PageUp: -MAX_ROWS,
}

QuickProvider = Callable[[], Sequence[QuickPickItem]]
"""Function that returns quick open items. It must be fast, since it runs when the palette opens."""


class CommandPalette(FloatingList):
    """The command palette. Escape or a click elsewhere closes it."""

    def __init__(self, services: Services, parent: QWidget) -> None:
        super().__init__(services, parent, tr("Command palette"), tr("Results"))
        self._providers: list[QuickProvider] = []
        self._recent_ids: list[str] = []
        self._make_rows: Callable[[str], list[PaletteRow]] = lambda _text: []
        self._is_quick_open = False
        self._on_cancel: Callable[[], object] | None = None
        self._preview_timer = QTimer(self, interval=PREVIEW_DELAY_MS, singleShot=True)
        self._preview_timer.timeout.connect(self._preview)
        self.input = QLineEdit()
        self.input.setAccessibleName(tr("Type to search"))
        self.input.textChanged.connect(self._update_rows)
        self.input.installEventFilter(self)
        self.list.selectionModel().currentChanged.connect(lambda _new, _old: self._preview_timer.start())
        column(self.input, self.list, on=self, margins=(8, 8, 8, 8), spacing=6)
        services.commands.ran.connect(self._add_recent)

    def add_provider(self, provider: QuickProvider) -> None:
        """Add a provider of quick open items."""
        self._providers.append(provider)
        self._services.context.set("quickOpen", True)

    def show_commands(self) -> None:
        self._open(COMMAND_PREFIX, "", self._quick_open_rows())
        self._is_quick_open = True

    def show_quick_open(self, text: str = "") -> None:
        self._open(text, tr("Search by name; > for commands"), self._quick_open_rows())
        self._is_quick_open = True

    def refresh_quick_open(self) -> None:
        """List the items again if quick open is visible; providers call this when they have more items."""
        if self.isVisible() and self._is_quick_open:
            self._make_rows = self._quick_open_rows()
            self._update_rows(self.input.text())

    def pick(
        self,
        items: Sequence[QuickPickItem],
        placeholder: str,
        *,
        current_index: int = 0,
        on_cancel: Callable[[], object] | None = None,
        keep_input: bool = False,
    ) -> None:
        """Ask the user to pick one of `items`; the item at `current_index` is selected initially. Call the
        chosen item's callback, or `on_cancel` if no item is chosen.

        `keep_input` keeps the typed text and the scroll position of the previous question, for a question
        that is asked again after every choice.
        """
        bar = self.list.verticalScrollBar()
        text, scrolled = (self.input.text(), bar.value()) if keep_input else ("", 0)
        self._open(text, placeholder, lambda text: _filter_items(text, items))
        self._on_cancel = on_cancel
        self.input.selectAll()
        self.list.setCurrentIndex(self.model.index(current_index))
        if keep_input:
            bar.setValue(scrolled)

    def prompt(self, placeholder: str, answer: Callable[[str], object], text: str = "") -> None:
        """Ask for a line of text; Enter passes it to `answer`."""

        def rows_for(typed: str) -> list[PaletteRow]:
            hint = tr("Press Enter to confirm or Escape to cancel")
            return [PaletteRow(QuickPickItem(placeholder, hint, partial(answer, typed)))]

        self._open(text, placeholder, rows_for)
        self.input.selectAll()

    def _open(self, text: str, placeholder: str, rows_for: Callable[[str], list[PaletteRow]]) -> None:
        self._cancel_preview()
        self._make_rows, self._is_quick_open = rows_for, False
        self.input.setPlaceholderText(placeholder)
        # The rows are updated once, below.
        with QSignalBlocker(self.input):
            self.input.setText(text)
        self._update_rows(text)
        self.open_with_focus(self.input)
        self._services.context.set("paletteOpen", True)

    def dismiss(self) -> None:
        """Close the palette without a choice and undo the preview."""
        if self.isVisible():
            self._cancel_preview()
            self._services.context.set("paletteOpen", False)
            super().dismiss()

    def _cancel_preview(self) -> None:
        """Undo the preview of an item that was not chosen."""
        self._preview_timer.stop()
        left, self._on_cancel = self._on_cancel, None
        if left is not None:
            left()

    def _preview(self) -> None:
        row = self.list.currentIndex().row()
        preview = self.model.rows[row].item.preview if 0 <= row < len(self.model.rows) else None
        # A row without a preview shows the original state.
        show = preview or self._on_cancel
        if show is not None and self.isVisible():
            show()

    def _quick_open_rows(self) -> Callable[[str], list[PaletteRow]]:
        """Return a function that lists the rows for the typed text: commands if the text starts with ">",
        otherwise quick open items. The function asks the providers only on its first use."""

        @cache
        def listed() -> list[QuickPickItem]:
            return [item for provider in self._providers for item in provider()]

        def rows_for(text: str) -> list[PaletteRow]:
            if text.startswith(COMMAND_PREFIX):
                return _filter_items(text[1:], self._command_items())
            return _filter_items(text, listed())

        return rows_for

    def _command_items(self) -> list[QuickPickItem]:
        """Return the enabled commands, recently used first, with their English titles as aliases."""
        services = self._services
        rank = {command_id: at for at, command_id in enumerate(self._recent_ids)}
        commands = [c for c in services.commands if c.palette and services.commands.is_enabled(c.id)]
        commands.sort(key=lambda c: (rank.get(c.id, len(rank)), c.display_title))
        run, keys_of = services.commands.run, services.keymap.text_for
        return [
            QuickPickItem(c.display_title, "", partial(run, c.id), keys_of(c.id), alias=c.title)
            for c in commands
        ]

    def _add_recent(self, command_id: str) -> None:
        # Commands that open the palette itself are not recent commands.
        if command_id.startswith("palette.") or not self._services.commands[command_id].palette:
            return
        self._recent_ids = [command_id, *(other for other in self._recent_ids if other != command_id)][:20]

    def _update_rows(self, text: str) -> None:
        rows = self._make_rows(text)
        num_staying = sum(row.item.always_show for row in rows)
        if num_staying == len(rows):
            # A row without a callback cannot be chosen.
            rows = [*rows, PaletteRow(QuickPickItem(tr("No matching results")))]
        self.model.set_rows(rows)
        # Typed text selects the best match instead of a row that is always shown.
        self.list.setCurrentIndex(self.model.index(num_staying if text.strip() else 0))
        self.reposition()

    def choose(self, index: QModelIndex) -> None:
        """Close the palette and run the row's callback; the preview stays in effect."""
        if self._get_callback(index) is not None:
            self._on_cancel = None
            super().choose(index)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusOut and self.isVisible():
            if not self.isAncestorOf(QApplication.focusWidget() or self.window()):
                # The user has focused another widget: do not take the focus back.
                self._previous_focus = None
                self.dismiss()
        elif event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            return self._on_key(Qt.Key(event.key()), event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        return False

    def _on_key(self, key: Qt.Key, shift: Qt.KeyboardModifier) -> bool:
        """Handle a key meant for the list; return whether the key was handled.

        Home and End are left to the text field if Shift is pressed, or if there is only one row.
        """
        last = len(self.model.rows) - 1
        ends = {} if shift or not last else {Qt.Key.Key_Home: 0, Qt.Key.Key_End: last}
        row = self.list.currentIndex().row()
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.choose(self.list.currentIndex())
        elif key == Qt.Key.Key_Escape:
            self.dismiss()
        elif step := _KEY_STEPS.get(key):
            wrapped = (row + step) % (last + 1) if abs(step) == 1 else min(last, max(0, row + step))
            self.list.setCurrentIndex(self.model.index(wrapped))
        elif key in ends:
            self.list.setCurrentIndex(self.model.index(ends[key]))
        else:
            return False
        return True


def _filter_items(text: str, items: Sequence[QuickPickItem]) -> list[PaletteRow]:
    """Return the matching items, best match first; without a text, return all in their original order."""
    if not text.strip():
        return [PaletteRow(item) for item in items]
    pinned_rows = [PaletteRow(item) for item in items if item.always_show]
    others = [item for item in items if not item.always_show]
    matches = [(match, item) for item in others if (match := _match_item(text, item)) is not None]
    matches.sort(key=lambda pair: -pair[0].score)
    return pinned_rows + [PaletteRow(item, match.positions) for match, item in matches]


def _match_item(text: str, item: QuickPickItem) -> FuzzyMatch | None:
    """Match `text` against the label, or else the alias; an alias match has nothing to highlight."""
    match = fuzzy_match(text, item.label)
    if match is None and (also := fuzzy_match(text, item.alias)) is not None:
        match = FuzzyMatch(also.score, ())
    return match
