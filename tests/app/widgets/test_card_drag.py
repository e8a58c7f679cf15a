"""A card is dragged by its header into another one's place; elsewhere, by a click or with Escape it stays."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.widgets.card_layout import ArrangeableGrid
from tests.app.widgets.test_card_layout import make_grid

HEADER_POINT = QPoint(60, 14)
LEFT = Qt.MouseButton.LeftButton


def drag_card(
    qtbot: QtBot, grid: ArrangeableGrid, name: str, to: QPoint, *, start: QPoint = HEADER_POINT
) -> None:
    """Down to just before the button is let go."""
    card = grid.cards[name]
    qtbot.mousePress(card, LEFT, pos=start)
    qtbot.mouseMove(card, start + QPoint(3, 0))
    qtbot.mouseMove(card, start + QPoint(20, 20))
    qtbot.mouseMove(card, card.mapFromGlobal(to))


def middle(grid: ArrangeableGrid, name: str) -> QPoint:
    card = grid.cards[name]
    return card.mapToGlobal(card.rect().center())


@pytest.mark.parametrize(
    ("name", "onto", "order"),
    [
        ("bars", "band", ["heat", "band", "bars", "loss"]),
        ("loss", "bars", ["loss", "bars", "heat", "band"]),
    ],
)
def test_a_dropped_card_takes_the_position_of_its_target(
    qtbot: QtBot, name: str, onto: str, order: list[str]
) -> None:
    grid, changes = make_grid(qtbot), list[bool]()
    grid.layout_changed.connect(lambda: changes.append(True))
    drag_card(qtbot, grid, name, middle(grid, onto))
    assert grid.cards[onto]._is_drop_target and grid.visible_names == ["bars", "heat", "band", "loss"], (
        "not yet"
    )
    qtbot.mouseRelease(grid.cards[name], LEFT, pos=grid.cards[name].mapFromGlobal(middle(grid, onto)))
    assert grid.visible_names == order and changes == [True]
    assert not any(card._is_drop_target for card in grid.cards.values())
    assert [card_name for card_name in grid.layout_state()["order"] if card_name != "lr"] == order


@pytest.mark.qt_log_ignore("Mouse event", extend=True)
def test_escape_and_a_drop_outside_change_nothing(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    before = list(grid.visible_names)
    drag_card(qtbot, grid, "bars", middle(grid, "band"))
    qtbot.keyClick(grid.cards["bars"], Qt.Key.Key_Escape)
    qtbot.mouseRelease(grid.cards["bars"], LEFT, pos=grid.cards["bars"].mapFromGlobal(middle(grid, "band")))
    drag_card(qtbot, grid, "bars", grid.mapToGlobal(QPoint(-40, -40)))
    qtbot.mouseRelease(grid.cards["bars"], LEFT, pos=QPoint(-60, -60))
    qtbot.mouseClick(grid.cards["bars"], LEFT, pos=HEADER_POINT)
    qtbot.mouseMove(grid.cards["bars"], QPoint(5, 5))
    assert grid.visible_names == before and not grid.layout_state()


@pytest.mark.qt_log_ignore("Mouse event", extend=True)  # what a card has no use for
def test_dragging_inside_a_chart_moves_no_card(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    drag_card(qtbot, grid, "bars", middle(grid, "band"), start=QPoint(60, 60))
    assert not any(card._is_drop_target for card in grid.cards.values())


def test_a_maximised_card_is_not_moved(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    grid.maximise("bars")
    grid.move_to("bars", "band")
    assert grid.order[0] == "bars"
