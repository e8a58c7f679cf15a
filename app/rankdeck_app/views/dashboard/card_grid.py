"""Where the cards of a dashboard stand: devices above, time below; one under the other where it is narrow.

Cards share what room there is. Only when a card would fall below its least height does the page scroll.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import QRect
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from rankdeck_app.widgets.card import ChartCard

GAP = 10
NARROW = 620
_ABOVE_SHARE = 0.56
_LEAST_CARD = 126
_STACKED_CARD = 210

Row = list[tuple[ChartCard, int]]
"""Cards of a row with their weights."""


class CardGrid(QScrollArea):
    """Rows of cards: `weights` share the width of each. Cards that are hidden leave their room to the others,
    and a row whose cards would be narrower than `least_width` becomes two.
    """

    def __init__(
        self, rows: Sequence[Sequence[ChartCard]], weights: Sequence[Sequence[int]], least_width: int = 0
    ) -> None:
        super().__init__()
        self._rows = [list(zip(row, shares, strict=True)) for row, shares in zip(rows, weights, strict=True)]
        self._least_width = least_width
        self._inner = QWidget()
        self.setWidget(self._inner)
        for row in rows:
            for card in row:
                card.setParent(self._inner)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.lay_out()

    def show_only(self, shown: Collection[ChartCard]) -> None:
        """These cards, in their places, and no others."""
        cards = [card for row in self._rows for card, _ in row]
        if [card.isHidden() for card in cards] != [card not in shown for card in cards]:
            for card in cards:
                card.setHidden(card not in shown)
            self.lay_out()

    def lay_out(self) -> None:
        """Called again when a card's least height changes: more devices came."""
        width, height = self.viewport().width(), self.viewport().height()
        rows = self._shown_rows(width)
        if width < NARROW:
            self._stack([card for row in rows for card, _ in row], width)
        else:
            self._lay_rows(rows, width, height)

    def _shown_rows(self, width: int) -> list[Row]:
        rows: list[Row] = []
        for row in self._rows:
            shown = [(card, weight) for card, weight in row if not card.isHidden()]
            least = min((weight for _, weight in shown), default=0)
            room = width - GAP * (len(shown) - 1)
            is_tight = len(shown) > 1 and room * least < self._least_width * sum(share for _, share in shown)
            half = (len(shown) + 1) // 2 if is_tight else len(shown)
            rows += [part for part in (shown[:half], shown[half:]) if part]
        return rows

    def _stack(self, cards: Sequence[ChartCard], width: int) -> None:
        top = 0
        for card in cards:
            card_height = max(_STACKED_CARD, card.minimumSizeHint().height())
            card.setGeometry(0, top, width, card_height)
            top += card_height + GAP
        self._inner.resize(width, max(0, top - GAP))

    def _lay_rows(self, rows: Sequence[Row], width: int, height: int) -> None:
        """The first of two rows is the higher one; more share the room alike."""
        least = [max(_LEAST_CARD, *(card.minimumSizeHint().height() for card, _ in row)) for row in rows]
        gaps = GAP * (len(rows) - 1)
        room = max(height - gaps, sum(least))
        shares = [_ABOVE_SHARE, 1 - _ABOVE_SHARE] if len(rows) == 2 else [1 / len(rows)] * len(rows)
        heights, left = [], room
        for index, share in enumerate(shares):
            below = sum(least[index + 1 :])
            heights.append(left if not below else min(max(round(room * share), least[index]), left - below))
            left -= heights[-1]
        self._inner.resize(width, room + gaps)
        top = 0
        for row, row_height in zip(rows, heights, strict=True):
            self._lay_row(row, QRect(0, top, width, row_height))
            top += row_height + GAP

    def _lay_row(self, row: Row, box: QRect) -> None:
        left, total = box.left(), sum(weight for _, weight in row)
        room = box.width() - GAP * (len(row) - 1)
        for index, (card, weight) in enumerate(row):
            is_last = index == len(row) - 1
            card_width = box.left() + box.width() - left if is_last else room * weight // total
            card.setGeometry(left, box.top(), card_width, box.height())
            left += card_width + GAP
