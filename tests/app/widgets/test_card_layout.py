"""Cards are maximised, moved, hidden and put back; a layout is what differs from a new app."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from rankdeck.run.series import Series
from rankdeck_app.theme import Theme
from rankdeck_app.widgets import card as card_module
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangeableGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.curve_style import STEP, CurveStyle
from rankdeck_app.widgets.painting import paint_text
from tests.helpers.wheel import consumes_wheel


def make_grid(qtbot: QtBot) -> ArrangeableGrid:
    theme = Theme()
    bodies = {name: QLabel(name) for name in ("bars", "heat", "band", "lr")}
    bodies["loss"] = CurvePlot(theme, Series(), Series(), name="Loss", axis_positions=lambda _axis: None)  # type: ignore[assignment]
    cards = {name: ChartCard(name.title(), theme, body) for name, body in bodies.items()}
    grid = ArrangeableGrid(cards, devices=("bars", "heat"), optional=("lr",))
    qtbot.addWidget(grid)
    grid.resize(1000, 700)
    with qtbot.waitActive(grid):
        grid.show()
    return grid


def test_escape_restores_a_maximised_card(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    card = grid.cards["heat"]
    card.setFocus()
    qtbot.keyClick(card, Qt.Key.Key_Return)
    assert grid.visible_names == ["heat"] and card.size() == grid.viewport().size()
    qtbot.keyClick(card, Qt.Key.Key_Escape)
    assert grid.visible_names == ["bars", "heat", "band", "loss"] and grid.active_name == "heat"


def test_a_double_click_on_the_header_maximises(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    qtbot.mouseDClick(grid.cards["band"], Qt.MouseButton.LeftButton, pos=QPoint(40, 12))
    assert grid.maximised == "band"


def test_cards_can_be_moved_hidden_and_shown(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    changes: list[bool] = []
    grid.layout_changed.connect(lambda: changes.append(True))
    grid.move_card(1, "bars")
    assert grid.visible_names == ["heat", "bars", "band", "loss"]
    grid.move_card(-1, "heat")
    assert grid.visible_names[0] == "heat", "the first has no place before it"
    grid.hide_card("band")
    grid.show_card("lr")
    assert grid.visible_names == ["heat", "bars", "lr", "loss"] and len(changes) == 3
    state = grid.layout_state()
    assert state == {"order": ["heat", "bars", "band", "lr", "loss"], "hidden": ["band"]}
    grid.reset()
    assert grid.visible_names == ["bars", "heat", "band", "loss"] and grid.layout_state() == {}
    grid.restore(state)
    assert grid.visible_names == ["heat", "bars", "lr", "loss"]
    grid.show_all()
    assert set(grid.visible_names) == set(grid.cards)


def test_the_last_card_cannot_be_hidden(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    for name in list(grid.visible_names):
        grid.hide_card(name)
    assert len(grid.visible_names) == 1


@pytest.mark.parametrize(
    "state",
    [
        {"order": "bars"},
        {"order": [1, None, "gone"], "hidden": {"a": 1}},
        {"charts": {"loss": {"smoothing": 7}}},
    ],
)
def test_an_invalid_layout_is_the_default(qtbot: QtBot, state: dict[str, object]) -> None:
    grid = make_grid(qtbot)
    grid.restore(state)
    assert grid.layout_state() == {}


def test_the_curve_style_is_shown_and_saved(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    card = grid.cards["loss"]
    card.set_subtitle("raw and EMA")
    card.toggle_log()
    card.smooth_by(1)
    card.next_x_axis()
    assert card.subtitle == "log · smoothed 0.98 · by time; raw and EMA"
    state = grid.layout_state()
    assert state["charts"] == {"loss": {"is_log": True, "smoothing": 0.98, "x_axis": "time"}}
    grid.reset()
    assert (
        card.styled_body is not None
        and card.styled_body.style == CurveStyle()
        and card.subtitle == "raw and EMA"
    )
    grid.restore(state)
    assert card.styled_body.style == CurveStyle(True, 0.98, "time")
    for _ in range(2):
        card.next_x_axis()
    assert card.styled_body.style.x_axis == STEP
    for _ in range(20):
        card.smooth_by(-1)
    assert card.styled_body.style.smoothing == 0.0


@pytest.mark.parametrize("title", ["Loss", "a name that a script gave to what it logs, and a long one"])
@pytest.mark.parametrize("width", [230, 300, 700])
def test_the_curve_style_is_shown_in_narrow_cards(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, width: int, title: str
) -> None:
    card = make_grid(qtbot).cards["loss"]
    card.set_title(title)
    card.set_subtitle("raw and EMA, ◆ held-out", "EMA, ◆ held-out")
    card.set_source("measured in rehearsal", "rehearsal")
    card.restore_style({"is_log": True, "smoothing": 0.98, "x_axis": "time"})
    card.setFixedWidth(width)
    painted: list[str] = []
    monkeypatch.setattr(
        card_module, "paint_text", lambda *a, **k: painted.append(paint_text(*a, **k)) or painted[-1]
    )
    card.grab()
    full_style, short_style = "log · smoothed 0.98 · by time", "log · 0.98 · time"
    assert any(text.startswith((full_style, short_style)) for text in painted)
    assert card.toolTip() == f"{full_style}; raw and EMA, ◆ held-out\nmeasured in rehearsal"
    assert card.fit_header_texts(1000) == (f"{full_style}; raw and EMA, ◆ held-out", "measured in rehearsal")
    assert card.fit_header_texts(10) == (short_style, "")


def test_the_menu_lists_every_action(qtbot: QtBot) -> None:
    grid = make_grid(qtbot)
    menu = grid.cards["loss"].build_menu()
    texts = [action.text() for action in menu.actions() if action.text()]
    assert texts == [
        "Maximise", "Move Back", "Move Forward", "Hide", "Show Lr", "Reset Layout", "Logarithmic Scale",
        "Smoothing", "X Axis", "Copy as Image", "Export PNG…", "Export SVG…",
    ]  # fmt: skip
    slider = grid.cards["loss"]._smoothing_slider(grid.cards["loss"].styled_body)  # type: ignore[arg-type]
    assert not consumes_wheel(slider)
    slider.setValue(slider.maximum())
    assert grid.cards["loss"].styled_body.style.smoothing == 0.998  # type: ignore[union-attr]
    slider.deleteLater()
    menu.deleteLater()
