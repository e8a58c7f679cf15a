"""Grid of cards: twelve columns, 10 px gaps, and as many cards per row as the page width allows.

Cards are distributed evenly across the rows in their order, so the last row is as full as the first, and the
edges of all rows align to the same columns. The height of a row of device cards depends on the number of
devices; rows of curves share the remaining height. The page scrolls only when a card would otherwise be
shorter than its minimum height.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from PySide6.QtCore import QRect, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from rankdeck_app.language import tr
from rankdeck_app.widgets.card import ChartCard

GAP = 10
MARGIN = 16
COLUMNS = 12
# (minimum page width, maximum cards per row). Wide pages give the first of three cards more room.
BREAKPOINTS = ((1600, 4), (1280, 3), (960, 3), (720, 2), (0, 1))
WIDE_PAGE_WIDTH = 1280
MIN_CARD_HEIGHT = 112
STACKED_CARD_HEIGHT = 210
_MIN_CARD_WIDTH = 230
_MIN_GRID_WIDTH = 320
"""Width in pixels below which the page scrolls horizontally, since cards would become unreadable."""
# Maximum share of the page's height for rows of devices, so that curves stay readable.
_MAX_DEVICES_SHARE = 0.62
_MAX_FEW_DEVICES_HEIGHT = 240
"""Height in pixels. If the preferred height of every row of device cards is at most this, the rows of device
cards together get no more height than they would if all rows of the grid were equally high."""
_SPANS = {1: (12,), 2: (6, 6), 3: (4, 4, 4), 4: (3, 3, 3, 3)}
_WIDE_PAGE_SPANS = _SPANS | {3: (5, 4, 3)}


class CardGrid(QScrollArea):
    """Grid of named cards in display order.

    `devices` names the cards with a row per device, `full_width` the cards that have a grid row to
    themselves, `wide` the cards that take two thirds of the width if they come first in a row of two cards.
    Hidden cards take up no space. `maximised_changed` carries True if one card now fills the page.
    """

    maximised_changed = Signal(bool)

    def __init__(
        self,
        cards: Mapping[str, ChartCard],
        *,
        devices: Collection[str] = (),
        full_width: Collection[str] = (),
        wide: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.setAccessibleName(tr("Cards"))
        self._wide = frozenset(wide)
        self.cards = dict(cards)
        self.order = list(cards)
        self.hidden: frozenset[str] = frozenset()
        """Names of the cards that the user has hidden."""
        self._devices, self._full_width = frozenset(devices), frozenset(full_width)
        self._available = set(cards)
        self.maximised = ""
        """Name of the card that fills the page; "" for none."""
        self._is_maximised = False
        self._inner = QWidget()
        self.setWidget(self._inner)
        for card in cards.values():
            card.setParent(self._inner)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.relayout()

    def show_only(self, names: Collection[str]) -> None:
        """Make only these cards available, without changing the order."""
        if set(names) != self._available:
            self._available = set(names)
            self.relayout()

    @property
    def available(self) -> frozenset[str]:
        """Names of the cards that have data to show, even if the user has hidden them."""
        return frozenset(self._available)

    def set_order(self, order: Sequence[str]) -> None:
        """Set the order of the cards; cards that `order` does not name come last."""
        known_names = [name for name in dict.fromkeys(order) if name in self.cards]
        rest = [name for name in self.cards if name not in known_names]
        if [*known_names, *rest] != self.order:
            self.order = [*known_names, *rest]
            self.relayout()

    def set_hidden(self, hidden: Collection[str]) -> None:
        if frozenset(hidden) != self.hidden:
            self.hidden = frozenset(hidden)
            self.relayout()

    def maximise(self, name: str) -> None:
        """Let one card fill the page; "" shows the other cards again."""
        if name != self.maximised:
            self.maximised = name
            self.relayout()

    @property
    def visible_names(self) -> list[str]:
        """Names of the visible cards, in display order."""
        if self.maximised in self._available - self.hidden:
            return [self.maximised]
        return [name for name in self.order if name in self._available - self.hidden]

    def relayout(self) -> None:
        """Lay out the cards; call this again when a card's height changes, such as when devices are added."""
        names = self.visible_names
        for name, card in self.cards.items():
            card.setHidden(name not in names)
        width, height = max(self.viewport().width(), _MIN_GRID_WIDTH), self.viewport().height()
        rows = self._make_rows(names, height)
        heights = self._row_heights(rows, height)
        top = 0
        for row, row_height in zip(rows, heights, strict=True):
            self._layout_row(row, QRect(0, top, width, row_height))
            top += row_height + GAP
        self._inner.resize(width, max(0, top - GAP))
        if self._is_maximised != (names == [self.maximised]):
            self._is_maximised = not self._is_maximised
            self.maximised_changed.emit(self._is_maximised)

    # Rows of cards

    @property
    def _page_width(self) -> int:
        """Page width, taken from the grid itself and not its viewport, so that a scroll bar that appears does
        not change the rows."""
        return self.width() + 2 * MARGIN

    def _make_rows(self, names: Sequence[str], height: int) -> list[list[str]]:
        max_cards = next(max_cards for min_width, max_cards in BREAKPOINTS if self._page_width >= min_width)
        rows = self._fill_rows(names, max_cards)
        # On a low page, one row less is worth narrower cards.
        while max_cards in (2, 3) and (self.width() + GAP) // (max_cards + 1) - GAP >= _MIN_CARD_WIDTH:
            if self._min_height(rows) <= height:
                break
            max_cards += 1
            rows = self._fill_rows(names, max_cards)
        return rows

    def _fill_rows(self, names: Sequence[str], max_cards: int) -> list[list[str]]:
        inline_names = [name for name in names if name not in self._full_width]
        num_rows = -(-len(inline_names) // max_cards)
        rows, start = [], 0
        for index in range(num_rows):
            end = start + -(-(len(inline_names) - start) // (num_rows - index))
            rows.append(inline_names[start:end])
            start = end
        return [*rows, *([name] for name in names if name in self._full_width)]

    # Row heights

    def _min_row_height(self, row: Sequence[str]) -> int:
        return max(MIN_CARD_HEIGHT, *(self.cards[name].minimumSizeHint().height() for name in row))

    def _min_height(self, rows: Sequence[Sequence[str]]) -> int:
        return sum(map(self._min_row_height, rows)) + GAP * max(0, len(rows) - 1)

    def _row_heights(self, rows: Sequence[Sequence[str]], height: int) -> list[int]:
        """Return the height of each row: rows of device cards get their preferred height, the other rows
        share what remains of `height`."""
        min_heights = [self._min_row_height(row) for row in rows]
        # In a single column, cards keep a fixed height and the page scrolls.
        if self._page_width < BREAKPOINTS[-2][0] and len(rows) > 1:
            return [max(STACKED_CARD_HEIGHT, value) for value in min_heights]
        room = height - GAP * max(0, len(rows) - 1)
        preferred = [self._preferred_row_height(row, room // max(1, len(rows))) for row in rows]
        if room <= sum(min_heights) or None not in preferred:
            return _share_height(
                min_heights, [value or 1 for value in preferred], max(room, sum(min_heights))
            )
        shares = [value or 0 for value in preferred]
        device_rows = [index for index, value in enumerate(preferred) if value is not None]
        free = [index for index, value in enumerate(preferred) if value is None]
        even = len(device_rows) / len(rows) if max(shares) <= _MAX_FEW_DEVICES_HEIGHT else 1.0
        max_height = min(
            int(room * min(_MAX_DEVICES_SHARE, even)), room - sum(min_heights[index] for index in free)
        )
        budget = min(sum(shares), max(max_height, sum(min_heights[index] for index in device_rows)))
        of_held = _share_height(
            [min_heights[at] for at in device_rows], [shares[at] for at in device_rows], budget
        )
        of_free = _share_height([min_heights[at] for at in free], [1] * len(free), room - sum(of_held))
        heights = dict(zip([*device_rows, *free], [*of_held, *of_free], strict=True))
        return [heights[index] for index in range(len(rows))]

    def _preferred_row_height(self, row: Sequence[str], even: int) -> int | None:
        """Return the largest preferred height of the row's device cards and full-width cards, but at least
        the smaller of two thirds of `even` and _MAX_FEW_DEVICES_HEIGHT.

        Return None if the row has no such cards. `even` is the height that each row would have if all rows
        were equally high.
        """
        bodies = [
            self.cards[name].preferred_height for name in row if name in self._devices | self._full_width
        ]
        return max(*bodies, min(int(0.66 * even), _MAX_FEW_DEVICES_HEIGHT)) if bodies else None

    def _layout_row(self, row: Sequence[str], box: QRect) -> None:
        """Place the cards of a row on the twelve columns that all rows share."""
        spans = (_WIDE_PAGE_SPANS if self._page_width >= WIDE_PAGE_WIDTH else _SPANS)[len(row)]
        if len(row) == 2 and row[0] in self._wide:
            spans = (8, 4)
        start_column = 0
        for name, span in zip(row, spans, strict=True):
            left, right = (
                self.column_edge(start_column, box.width()),
                self.column_edge(start_column + span, box.width()),
            )
            self.cards[name].setGeometry(box.left() + left, box.top(), right - GAP - left, box.height())
            start_column += span

    @staticmethod
    def column_edge(column: int, width: int) -> int:
        """Return the left edge of a column in pixels; for `column` = COLUMNS, return the width plus one
        gap."""
        return (width + GAP) * column // COLUMNS


def _share_height(min_heights: Sequence[int], weights: Sequence[int], room: int) -> list[int]:
    """Return the heights of the rows: `room` split by weight, with no row lower than its minimum."""
    heights: list[int] = []
    for index, (min_height, weight) in enumerate(zip(min_heights, weights, strict=True)):
        left = room - sum(heights)
        below = sum(min_heights[index + 1 :])
        share = round(left * weight / max(1, sum(weights[index:])))
        heights.append(left if index == len(min_heights) - 1 else max(min_height, min(share, left - below)))
    return heights
