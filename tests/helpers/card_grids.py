"""What holds for a grid of cards at every width."""

from __future__ import annotations

from PySide6.QtCore import QRect

from rankdeck_app.widgets.card_grid import COLUMNS, GAP, CardGrid


def check_grid(grid: CardGrid) -> None:
    cards = [grid.cards[name] for name in grid.visible_names]
    boxes = [card.geometry() for card in cards]
    width = grid.viewport().width()
    lefts = {CardGrid.column_edge(column, width) for column in range(COLUMNS)}
    rights = {CardGrid.column_edge(column, width) - GAP for column in range(1, COLUMNS + 1)}
    rows: dict[int, list[QRect]] = {}
    for card, box in zip(cards, boxes, strict=True):
        assert box.left() in lefts and box.left() + box.width() in rights, (grid.width(), box)
        assert box.height() >= card.minimumSizeHint().height()
        rows.setdefault(box.top(), []).append(box)
    assert not any(a.intersects(b) for at, a in enumerate(boxes) for b in boxes[at + 1 :])
    bottom = -GAP
    for top in sorted(rows):
        assert top == bottom + GAP and len({box.height() for box in rows[top]}) == 1
        assert max(box.left() + box.width() for box in rows[top]) == width, "a row is full"
        bottom = top + rows[top][0].height()
    assert bottom >= grid.viewport().height(), "no room is left empty"
