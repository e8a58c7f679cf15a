"""Find bar (Ctrl+F) for long text: pattern, number of matches, next, previous, case and regex.

A `TextSearch` does the search: `EditorSearch` in code, `LineSearch` in output lines. Patterns use
QRegularExpression, which gives up on a match that would take forever. F3 and Enter go to the next match, and
Escape closes the bar.
"""

from __future__ import annotations

from bisect import bisect_left

from PySide6.QtCore import QEvent, QModelIndex, QObject, QRegularExpression, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent, QTextCursor
from PySide6.QtWidgets import QLineEdit, QListView, QWidget

from rankdeck_app.language import tr
from rankdeck_app.state.output import OutputLine, OutputModel
from rankdeck_app.theme import Theme, set_style_properties
from rankdeck_app.widgets.code_editor import CodeEditor
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import row, text_label

MAX_MATCHES = 10_000


class TextSearch(QObject):
    """Base class of searches in a text.

    `changed` is emitted when the matches may have changed. `current_index` counts from 0; None means that no
    match is selected.
    """

    changed = Signal()
    num_matches = 0
    current_index: int | None = None

    def find(self, pattern: QRegularExpression | None) -> None:
        """Search for a pattern, now and whenever the text changes; None ends the search."""
        raise NotImplementedError

    def step(self, step: int) -> None:
        """Go to the next (1) or previous (-1) match, wrapping around."""
        raise NotImplementedError

    def selected_text(self) -> str:
        """Return the selected text, which becomes the pattern when the find bar opens."""
        raise NotImplementedError

    def focus_text(self) -> None:
        """Move the keyboard focus back to the text."""
        raise NotImplementedError


class EditorSearch(TextSearch):
    """Search in an editor's text; the current match is the selection."""

    def __init__(self, editor: CodeEditor) -> None:
        super().__init__(editor)
        self._editor = editor
        self._pattern: QRegularExpression | None = None
        self._matches: list[tuple[int, int]] = []
        editor.textChanged.connect(self._search)

    def find(self, pattern: QRegularExpression | None) -> None:
        """Search for a pattern and select the first match at or after the cursor."""
        self._pattern = pattern
        self._search()
        start = self._editor.textCursor().selectionStart()
        if self._matches:
            self._select(bisect_left(self._matches, (start, 0)) % len(self._matches))

    def _search(self) -> None:
        if self._pattern is None and not self._matches:
            return
        self._matches = []
        matches = self._pattern.globalMatch(self._editor.toPlainText()) if self._pattern is not None else None
        while matches is not None and matches.hasNext() and len(self._matches) < MAX_MATCHES:
            match = matches.next()
            # Empty matches, as of "a*", cannot be selected.
            if match.capturedLength():
                self._matches.append((match.capturedStart(), match.capturedEnd()))
        here = self._editor.textCursor()
        chosen = here.selectionStart(), here.selectionEnd()
        self.num_matches = len(self._matches)
        self.current_index = self._matches.index(chosen) if chosen in self._matches else None
        self._editor.show_matches(self._matches)
        self.changed.emit()

    def step(self, step: int) -> None:
        if not self._matches:
            return
        here = self._editor.textCursor()
        if step > 0:
            at = bisect_left(self._matches, (here.selectionEnd(), 0))
        else:
            at = bisect_left(self._matches, (here.selectionStart(), 0)) - 1
        self._select(at % len(self._matches))

    def _select(self, at: int) -> None:
        self.current_index = at
        cursor = self._editor.textCursor()
        cursor.setPosition(self._matches[at][0])
        cursor.setPosition(self._matches[at][1], QTextCursor.MoveMode.KeepAnchor)
        self._editor.setTextCursor(cursor)
        self._editor.ensureCursorVisible()
        self.changed.emit()

    def selected_text(self) -> str:
        text = self._editor.textCursor().selectedText()
        # A selection with a paragraph separator spans several lines and is no useful pattern.
        return "" if "\u2029" in text else text

    def focus_text(self) -> None:
        self._editor.setFocus(Qt.FocusReason.OtherFocusReason)


class FindBar(QWidget):
    """Bar with the find controls, hidden until `open` is called."""

    def __init__(self, theme: Theme, search: TextSearch) -> None:
        super().__init__()
        self.setObjectName("findBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.search = search
        self.input = QLineEdit(placeholderText=tr("Find"))
        self.input.setProperty("compact", "true")
        self.input.setMinimumWidth(120)
        self.input.setMaximumWidth(260)
        self.input.setAccessibleName(tr("Find"))
        self.input.textChanged.connect(self._update_search)
        self.input.installEventFilter(self)
        self.case_button = tool_button(theme, "case-sensitive", tr("Match Case (Alt+C)"), self._update_search)
        self.regex_button = tool_button(theme, "regex", tr("Regular Expression (Alt+R)"), self._update_search)
        for switch in (self.case_button, self.regex_button):
            switch.setCheckable(True)
        self.count_label = text_label(tone="small", wrap=False)
        self.count_label.setMinimumWidth(76)
        before = tr("Previous Match (Shift+Enter)")
        self.previous_button = tool_button(theme, "arrow-up", before, lambda: self.step(-1))
        self.next_button = tool_button(theme, "arrow-down", tr("Next Match (Enter)"), lambda: self.step(1))
        self.close_button = tool_button(theme, "close", tr("Close (Escape)"), self.close_bar)
        widgets = (
            self.case_button,
            self.regex_button,
            self.count_label,
            self.previous_button,
            self.next_button,
            self.close_button,
        )
        row(None, (self.input, 2), *widgets, on=self, margins=(16, 4, 12, 4), spacing=4)
        search.changed.connect(self._update_count)
        self.hide()

    def open(self) -> None:
        """Show and focus the bar; text selected in the document becomes the pattern."""
        chosen = self.search.selected_text()
        # The search is updated once, below.
        with QSignalBlocker(self.input):
            self.input.setText(chosen or self.input.text())
        self.show()
        self.input.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.input.selectAll()
        self._update_search()

    def step(self, step: int) -> None:
        """Go to the next (1) or previous (-1) match; if the bar is hidden or has no pattern, open it."""
        if self.isHidden() or not self.input.text():
            self.open()
        else:
            self.search.step(step)

    def close_bar(self) -> None:
        self.hide()
        self.search.find(None)
        self.search.focus_text()

    def _update_search(self) -> None:
        pattern = self._make_pattern()
        is_wrong = pattern is not None and not pattern.isValid()
        set_style_properties(self.input, invalid="true" if is_wrong else "false")
        why = tr("Invalid pattern: {why}", why=pattern.errorString()) if is_wrong and pattern else ""
        self.input.setToolTip(why)
        self.search.find(None if is_wrong else pattern)
        self._update_count()

    def _make_pattern(self) -> QRegularExpression | None:
        text = self.input.text()
        if not text:
            return None
        # ^ and $ match at every line.
        options = QRegularExpression.PatternOption.MultilineOption
        if not self.case_button.isChecked():
            options |= QRegularExpression.PatternOption.CaseInsensitiveOption
        return QRegularExpression(
            text if self.regex_button.isChecked() else QRegularExpression.escape(text), options
        )

    def _update_count(self) -> None:
        search = self.search
        count = f"{search.num_matches}{'+' if search.num_matches >= MAX_MATCHES else ''}"
        at = "?" if search.current_index is None else str(search.current_index + 1)
        text = tr("{at} of {count}", at=at, count=count) if search.num_matches else tr("No results")
        if self.input.property("invalid") == "true":
            text = tr("Invalid pattern")
        self.count_label.setText(text if self.input.text() else "")
        for button in (self.previous_button, self.next_button):
            button.setEnabled(bool(search.num_matches))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() != QEvent.Type.KeyPress or not isinstance(event, QKeyEvent):
            return False
        alt = event.modifiers() == Qt.KeyboardModifier.AltModifier
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.step(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        elif alt and event.key() in (Qt.Key.Key_C, Qt.Key.Key_R):
            (self.case_button if event.key() == Qt.Key.Key_C else self.regex_button).click()
        else:
            return False
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.close_bar()
        else:
            super().keyPressEvent(event)


# Search in the lines of the output.


class LineSearch(TextSearch):
    """Search in output lines, including lines that arrive later."""

    def __init__(self, lines: QListView, model: OutputModel) -> None:
        super().__init__(lines)
        self._list, self._model = lines, model
        self.pattern: QRegularExpression | None = None
        self._rows: list[int] = []
        model.rowsInserted.connect(self._on_rows_inserted)
        model.rowsRemoved.connect(self._on_rows_removed)
        model.modelReset.connect(self._search)
        lines.selectionModel().currentChanged.connect(lambda _new, _old: self._update_current())

    def find(self, pattern: QRegularExpression | None) -> None:
        """Search for a pattern and select the first matching line, starting at the current line.

        If neither the current line nor a later line matches, or there is no current line, select the last
        match, because output is read from its end.
        """
        self.pattern = pattern
        self._search()
        if self._rows:
            here = self._list.currentIndex().row()
            # Without a current line, `here` is -1.
            later = (row for row in self._rows if row >= here >= 0)
            self._select(next(later, self._rows[-1]))

    def _search(self) -> None:
        self._rows = []
        self._search_rows(0, self._model.rowCount() - 1)

    def _on_rows_inserted(self, _parent: QModelIndex, first: int, last: int) -> None:
        self._search_rows(first, last)

    def _search_rows(self, first: int, last: int) -> None:
        if self.pattern is not None:
            self._rows += [row for row in range(first, last + 1) if self._is_match(row)]
        self._update_current()

    def _is_match(self, row: int) -> bool:
        line: OutputLine = self._model.index(row).data(OutputModel.LineRole)
        return self.pattern is not None and self.pattern.match(line.text).hasMatch()

    def _on_rows_removed(self, _parent: QModelIndex, _first: int, last: int) -> None:
        """Shift the matches after the model has removed its oldest lines."""
        self._rows = [row - last - 1 for row in self._rows if row > last]
        self._update_current()

    def step(self, step: int) -> None:
        if not self._rows:
            return
        here = self._list.currentIndex().row()
        if step > 0:
            self._select(next((row for row in self._rows if row > here), self._rows[0]))
        else:
            self._select(next((row for row in reversed(self._rows) if row < here), self._rows[-1]))

    def _select(self, row: int) -> None:
        self._list.setCurrentIndex(self._model.index(row))

    def _update_current(self) -> None:
        here = self._list.currentIndex().row()
        at = bisect_left(self._rows, here)
        self.num_matches = len(self._rows)
        self.current_index = at if at < len(self._rows) and self._rows[at] == here else None
        self._list.viewport().update()
        self.changed.emit()

    def selected_text(self) -> str:
        return ""

    def focus_text(self) -> None:
        self._list.setFocus(Qt.FocusReason.OtherFocusReason)


def text_before(text: str, position: int) -> str:
    """Return the text before a position counted in UTF-16 code units, the unit in which Qt counts."""
    # The text may contain lone surrogates, and the position may split a surrogate pair.
    return text.encode("utf-16-le", "surrogatepass")[: 2 * position].decode("utf-16-le", "replace")
