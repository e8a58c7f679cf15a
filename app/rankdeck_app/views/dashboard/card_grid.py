"""Where the cards of a dashboard stand: devices above, time below; one under the other where it is narrow.

Cards share what room there is. Only when a card would fall below its least height does the page scroll.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRect
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from rankdeck_app.widgets.card import ChartCard

GAP = 10
NARROW = 620
_ABOVE_SHARE = 0.56
_LEAST_CARD = 126
_STACKED_CARD = 210


class CardGrid(QScrollArea):
    """Two rows of cards: `weights` share the width of each."""

    def __init__(
        self,
        above: Sequence[ChartCard],
        below: Sequence[ChartCard],
        weights: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        super().__init__()
        self._rows = (list(above), list(below))
        self._weights = weights
        self._inner = QWidget()
        self.setWidget(self._inner)
        for row in self._rows:
            for card in row:
                card.setParent(self._inner)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.lay_out()

    def lay_out(self) -> None:
        """Called again when a card's least height changes: more devices came."""
        width, height = self.viewport().width(), self.viewport().height()
        if width < NARROW:
            self._stack(width)
        else:
            self._lay_rows(width, height)

    def _stack(self, width: int) -> None:
        top = 0
        for card in (card for row in self._rows for card in row):
            card_height = max(_STACKED_CARD, card.minimumSizeHint().height())
            card.setGeometry(0, top, width, card_height)
            top += card_height + GAP
        self._inner.resize(width, top - GAP)

    def _lay_rows(self, width: int, height: int) -> None:
        least = [max(_LEAST_CARD, *(card.minimumSizeHint().height() for card in row)) for row in self._rows]
        room = max(height, sum(least) + GAP) - GAP
        above = min(max(round(room * _ABOVE_SHARE), least[0]), room - least[1])
        self._inner.resize(width, room + GAP)
        self._lay_row(self._rows[0], self._weights[0], QRect(0, 0, width, above))
        self._lay_row(self._rows[1], self._weights[1], QRect(0, above + GAP, width, room - above))

    def _lay_row(self, cards: Sequence[ChartCard], weights: Sequence[int], box: QRect) -> None:
        left = box.left()
        room = box.width() - GAP * (len(cards) - 1)
        for index, (card, weight) in enumerate(zip(cards, weights, strict=True)):
            is_last = index == len(cards) - 1
            card_width = box.left() + box.width() - left if is_last else room * weight // sum(weights)
            card.setGeometry(left, box.top(), card_width, box.height())
            left += card_width + GAP
