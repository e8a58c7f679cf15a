"""What a strategy is: where each tensor lives, what is sent, when it wins, what breaks it, and its options.

Everything is read from the catalogue's card, so a new strategy has its page without a line here.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from rankdeck.config.catalog import STRATEGIES, StrategyCard, option_fields
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.form import shown
from rankdeck_app.widgets.framed import framed, text_label

PAGE_KIND = "strategy"
MAX_WIDTH = 760


def page_id(name: str) -> str:
    return f"{PAGE_KIND}:{name}"


class _Icon(QWidget):
    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__()
        self._theme, self._name = theme, name
        self.setFixedSize(32, 32)

    def sizeHint(self) -> QSize:
        return QSize(32, 32)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        draw_icon(painter, self._name, QRectF(2, 2, 28, 28), self._theme.color("rankdeck.rest"))
        painter.end()


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
        inside = QWidget()
        inside.setMaximumWidth(MAX_WIDTH)
        column = QVBoxLayout(inside)
        column.setContentsMargins(32, 24, 32, 24)
        column.setSpacing(14)
        column.addLayout(self._head(theme, card))
        for title, text in (
            ("Where tensors live", card.lives),
            ("What is sent", card.sends),
            ("When it wins", card.wins),
            ("What breaks it", card.breaks),
        ):
            if text:
                column.addWidget(_paragraph(title, text))
        if option_fields(card.options):
            column.addWidget(_options(card))
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(inside)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(scroll)
        self.setFocusProxy(self.use_button)

    def breadcrumbs(self) -> list[str]:
        return ["strategies", self.card.title]

    def _head(self, theme: Theme, card: StrategyCard) -> QHBoxLayout:
        title = QLabel(card.title)
        title.setProperty("tone", "title")
        summary = _label(card.summary, "dim")
        words = QVBoxLayout()
        words.setSpacing(4)
        words.addWidget(title)
        words.addWidget(summary)
        self.use_button = QPushButton(f"Use {card.title}")
        self.use_button.setProperty("kind", "primary")
        self.use_button.setToolTip(f"Make {card.title} the strategy of the run being configured")
        self.use_button.clicked.connect(lambda: self.chosen.emit(card.name))
        row = QHBoxLayout()
        row.setSpacing(14)
        row.addWidget(_Icon(theme, card.icon), 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(words, 1)
        row.addWidget(self.use_button, 0, Qt.AlignmentFlag.AlignTop)
        return row


def _label(text: str, tone: str = "") -> QLabel:
    label = text_label(text, tone)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


def _paragraph(title: str, text: str) -> QFrame:
    frame, column = framed(title)
    column.addWidget(_label(text))
    return frame


def _options(card: StrategyCard) -> QFrame:
    frame, column = framed("Options")
    grid = QGridLayout()
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(6)
    grid.setColumnStretch(1, 1)
    for row, field in enumerate(option_fields(card.options)):
        default = f"{field.text} Default: {shown(field.default)}.".strip()
        if field.choices:
            default += f" Choices: {', '.join(map(shown, field.choices))}."
        grid.addWidget(_label(field.name, "mono"), row, 0, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(_label(default, "dim"), row, 1)
    column.addLayout(grid)
    return frame
