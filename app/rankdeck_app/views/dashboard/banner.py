"""One sentence about the state of a run above its cards, and what to do next: starting, stopped, failed."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from rankdeck_app.shell.page import PageAction
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard.action_buttons import ActionButtons
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.painting import chart_font

_MOST_MESSAGE = 600
_TONES = {"error": "errorForeground", "warning": "rankdeck.lead"}


class Banner(QWidget):
    """A message, an advice below it, and buttons where something can be done about it: `acted` brings the id
    of the command of the one that was pressed. The text can be selected and copied.
    """

    acted = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._tone = "info"
        self._message, self._advice = text_label(), text_label(tone="dim")
        texts = column(self._message, self._advice, spacing=2)
        line = row((texts, 1), on=self, margins=(14, 7, 12, 8), spacing=8)
        self._actions = ActionButtons(line, self.acted)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        by_mouse, by_keys = (
            Qt.TextInteractionFlag.TextSelectableByMouse, Qt.TextInteractionFlag.TextSelectableByKeyboard,
        )  # fmt: skip
        for label in (self._message, self._advice):
            label.setTextInteractionFlags(by_mouse | by_keys)
        self._message.setFont(chart_font(12, bold=True))
        theme.changed.connect(self.update)
        self.hide()

    @property
    def buttons(self) -> list[QPushButton]:
        return self._actions.buttons

    @property
    def text(self) -> str:
        return "\n".join(label.text() for label in (self._message, self._advice) if label.text())

    def say(self, headline: tuple[str, str, str] | None, actions: Sequence[PageAction] = ()) -> None:
        """(tone, message, advice), and what one can do; None hides the banner."""
        if headline is None:
            self.hide()
            return
        self._tone, message, advice = headline
        self._message.setText(_shortened(message))
        self._advice.setText(_shortened(advice))
        self._advice.setVisible(bool(advice))
        self._actions.show(actions)
        self.setAccessibleName(message)
        self.setAccessibleDescription(advice)
        self.setVisible(True)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color = QPainter(self), self._theme.color
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(color("rankdeck.card.border"))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color(_TONES.get(self._tone, "rankdeck.rest")))
        painter.drawRoundedRect(QRectF(0, 0, 4, self.height()), 2, 2)
        painter.end()


def _shortened(text: str) -> str:
    """A last traceback line can be kilobytes long; the whole text is in Problems."""
    return text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}…"
