"""What would help: one changed option per line with the bytes that it saves, and a button that changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QGridLayout, QWidget

from rankdeck.run.plan_lines import PlanLine, is_last_word
from rankdeck_app.language import spoken, tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ElidedLabel
from rankdeck_app.widgets.layouts import clear, push_button
from rankdeck_app.widgets.painting import Symbol

MOST_SHOWN = 4
ROW_HEIGHT = 24


class AdviceList(QWidget):
    """`on_take` is called with the line whose change is wanted."""

    def __init__(self, theme: Theme, on_take: Callable[[PlanLine], object]) -> None:
        super().__init__()
        self._theme = theme
        self._on_take = on_take
        self.lines: list[PlanLine] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(4, 0, 4, 0)
        self._grid.setHorizontalSpacing(14)
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(1, 1)

    def show_lines(self, lines: Sequence[PlanLine]) -> None:
        shown = list(lines[:MOST_SHOWN])
        if shown == self.lines:
            return
        self.lines = shown
        clear(self._grid)
        self.setFixedHeight(ROW_HEIGHT * len(shown))
        for row, line in enumerate(shown):
            self._add(row, line)

    def _add(self, row: int, line: PlanLine) -> None:
        icon = Symbol(self._theme, "lightbulb", "rankdeck.leadText", QSize(14, 14), 14)
        text = ElidedLabel(spoken(line.advice, line.phrases) if line.advice else _changes(line))
        if is_last_word(line):
            self._grid.addWidget(icon, row, 0)
            self._grid.addWidget(text, row, 1)
            return
        tooltip = tr("Change {settings} in the configuration", settings=_changes(line))
        button = push_button(tr("Apply"), tooltip, lambda: self._on_take(line), kind="link")
        button.setAccessibleName(tr("Apply: {change}", change=text.text()))
        for column, widget in enumerate((icon, text, button)):
            self._grid.addWidget(widget, row, column)


def _changes(line: PlanLine) -> str:
    return ", ".join(f"{key} = {value}" for key, value in line.changes.items())
