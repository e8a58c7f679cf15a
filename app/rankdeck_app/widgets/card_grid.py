"""The one grid in which cards stand: twelve columns, a gap of 10, as many cards beside each other as the page
is wide for.

Cards come in an order and fill rows evenly, so that the last row is as full as the first and edges of all
rows stand on the same columns. The height of a row of devices follows how many devices there are; curves
share what is left. Only when a card would fall below its least height does the page scroll.
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
# (least width of the page, most cards in a row); the wider pages give the first card of three more room.
BREAKPOINTS = ((1600, 4), (1280, 3), (960, 3), (720, 2), (0, 1))
WIDE_PAGE_WIDTH = 1280
MIN_CARD_HEIGHT = 112
STACKED_CARD_HEIGHT = 210
_MIN_CARD_WIDTH = 230
_MIN_GRID_WIDTH = 320
"""In a narrower page the grid is scrolled sidewards, since no card can be read in less."""
_MAX_DEVICES_SHARE = 0.62
_MAX_FEW_DEVICES_HEIGHT = 240
"""What a row of few devices asks for at most, in pixels: on a low page it leaves curves an even share."""
_SPANS = {1: (12,), 2: (6, 6), 3: (4, 4, 4), 4: (3, 3, 3, 3)}
_WIDE_PAGE_SPANS = _SPANS | {3: (5, 4, 3)}


class CardGrid(QScrollArea):
    """Cards by name, in the order in which they stand. `devices` are those with a row per device, `whole`
    those that take a row alone, `wide` those that take two thirds of a row of two. Cards that are not shown
    leave their room to the others. `maximised_changed` tells whether one card has the page to itself.
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
        """Cards that a person does not want to see."""
        self._devices, self._full_width = frozenset(devices), frozenset(full_width)
        self._available = set(cards)
        self.maximised = ""
        """The name of the card that has the page to itself."""
        self._is_maximised = False
        self._inner = QWidget()
        self.setWidget(self._inner)
        for card in cards.values():
            card.setParent(self._inner)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.relayout()

    def show_only(self, names: Collection[str]) -> None:
        """These cards, in their places, and no others."""
        if set(names) != self._available:
            self._available = set(names)
            self.relayout()

    @property
    def available(self) -> frozenset[str]:
        """Cards that have something to show, whether a person wants to see them or not."""
        return frozenset(self._available)

    def set_order(self, order: Sequence[str]) -> None:
        """Cards that are not named stand behind."""
        known = [name for name in dict.fromkeys(order) if name in self.cards]
        rest = [name for name in self.cards if name not in known]
        if [*known, *rest] != self.order:
            self.order = [*known, *rest]
            self.relayout()

    def set_hidden(self, hidden: Collection[str]) -> None:
        if frozenset(hidden) != self.hidden:
            self.hidden = frozenset(hidden)
            self.relayout()

    def maximise(self, name: str) -> None:
        """One card takes the page; "" brings all of them back."""
        if name != self.maximised:
            self.maximised = name
            self.relayout()

    @property
    def visible_names(self) -> list[str]:
        """In the order in which they stand."""
        if self.maximised in self._available - self.hidden:
            return [self.maximised]
        return [name for name in self.order if name in self._available - self.hidden]

    def relayout(self) -> None:
        """Called again when a card's height changes: more devices came."""
        shown = self.visible_names
        for name, card in self.cards.items():
            card.setHidden(name not in shown)
        width, height = max(self.viewport().width(), _MIN_GRID_WIDTH), self.viewport().height()
        rows = self._make_rows(shown, height)
        heights = self._row_heights(rows, height)
        top = 0
        for row, row_height in zip(rows, heights, strict=True):
            self._layout_row(row, QRect(0, top, width, row_height))
            top += row_height + GAP
        self._inner.resize(width, max(0, top - GAP))
        if self._is_maximised != (shown == [self.maximised]):
            self._is_maximised = not self._is_maximised
            self.maximised_changed.emit(self._is_maximised)

    # Which cards stand beside each other

    @property
    def _page_width(self) -> int:
        """Of the grid itself and not of its viewport: a scroll bar that comes must not change the rows."""
        return self.width() + 2 * MARGIN

    def _make_rows(self, shown: Sequence[str], height: int) -> list[list[str]]:
        most = next(most for least, most in BREAKPOINTS if self._page_width >= least)
        rows = self._fill_rows(shown, most)
        # Where the page is low, a row less is worth narrower cards.
        while most in (2, 3) and (self.width() + GAP) // (most + 1) - GAP >= _MIN_CARD_WIDTH:
            if self._min_height(rows) <= height:
                break
            most += 1
            rows = self._fill_rows(shown, most)
        return rows

    def _fill_rows(self, shown: Sequence[str], most: int) -> list[list[str]]:
        beside = [name for name in shown if name not in self._full_width]
        num_rows = -(-len(beside) // most)
        rows, begin = [], 0
        for index in range(num_rows):
            end = begin + -(-(len(beside) - begin) // (num_rows - index))
            rows.append(beside[begin:end])
            begin = end
        return [*rows, *([name] for name in shown if name in self._full_width)]

    # How high they are

    def _min_row_height(self, row: Sequence[str]) -> int:
        return max(MIN_CARD_HEIGHT, *(self.cards[name].minimumSizeHint().height() for name in row))

    def _min_height(self, rows: Sequence[Sequence[str]]) -> int:
        return sum(map(self._min_row_height, rows)) + GAP * max(0, len(rows) - 1)

    def _row_heights(self, rows: Sequence[Sequence[str]], height: int) -> list[int]:
        """Rows with devices are as high as those want, the others share the rest."""
        least = [self._min_row_height(row) for row in rows]
        if self._page_width < BREAKPOINTS[-2][0] and len(rows) > 1:
            return [max(STACKED_CARD_HEIGHT, one) for one in least]
        room = height - GAP * max(0, len(rows) - 1)
        wanted = [self._preferred_row_height(row, room // max(1, len(rows))) for row in rows]
        if room <= sum(least) or None not in wanted:
            return _share_height(least, [one or 1 for one in wanted], max(room, sum(least)))
        shares = [one or 0 for one in wanted]
        held = [place for place, one in enumerate(wanted) if one is not None]
        free = [place for place, one in enumerate(wanted) if one is None]
        even = len(held) / len(rows) if max(shares) <= _MAX_FEW_DEVICES_HEIGHT else 1.0
        most = min(int(room * min(_MAX_DEVICES_SHARE, even)), room - sum(least[place] for place in free))
        budget = min(sum(shares), max(most, sum(least[place] for place in held)))
        of_held = _share_height([least[at] for at in held], [shares[at] for at in held], budget)
        of_free = _share_height([least[at] for at in free], [1] * len(free), room - sum(of_held))
        heights = dict(zip([*held, *free], [*of_held, *of_free], strict=True))
        return [heights[place] for place in range(len(rows))]

    def _preferred_row_height(self, row: Sequence[str], even: int) -> int | None:
        """What the devices of a row ask for, and no less than most of an even share; None without any."""
        bodies = [
            self.cards[name].preferred_height for name in row if name in self._devices | self._full_width
        ]
        return max(*bodies, min(int(0.66 * even), _MAX_FEW_DEVICES_HEIGHT)) if bodies else None

    def _layout_row(self, row: Sequence[str], box: QRect) -> None:
        """Edges of every row stand on the same twelve columns."""
        spans = (_WIDE_PAGE_SPANS if self._page_width >= WIDE_PAGE_WIDTH else _SPANS)[len(row)]
        if len(row) == 2 and row[0] in self._wide:
            spans = (8, 4)
        begin = 0
        for name, span in zip(row, spans, strict=True):
            left, right = self.column_edge(begin, box.width()), self.column_edge(begin + span, box.width())
            self.cards[name].setGeometry(box.left() + left, box.top(), right - GAP - left, box.height())
            begin += span

    @staticmethod
    def column_edge(column: int, width: int) -> int:
        """Where a column begins, in pixels; that of the one behind the last is a gap out of the grid."""
        return (width + GAP) * column // COLUMNS


def _share_height(least: Sequence[int], weights: Sequence[int], room: int) -> list[int]:
    """A room shared by weight, of which none gets less than its least."""
    heights: list[int] = []
    for place, (one, weight) in enumerate(zip(least, weights, strict=True)):
        left = room - sum(heights)
        below = sum(least[place + 1 :])
        share = round(left * weight / max(1, sum(weights[place:])))
        heights.append(left if place == len(least) - 1 else max(one, min(share, left - below)))
    return heights
