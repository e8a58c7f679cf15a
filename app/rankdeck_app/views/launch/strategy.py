"""STRATEGY: one row per strategy with its icon and a hint of four words; the chosen one's options below."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem
from rankdeck_app.language import tr
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.layouts import column, text_label
from rankdeck_app.widgets.run_rows import strategy_rows
from rankdeck_app.widgets.strategy_list import ROW_HEIGHT, StrategyList


class StrategySection(QWidget):
    """The body of the section."""

    def __init__(self, theme: Theme, draft: Draft) -> None:
        super().__init__()
        self._draft = draft
        more = tr("Double click for where tensors live and what is sent.")
        self.list = StrategyList(theme, tooltip=more)
        self.list.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setFixedHeight(ROW_HEIGHT * self.list.count())
        self.list.chosen.connect(lambda name: draft.choose(("strategy",), name))
        self.options = DraftForm(theme, draft, lambda: strategy_rows(draft))
        self.options.setContentsMargins(12, 4, 12, 4)
        self.problem = text_label(tone="error")
        self.problem.setContentsMargins(12, 4, 12, 4)
        self.show_problem(None)
        column(self.list, self.problem, self.options, on=self, spacing=0)
        draft.changed.connect(self.refresh)
        self.refresh()

    def show_problem(self, problem: Problem | None) -> None:
        """What is wrong with the choice itself."""
        text = "" if problem is None else problem.sentence
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        self.list.setAccessibleDescription(text)

    def refresh(self) -> None:
        use = self._draft.value(("strategy", "use"))
        self.list.show_choice(use if isinstance(use, str) else "single")
        self.options.setVisible(bool(self.options.fields))
