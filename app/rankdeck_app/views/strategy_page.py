"""What a strategy is: where each tensor lives, what is sent, when it wins, what breaks it, and its options.

Everything is read from the catalogue's card, so a new strategy has its page without a line here.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout

from rankdeck.config.catalog import STRATEGIES, OptionField, StrategyCard, option_fields
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.form import shown
from rankdeck_app.widgets.layouts import TOP, column, framed, push_button, reading_column, row, text_label
from rankdeck_app.widgets.painting import Symbol

PAGE_KIND = "strategy"
MAX_WIDTH = 760


def page_id(name: str) -> str:
    return f"{PAGE_KIND}:{name}"


class StrategyPage(Page):
    """`chosen` carries the strategy's name when the person wants to use it."""

    chosen = Signal(str)

    def __init__(self, wanted_id: str, theme: Theme) -> None:
        name = wanted_id.partition(":")[2]
        card = STRATEGIES.get(name)
        if card is None:
            raise PageUnavailable(f'There is no strategy called "{name}" in this version.')
        super().__init__(wanted_id, title=card.title, icon=card.icon)
        self.card = card
        inside = reading_column(self, MAX_WIDTH, (32, 24, 32, 24), 14)
        inside.addLayout(self._head(theme, card))
        for title, text in (
            ("Where tensors live", card.lives),
            ("What is sent", card.sends),
            ("When it wins", card.wins),
            ("What breaks it", card.breaks),
        ):
            if text:
                inside.addWidget(_paragraph(title, text))
        if option_fields(card.options):
            inside.addWidget(_options(card))
        inside.addStretch(1)
        self.setFocusProxy(self.use_button)

    def breadcrumbs(self) -> list[str]:
        return ["strategies", self.card.title]

    def _head(self, theme: Theme, card: StrategyCard) -> QHBoxLayout:
        words = column(
            text_label(card.title, "title", wrap=False),
            text_label(card.summary, "dim", selectable=True),
            spacing=4,
        )
        tooltip = f"Make {card.title} the strategy of the run being configured"
        self.use_button = push_button(
            f"Use {card.title}", tooltip, lambda: self.chosen.emit(card.name), kind="primary"
        )
        icon = Symbol(theme, card.icon, "rankdeck.rest", QSize(32, 32), 28)
        return row(icon, (words, 1), self.use_button, spacing=14, align=TOP)


def _paragraph(title: str, text: str) -> QFrame:
    frame, inside = framed(title)
    inside.addWidget(text_label(text, selectable=True))
    return frame


def _options(card: StrategyCard) -> QFrame:
    frame, inside = framed("Options")
    grid = QGridLayout()
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(6)
    grid.setColumnStretch(1, 1)
    for at, field in enumerate(option_fields(card.options)):
        grid.addWidget(text_label(field.name, "mono", selectable=True), at, 0, TOP)
        grid.addWidget(text_label(_said_of(field), "dim", selectable=True), at, 1)
    inside.addLayout(grid)
    return frame


def _said_of(field: OptionField) -> str:
    """What it does, its default if it has one, and what can be chosen."""
    default = shown(field.default)
    parts = (
        field.text,
        f"Default: {default}." if default else "",
        f"Choices: {', '.join(map(shown, field.choices))}." if field.choices else "",
    )
    return " ".join(filter(None, parts))
