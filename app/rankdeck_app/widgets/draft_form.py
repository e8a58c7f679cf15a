"""A form bound to the draft: shows what its text says, writes what is typed, marks what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rankdeck.config.checks import CARDS
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.form import Form, FormRow, Place


class DraftForm(Form):
    """`rows` is asked anew after every change, since a chosen card brings its own options."""

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        rows: Callable[[], Sequence[FormRow]],
        *,
        label_width: int = 62,
    ) -> None:
        super().__init__(theme, label_width=label_width)
        self._draft = draft
        self._make_rows = rows
        self.edited.connect(self._write)
        draft.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        self.set_rows(self._make_rows())
        self.setEnabled(self._draft.is_toml)
        for place, field in self.fields.items():
            field.show_value(self._draft.value(place))
            problems = self._draft.problems_at(place)
            field.set_problem(_sentence(problems[0]) if problems else None)

    def _write(self, place: Place, value: Any) -> None:
        if place[-1] == "use" and place[:-1] in CARDS and value is not None:
            self._draft.choose(place[:-1], str(value))
        else:
            self._draft.set_value(place, value)


def _sentence(problem: Any) -> str:
    return f"{problem.message} {problem.advice}" if problem.advice else str(problem.message)
