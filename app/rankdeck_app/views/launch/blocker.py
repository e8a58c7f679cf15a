"""Why nothing can be launched: the whole sentence, a button that mends it where the cure is known, and one
that goes to where it can be mended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem, cure_in_words
from rankdeck_app.language import spoken, tr
from rankdeck_app.theme import Theme, set_look
from rankdeck_app.widgets.controls import FewLines
from rankdeck_app.widgets.layouts import TOP, column, push_button, row
from rankdeck_app.widgets.painting import Symbol

MOST_LINES = 8


class Blocker(QWidget):
    """`cure_taken` carries the cure, `asked_where` the problem."""

    cure_taken = Signal(object)
    asked_where = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._problem: Problem | None = None
        self.words = FewLines(MOST_LINES)
        set_look(self.words, tone="error")
        self.cure = push_button(tr("Mend It"), "", lambda: self._tell(self.cure_taken), height=24)
        show = tr("Show It")
        self.where = push_button(show, "", lambda: self._tell(self.asked_where), kind="link", height=20)
        symbol = Symbol(theme, "error", "errorForeground", QSize(16, 16), 14)
        buttons = column(self.cure, row(self.where, None), spacing=4)
        column(row(symbol, (self.words, 1), spacing=6, align=TOP), buttons, on=self, spacing=6)

    def show_problem(self, problem: Problem, num_more: int, where: str) -> None:
        """`num_more` others wait behind it; `where` says what the second button shows."""
        self._problem = problem
        text = problem.sentence
        if num_more:
            text = tr(
                "{problem} ({n} more in Problems)",
                "{problem} ({n} more in Problems)",
                num_more,
                problem=text,
            )
        self.words.show_text(text)
        self.cure.setVisible(bool(problem.cure))
        self.cure.setText(spoken(cure_in_words(_short(problem.cure))))
        cure = spoken(cure_in_words(problem.cure))
        self.cure.setToolTip(tr("{cure} in the configuration", cure=cure))
        self.where.setText(where)
        self.where.setToolTip(problem.path or "")

    def _tell(self, signal: Any) -> None:
        if self._problem is not None:
            signal.emit(self._problem.cure if signal is self.cure_taken else self._problem)


def _short(cure: Mapping[str, Any]) -> dict[str, Any]:
    """With the last name of each key: 'clip_norm', and 'optimizer' for train.optimizer.use."""
    return {key.removesuffix(".use").rpartition(".")[2]: value for key, value in cure.items()}
