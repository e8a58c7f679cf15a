"""Numbers of the strip change in their places."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from rankdeck.run.imbalance import find_imbalance
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from rankdeck_app.widgets.stat_strip import Stat, StatStrip, imbalance_stat

STATS = (
    Stat("Step", "1 / 12 000", "12 000 / 12 000"),
    Stat("Loss (EMA)", "2.2014", "88.8888"),
    Stat("Samples/s", "412", "88 888"),
    Stat("Elapsed", "6:41", "8:88:88"),
    Stat("ETA", "13:22", "8:88:88"),
    Stat("GPU 0 vs median of the others", "+38.7 GiB  (3.2×)", "+888.8 MiB  (8.8×)", is_highlighted=True),
)


def make_strip(qtbot: QtBot, width: int = 1060) -> StatStrip:
    widget = StatStrip(Theme())
    qtbot.addWidget(widget)
    widget.resize(width, widget.height())
    widget.show()
    widget.set_data(STATS)
    return widget


def test_cells_keep_their_positions_while_numbers_grow(qtbot: QtBot) -> None:
    widget = make_strip(qtbot)
    before = list(widget._cells)
    grown = tuple(replace(stat, value=stat.widest) for stat in STATS)
    widget.set_data(grown)
    assert widget._cells == before


def test_the_row_fits_a_window_of_1280(qtbot: QtBot) -> None:
    widget = make_strip(qtbot, 900)
    assert widget._cells[-1].right() <= 900
    narrow = make_strip(qtbot, 600)
    assert narrow._cells[-1].right() <= 600 and narrow._value_px < 17


def test_a_text_wider_than_the_strip_is_elided(qtbot: QtBot) -> None:
    widget, text = make_strip(qtbot, 109), "4 virtual devices"
    widget.set_data((Stat("Predicted for this run's devices", text, text, short_label="Predicted for"),))
    cut: list[Overflow] = []
    with watch_overflows(cut.append):
        widget.grab()
    assert not cut
    assert widget.tooltip_at(5, 30) == f"Predicted for this run's devices: {text}"


def test_only_the_highlighted_cell_is_amber(qtbot: QtBot) -> None:
    widget = make_strip(qtbot)
    amber = QColor(Theme().color("rankdeck.leadText")).rgb()
    image = widget.grab().toImage()
    columns = [x for x in range(image.width()) for y in range(image.height()) if image.pixel(x, y) == amber]
    assert columns and min(columns) >= widget._cells[-1].left()
    widget.set_data((*STATS[:-1], replace(STATS[-1], is_highlighted=False)))
    image = widget.grab().toImage()
    assert all(image.pixel(x, y) != amber for x in range(image.width()) for y in range(image.height()))


@pytest.mark.parametrize(
    ("sizes", "label", "value", "is_hot"),
    [
        ([400 << 20, 100 << 20, 100 << 20], "GPU 0 vs median of the others", "+300.0 MiB  (4.0×)", True),
        ([100 << 20, 100 << 20, 100 << 20], "Memory across devices", "balanced", False),
        ([100 << 20, 104 << 20, 100 << 20], "Memory across devices", "balanced", False),
        ([0, 0], "Memory across devices", "balanced", False),
        ([5, None], "Lead vs median", "–", False),
        ([300 << 20, 100 << 20, 100 << 20], "GPU 0 vs median of the others", "+200.0 MiB  (3.0×)", True),
        ([300 << 20, 100 << 20, None], "GPU 0 vs 1 other in use", "+200.0 MiB  (3.0×)", True),
    ],
)
def test_equal_devices_are_balanced(sizes: list[int | None], label: str, value: str, is_hot: bool) -> None:
    stat = imbalance_stat(find_imbalance(dict(enumerate(sizes))), [f"GPU {at}" for at in range(len(sizes))])
    assert (stat.label, stat.value, stat.is_highlighted) == (label, value, is_hot)


def test_the_accessible_description_has_every_value(qtbot: QtBot) -> None:
    assert "Loss (EMA) 2.2014" in make_strip(qtbot).accessibleDescription()
