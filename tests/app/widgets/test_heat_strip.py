"""The strip draws readings as steps and leaves what is not known empty."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.heat_strip import HeatStrip, HeatStripData
from rankdeck_app.widgets.painting import record_painted_text


def make_strip(qtbot: QtBot, shares: np.ndarray, values: list[float | None]) -> HeatStrip:
    heat = HeatStrip(Theme())
    qtbot.addWidget(heat)
    heat.resize(400, 120)
    labels = [f"GPU {index}" for index in range(len(shares))]
    heat.set_data(HeatStripData(labels, shares.astype(np.float32), values))
    return heat


def test_a_step_is_not_interpolated(qtbot: QtBot) -> None:
    shares = np.array([[0.0] * 50 + [1.0] * 50])
    heat = make_strip(qtbot, shares, [1.0])
    box = heat._make_rows().plot
    image = heat.grab().toImage()
    row = [
        image.pixelColor(int(x), int(box.center().y()))
        for x in np.linspace(box.left() + 2, box.right() - 2, 60)
    ]
    theme = Theme()
    allowed = {QColor(theme.color("rankdeck.heat.0")).rgb(), QColor(theme.color("rankdeck.heat.4")).rgb()}
    assert {color.rgb() for color in row} == allowed


@pytest.mark.parametrize(("is_over", "text"), [(False, "Not sampled yet"), (True, "Not sampled")])
def test_a_strip_without_readings_has_a_text(qtbot: QtBot, is_over: bool, text: str) -> None:
    heat = make_strip(qtbot, np.full((2, 10), 0.5), [None, None])
    painted: list[str] = []
    with record_painted_text(painted.append):
        heat.grab()
        assert text not in painted
        heat.set_data(HeatStripData(["GPU 0", "GPU 1"], None, [None, None], is_over=is_over))
        heat.grab()
    assert text in painted


def test_unknown_readings_have_the_card_colour(qtbot: QtBot) -> None:
    shares = np.array([[np.nan] * 50 + [0.5] * 50, [np.nan] * 100])
    heat = make_strip(qtbot, shares, [0.5, None])
    rows = heat._make_rows()
    box, row_height = rows.plot, rows.row_height
    image = heat.grab().toImage()
    card = QColor(Theme().color("rankdeck.card.background")).rgb()
    left = image.pixelColor(int(box.left() + 20), int(box.top() + row_height / 2))
    right = image.pixelColor(int(box.right() - 20), int(box.top() + row_height / 2))
    assert left.rgb() == card != right.rgb()


def test_the_tooltip_has_device_time_and_reading(qtbot: QtBot) -> None:
    heat = make_strip(qtbot, np.array([[0.25] * 100, [np.nan] * 100]), [0.25, None])
    rows = heat._make_rows()
    box, row_height = rows.plot, rows.row_height
    assert heat.tooltip_at(box.right() - 1, box.top() + 2) == "GPU 0, now: 25 % busy"
    assert heat.tooltip_at(box.right() - 1, box.top() + 1.5 * row_height).endswith("unknown")
    assert heat.tooltip_at(2, 2) == ""


def test_sixteen_devices_fit(qtbot: QtBot) -> None:
    heat = make_strip(qtbot, np.full((16, 240), 0.5), [0.5] * 16)
    rows = heat._make_rows()
    box, row_height = rows.plot, rows.row_height
    assert box.bottom() <= heat.height() and row_height > 4
