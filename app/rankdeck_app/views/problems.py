"""Problems: a cause, whose it is, the next step, and a button that does it where there is one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QWidget

from rankdeck_app.state.problem_list import ListedProblem, ProblemList
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import TOP, column, push_button, row, scrolled, text_label
from rankdeck_app.widgets.painting import Symbol

MAX_ROWS = 100

Remedy = tuple[str, Callable[[], object]]
FindRemedies = Callable[[ListedProblem], list[Remedy]]


class ProblemRow(QWidget):
    """One entry. The buttons stand below the advice that they carry out."""

    def __init__(self, theme: Theme, entry: ListedProblem, remedies: list[Remedy]) -> None:
        super().__init__()
        self.entry = entry
        problem = entry.problem
        icon, tone = ("warning", "rankdeck.lead") if entry.is_warning else ("error", "errorForeground")
        words = column(text_label(problem.message, selectable=True), spacing=2)
        if problem.advice:
            words.addWidget(text_label(problem.advice, "dim", selectable=True))
        if problem.last_lines:
            lines = "\n".join(problem.last_lines)
            words.addWidget(text_label(lines, "mono", wrap=False, selectable=True))
        words.addWidget(text_label(whose(entry), "small", selectable=True))
        self.buttons = [push_button(label, label, act) for label, act in remedies]
        symbol, where = Symbol(theme, icon, tone, QSize(16, 18), 16), (16, 3, 16, 3)
        row(symbol, (words, 1), *self.buttons, on=self, margins=where, spacing=8, align=TOP)
        self.setAccessibleName(f"{'Warning' if entry.is_warning else 'Error'}: {problem.message}")
        self.setAccessibleDescription(problem.advice or "")


def whose(entry: ListedProblem) -> str:
    """'GPT DP · rank 2', 'configuration · train.steps, line 12'."""
    problem = entry.problem
    parts = [entry.title]
    if problem.rank is not None:
        parts.append(f"rank {problem.rank}")
    if problem.path:
        parts.append(problem.path if problem.line is None else f"{problem.path}, line {problem.line}")
    elif problem.line is not None:
        parts.append(f"line {problem.line}")
    return " · ".join(parts)


class ProblemsView(QWidget):
    """Follows a ProblemList; `find_remedies` says what can be done about an entry from here."""

    def __init__(self, theme: Theme, problems: ProblemList, find_remedies: FindRemedies) -> None:
        super().__init__()
        self._theme = theme
        self._problems = problems
        self._find_remedies = find_remedies
        self.rows: list[ProblemRow] = []
        self.empty = text_label("No problems.", "dim", wrap=False)
        self.empty.setContentsMargins(16, 8, 16, 8)
        inside = QWidget()
        self._column = column(self.empty, None, on=inside, margins=(0, 0, 0, 8), spacing=2)
        scroll = scrolled(inside)
        scroll.setAccessibleName("Problems")
        column(scroll, on=self)
        self.setFocusProxy(scroll)
        problems.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        for shown in self.rows:
            self._column.removeWidget(shown)
            shown.hide()
            shown.deleteLater()
        self.rows = []
        for entry in self._problems.entries[:MAX_ROWS]:
            made = ProblemRow(self._theme, entry, self._find_remedies(entry))
            self._column.insertWidget(self._column.count() - 1, made)
            self.rows.append(made)
        self.empty.setVisible(not self.rows)
