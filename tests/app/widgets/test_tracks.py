"""Curves of readings: held as steps, parted where nothing is known, and made of exactly two colours."""

from __future__ import annotations

import numpy as np
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from rankdeck.run.series import Series
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.metric_table import (
    MetricCell,
    MetricColumn,
    MetricRow,
    MetricTable,
    MetricTableData,
)
from rankdeck_app.widgets.tracks import area_image, hold_values, value_at

LINE, FILL, GROUND = QColor("#ff0000"), QColor("#0000ff"), QColor("#000000")


def make_series(*points: tuple[float, float]) -> Series:
    series = Series(4096, 2048)
    for x, y in points:
        series.append(x, y)
    return series


def test_a_value_holds_until_the_next_or_until_stale() -> None:
    levels = hold_values(make_series((1.0, 5.0), (2.0, 7.0)), 0.0, 10.0, 1.5, 20)
    assert np.isnan(levels[:1]).all() and levels[2] == 5.0 and levels[4] == 7.0
    assert levels[6] == 7.0 and np.isnan(levels[8:]).all()


def test_the_value_at_a_time_is_the_value_of_that_time() -> None:
    curve = make_series((1, 10), (2, 20), (3, 30))
    assert [value_at(curve, at, 1.5, 0.1) for at in (1.5, 2.5, 3.2)] == [10, 20, 30]
    assert value_at(curve, 0.5, 1.5, 0.1) is None and value_at(curve, 9.0, 1.5, 0.1) is None


def test_a_sparkline_tooltip_has_the_value_under_the_pointer(qtbot: QtBot) -> None:
    table = MetricTable(Theme(), [MetricColumn("Busy", "100%", 4)])
    qtbot.addWidget(table)
    table.resize(600, 100)
    cell = MetricCell(
        "30%",
        curve=make_series((1, 10), (2, 20), (3, 30)),
        top=100,
        tooltip="now",
        format_value="{:g}%".format,
    )
    table.set_data(MetricTableData([MetricRow("u", "GPU 0", [cell])], (0.0, 4.0)))
    [(_, curve, _)] = table.layout_columns()
    at = [
        table.tooltip_at(curve.left() + curve.width() * share, 30).split("\n")[0]
        for share in (0.05, 0.4, 0.65)
    ]
    assert at == ["-4 s: not known", "-2 s: 10%", "-1 s: 20%"]


def test_unknown_values_leave_a_gap() -> None:
    levels = hold_values(make_series((1.0, 5.0), (2.0, np.nan), (4.0, 6.0)), 0.0, 10.0, 9.0, 10)
    assert levels[1] == 5.0 and np.isnan(levels[2]) and levels[5] == 6.0
    assert (
        np.isnan(hold_values(None, 0, 1, 1, 5)).all()
        and np.isnan(hold_values(Series(64, 64), 0, 1, 1, 5)).all()
    )


def test_a_short_peak_stays_visible_over_an_hour() -> None:
    series = Series(4096, 2048)
    x = np.arange(0, 3600, 0.1)
    y = np.zeros(len(x))
    y[20_000] = 1.0
    series.append_many(x, y)
    assert np.nanmax(hold_values(series, 0.0, 3600.0, 1.5, 80)) == 1.0


def test_the_image_has_only_background_fill_and_line() -> None:
    image = area_image(np.array([[0.5, 0.5, np.nan], [0.0, 1.0, 1.0]]), 11, [LINE] * 2, [FILL] * 2, GROUND)
    assert (image.width(), image.height()) == (3, 22)

    def column(x: int, top: int) -> str:
        names = {LINE.rgb(): "l", FILL.rgb(): "f", GROUND.rgb(): "."}
        return "".join(names[image.pixel(x, top + y)] for y in range(11))

    assert column(0, 0) == ".....lfffff" and column(2, 0) == "." * 11
    assert column(0, 11) == "." * 10 + "l", "nothing used is a line at the bottom, not nothing"
    assert column(1, 11) == "l" * 11, "a step is whole"
