"""Shows the configuration as a form and as TOML, side by side; an edit in one updates the other at once.

Problems are listed below with their line numbers and advice, and their lines are marked; a click on a problem
goes to its line. These are the draft's own problems, the same ones that the command line would print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QScrollArea,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from rankdeck_app.language import tr, translate
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.find_bar import EditorSearch, FindBar
from rankdeck_app.widgets.form import FormRow
from rankdeck_app.widgets.layouts import build_incrementally, column, make_scroll_area, text_label
from rankdeck_app.widgets.option_rows import all_rows
from rankdeck_app.widgets.toml_editor import TomlEditor

PAGE_ID = "config:"
_LINE_ROLE = int(Qt.ItemDataRole.UserRole)
_MAX_HEIGHT_PX = 110


class _ProblemList(QListWidget):
    """A list that is as tall as its content, up to a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.setWordWrap(True)
        self.setViewportMargins(12, 0, 12, 4)

    def fit(self) -> None:
        first, last = (self.visualItemRect(self.item(at)) for at in (0, self.count() - 1))
        around = self.viewportMargins()
        self.setFixedHeight(
            min(_MAX_HEIGHT_PX, last.bottom() + 1 - first.top() + around.top() + around.bottom())
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # fit() changes the height, which must not trigger another fit.
        if event.size().width() != event.oldSize().width() and self.count():
            self.fit()


class ConfigPage(Page):
    """The configuration page. There is only one, because there is only one draft. The commands config.open
    and config.save read and write the draft's file."""

    can_split = False

    def __init__(self, theme: Theme, draft: Draft) -> None:
        super().__init__(PAGE_ID, title=tr("Configuration"), icon="file-code")
        self._draft = draft
        self._is_typing = False
        self.editor = TomlEditor(theme)
        self.editor.show_text(draft.text)
        self.editor.textChanged.connect(self._on_text_changed)
        self.forms: dict[str, DraftForm] = {}
        self.problem_list = _ProblemList()
        self.problem_list.setAccessibleName(tr("Configuration problems"))
        self.problem_list.itemActivated.connect(self._go_to_problem)
        self.problem_list.itemClicked.connect(self._go_to_problem)
        right = QWidget()
        self.find_bar = FindBar(theme, EditorSearch(self.editor))
        column(self.find_bar, (self.editor, 1), self.problem_list, on=right, spacing=0)
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setHandleWidth(1)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.addWidget(self._make_form_area(theme))
        self._splitter.addWidget(right)
        self._splitter.setSizes([420, 560])
        column(self._splitter, on=self)
        self.setFocusProxy(self.editor)
        draft.changed.connect(self.refresh)
        self.refresh()

    def _make_form_area(self, theme: Theme) -> QScrollArea:
        inside = QWidget()
        rows = column(None, on=inside, margins=(16, 8, 16, 16), spacing=6)
        build_incrementally(self, self._make_forms(theme, rows))
        scroll = make_scroll_area(inside, tr("Configuration"))
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setMinimumWidth(300)
        return scroll

    def _make_forms(self, theme: Theme, rows: QVBoxLayout) -> Iterator[DraftForm]:
        for title in all_rows(self._draft):
            label = text_label(tr(title).upper(), "section", wrap=False)
            label.setContentsMargins(0, 8, 0, 0)
            form = DraftForm(theme, self._draft, self._rows_of(title), label_width=96)
            for widget in (label, form):
                # Before the stretch at the end.
                rows.insertWidget(rows.count() - 1, widget)
            if self.forms:
                form.set_tab_after(list(self.forms.values())[-1])
            self.forms[title] = form
            yield form

    def _rows_of(self, title: str) -> Callable[[], list[FormRow]]:
        return lambda: all_rows(self._draft)[title]

    def breadcrumbs(self) -> list[str]:
        path = self._draft.source
        name = self._draft.title or tr("new")
        return [*([str(path.parent)] if path else [tr("draft")]), name]

    def tooltip(self) -> str:
        return str(self._draft.source or tr("The configuration of the next run, not saved to a file yet"))

    def tab_actions(self) -> list[PageAction]:
        return [
            PageAction("folder-opened", tr("Open Configuration"), "config.open"),
            PageAction("save", tr("Save Configuration"), "config.save"),
        ]

    def save_state(self) -> dict[str, Any]:
        return {"sizes": self._splitter.sizes()}

    def restore_state(self, state: dict[str, Any]) -> None:
        sizes = state.get("sizes")
        if isinstance(sizes, list) and len(sizes) == 2:
            self._splitter.setSizes([int(size) for size in sizes])

    def go_to_line(self, line: int) -> None:
        self.editor.go_to_line(line)

    def suggest(self) -> None:
        """Open the completion list at the cursor."""
        self.editor.setFocus()
        self.editor.suggest()

    def refresh(self) -> None:
        # Replacing the text while the user types would move the cursor.
        if not self._is_typing:
            self.editor.show_text(self._draft.text)
        dirty = self._draft.source is not None and not self._draft.is_saved
        title = f"{self._draft.title or tr('Configuration')}{' ●' if dirty else ''}"
        if title != self.title:
            self.set_title(title)
        # A half-typed line is not marked as wrong yet.
        if not self._draft.is_typing:
            self._show_problems()

    def _show_problems(self) -> None:
        marks: dict[int, str] = {}
        self.problem_list.clear()
        for problem in self._draft.problems:
            headline = translate(problem.headline())
            if problem.line is not None:
                texts = (marks.get(problem.line), headline, problem.advice)
                marks[problem.line] = "\n".join(filter(None, texts))
            item = QListWidgetItem(" ".join(filter(None, (headline, problem.advice))))
            item.setData(_LINE_ROLE, problem.line)
            self.problem_list.addItem(item)
        self.problem_list.setVisible(bool(self._draft.problems))
        if self._draft.problems:
            self.problem_list.fit()
        self.editor.set_line_problems(marks)

    def _on_text_changed(self) -> None:
        # set_text emits `changed`, so `refresh` is called before it returns.
        self._is_typing = True
        try:
            self._draft.set_text(self.editor.toPlainText())
        finally:
            self._is_typing = False

    def _go_to_problem(self, item: QListWidgetItem) -> None:
        line = item.data(_LINE_ROLE)
        if isinstance(line, int):
            self.go_to_line(line)
