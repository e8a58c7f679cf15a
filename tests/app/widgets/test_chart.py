"""What every painted chart has from its base, and the legend and rows that they share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import Chart, LegendEntry, layout_legend
from rankdeck_app.widgets.device_rows import DeviceRows
from rankdeck_app.widgets.holder_list import Holder, HolderList, HolderListData


@dataclass(frozen=True)
class BarHeights:
    heights: tuple[int, ...] = ()


class BarChart(Chart[BarHeights]):
    """As high as its figure asks; counts what the base asks of it."""

    num_layouts = num_paints = 0

    def describe(self) -> str:
        return ", ".join(map(str, self.data.heights))

    def relayout(self) -> None:
        self.num_layouts += 1

    def sizeHint(self) -> QSize:
        return QSize(40, 10 * len(self.data.heights))

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        self.num_paints += 1


@pytest.fixture
def chart(qtbot: QtBot) -> BarChart:
    bar_chart = BarChart(Theme(), BarHeights(), "Bars")
    qtbot.addWidget(bar_chart)
    bar_chart.resize(40, 40)
    bar_chart.show()
    qtbot.waitUntil(lambda: bar_chart.num_paints > 0)
    return bar_chart


def test_new_data_is_laid_out_described_and_painted(qtbot: QtBot, chart: BarChart) -> None:
    layouts, paints = chart.num_layouts, chart.num_paints
    chart.set_data(BarHeights((1, 2)))
    qtbot.waitUntil(lambda: chart.num_paints > paints)
    assert chart.num_layouts > layouts
    assert (chart.accessibleName(), chart.accessibleDescription()) == ("Bars", "1, 2")


def test_equal_data_is_not_laid_out_again(qtbot: QtBot, chart: BarChart) -> None:
    chart.set_data(BarHeights((1, 2)))
    qtbot.waitUntil(lambda: chart.accessibleDescription() == "1, 2")
    layouts = chart.num_layouts
    chart.set_data(BarHeights((1, 2)))
    assert chart.num_layouts == layouts


def test_a_theme_change_repaints_the_background(qtbot: QtBot) -> None:
    theme = Theme()
    chart = BarChart(theme, BarHeights())
    qtbot.addWidget(chart)
    chart.resize(40, 40)

    def ground() -> QColor:
        return chart.grab().toImage().pixelColor(20, 20)

    assert ground().rgb() == theme.color("rankdeck.card.background").rgb()
    before, layouts = ground(), chart.num_layouts
    theme.load("Light Modern")
    assert ground().rgb() == theme.color("rankdeck.card.background").rgb() != before.rgb()
    assert chart.num_layouts > layouts


def test_legend_entries_of_least_weight_are_dropped(qtbot: QtBot) -> None:
    line = QPen(QColor("black"))
    entries = [
        LegendEntry("much", [QColor("red")], 5.0),
        LegendEntry("least", [QColor("blue")], 1.0),
        LegendEntry("cap", line),
    ]
    [all_of_them] = layout_legend(entries, 1000)
    assert [entry.text for entry, _ in all_of_them] == ["much", "least", "cap"]
    width = all_of_them[-1][1] + 20  # the last one begins, and does not end there: one too few
    [fitting] = layout_legend(entries, width)
    assert [entry.text for entry, _ in fitting] == ["much", "cap", "+1"], "a line is never left out"
    lines = layout_legend(entries, width, one_line=False)
    assert [[entry.text for entry, _ in row_entries] for row_entries in lines] == [["much", "least"], ["cap"]]


def test_rows_are_centred_and_stay_inside(qtbot: QtBot) -> None:
    few = DeviceRows(["GPU 0", "GPU 1"], 300, 200, max_row_height=36.0, number_width=44)
    assert few.row_height == 36.0 and few.plot.center().y() == pytest.approx(100)
    assert few.row(1).top() == pytest.approx(few.row(0).bottom()) and few.plot.right() == pytest.approx(256)
    many = DeviceRows(
        [f"GPU {index}" for index in range(16)], 300, 80, max_row_height=36.0, number_width=44, top=4
    )
    assert many.row_height == 5.0 and (many.plot.top(), many.plot.bottom()) == (4, 84)


def test_facts_follow_the_holders_in_the_same_font(qtbot: QtBot) -> None:
    chart = HolderList(Theme())
    qtbot.addWidget(chart)
    chart.resize(300, 300)
    holder = Holder("activations", "activations", 60 * 2**20)
    chart.set_data(HolderListData((holder,), holder.num_bytes, [("together", "60.0 MiB")]))
    image = chart.grab().toImage()

    def inked(x0: int, x1: int, y0: int, y1: int) -> list[tuple[int, int]]:
        ground = image.pixelColor(1, 299)
        room = itertools.product(range(x0, x1), range(y0, y1))
        return [(x, y) for x, y in room if image.pixelColor(x, y) != ground]

    assert not inked(0, 300, 64, 300)
    number, sum_of_all = (inked(200, 300, top, top + 18) for top in (20, 44))
    assert [min(positions)[0] for positions in (number, sum_of_all)] == [min(number)[0]] * 2
