"""Plots follow their data in steps, hand over to a person who zooms, and come back on a double click."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pyqtgraph as pg
import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent, QPainter, QPicture
from pytestqt.qtbot import QtBot

from rankdeck.run.series import Series
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.band_chart import BandChart, BandChartData, MemoryLimit
from rankdeck_app.widgets.curve_plot import CurvePlot, smooth_window
from rankdeck_app.widgets.curve_style import CurveStyle
from rankdeck_app.widgets.plot_axes import elapsed_label, padded_range, round_up_axis_end
from rankdeck_app.widgets.zoom_plot import ZoomPlot
from tests.helpers.wheel import wheel_over

MIB = 2**20


def make_curve_plot(qtbot: QtBot, num_points: int = 1000) -> tuple[CurvePlot, Series]:
    raw, average, points = Series(), Series(), Series()
    x = np.arange(1, num_points + 1)
    raw.append_many(x, 5 - x / num_points)
    average.append_many(x, 5 - x / num_points)
    points.append(num_points / 2, 4.5)
    plot = CurvePlot(Theme(), raw, average, points, name="Training loss")
    qtbot.addWidget(plot)
    plot.resize(400, 200)
    plot.show()
    plot.request_draw(now=True)
    return plot, raw


def test_the_x_range_grows_in_steps(qtbot: QtBot) -> None:
    plot, raw = make_curve_plot(qtbot)
    ends = set()
    for step in range(1001, 1101):
        raw.append(step, 4.0)
        plot.request_draw(now=True)
        ends.add(plot.visible_x()[1])
    assert len(ends) <= 3 and min(ends) >= 1000
    assert plot.visible_x()[1] >= 1100


def test_the_axis_ends_where_the_run_ends(qtbot: QtBot) -> None:
    plot, _ = make_curve_plot(qtbot, 990)
    plot.set_last_step(1000)
    plot.request_draw(now=True)
    assert plot.visible_x() == pytest.approx((0.0, 1015.0))


def test_zooming_stops_following_until_a_double_click(qtbot: QtBot) -> None:
    plot, raw = make_curve_plot(qtbot)
    plot.getViewBox().setRange(xRange=(100, 200), padding=0)
    plot.getViewBox().sigRangeChangedManually.emit([True, False])
    raw.append(1001, 4.0)
    plot.request_draw(now=True)
    assert not plot.is_following and plot.visible_x() == (100, 200)
    click = QMouseEvent(
        QEvent.Type.MouseButtonDblClick, QPointF(50, 50), QPointF(50, 50), Qt.MouseButton.LeftButton,
        Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    assert plot._reset_button.isVisible() and plot.zoom_text == "zoomed: step 100 to step 200"
    plot.mouseDoubleClickEvent(click)
    assert not plot._reset_button.isVisible() and plot.zoom_text == ""
    assert plot.is_following and plot.visible_x()[1] >= 1001


def make_styled_plot(qtbot: QtBot, **style: object) -> CurvePlot:
    """A loss that falls from 5 to 4 over 1000 steps, of 0.5 s and 32 samples each."""
    plot, _ = make_curve_plot(qtbot)
    steps = np.arange(1.0, 1001.0)
    plot._axis_positions = lambda axis: (steps, steps * (0.5 if axis == "time" else 32.0))
    plot.set_style(CurveStyle(**style))  # type: ignore[arg-type]
    return plot


def test_a_logarithmic_scale_labels_values(qtbot: QtBot) -> None:
    plot = make_styled_plot(qtbot, is_log=True)
    drawn = plot._raw_item.getData()[1]
    assert drawn[0] == pytest.approx(np.log10(4.999), abs=1e-3)
    axis = plot.getPlotItem().getAxis("left")
    [(spacing, ticks)] = axis.tickValues(np.log10(4), np.log10(5), 160)
    assert {"4", "5"} & set(axis.tickStrings(ticks, 1.0, spacing)) and len(ticks) >= 3
    assert plot.readout_text(500.0).startswith("step 500  raw 4.5000")


@pytest.mark.parametrize(
    ("axis", "end", "pointed"),
    [
        ("time", 500.0, "4:10  step 500  raw 4.5000"),
        ("samples", 32_000.0, "samples 16\u2009000  step 500  raw"),
    ],
)
def test_the_x_axis_is_time_or_samples(qtbot: QtBot, axis: str, end: float, pointed: str) -> None:
    plot = make_styled_plot(qtbot, x_axis=axis)
    assert plot._raw_item.getData()[0][-1] == pytest.approx(end, rel=0.01) and plot.visible_x()[1] >= end
    assert plot.readout_text(end / 2).startswith(pointed)
    plot.zoom_by(0.1)
    plot.request_draw(now=True)
    assert plot._raw_item.getData()[0][0] >= plot.visible_x()[0] - end / 900
    plot.set_style(CurveStyle())
    assert plot.is_following and plot._raw_item.getData()[0][-1] == pytest.approx(1000, rel=0.01)


def test_smoothing_is_independent_of_the_bins(qtbot: QtBot) -> None:
    rng = np.random.default_rng(0)
    values, weight, expected, mass = rng.normal(3, 1, 2000), 0.98, 0.0, 0.0
    for value in values:
        expected, mass = weight * expected + (1 - weight) * value, weight * mass + 1 - weight
    series = Series()
    series.append_many(np.arange(1, 2001), values)
    assert smooth_window(series.window(0, 2000, 4000), weight)[-1] == pytest.approx(expected / mass, rel=1e-6)
    assert smooth_window(series.window(0, 2000, 500), weight)[-1] == pytest.approx(expected / mass, rel=0.03)
    plot = CurvePlot(Theme(), series, series, name="Noise")
    qtbot.addWidget(plot)
    plot.show()
    plot.set_style(CurveStyle(smoothing=weight))
    assert plot._average_item.getData()[1][-1] == pytest.approx(expected / mass, rel=0.03)
    assert "smoothed 3." in plot.readout_text(2000) or "smoothed 2." in plot.readout_text(2000)
    plot.set_style(CurveStyle(smoothing=0.0))
    assert len(plot._average_item.getData()[0]) == 0, "raw alone"


def test_a_hidden_plot_is_not_drawn(qtbot: QtBot) -> None:
    plot, raw = make_curve_plot(qtbot)
    plot.hide()
    raw.append(5000, 1.0)
    plot.request_draw(now=True)
    assert plot.visible_x()[1] < 5000
    plot.show()
    plot.request_draw(now=True)
    assert plot.visible_x()[1] >= 5000


def test_the_readout_has_the_step_under_the_pointer(qtbot: QtBot) -> None:
    plot, _ = make_curve_plot(qtbot)
    assert plot.readout_text(500.0) == "step 500  raw 4.5000  EMA 4.5000  held-out 4.5000"
    assert plot.readout_text(-3) == ""


def test_an_empty_plot_shows_its_text(qtbot: QtBot) -> None:
    plot = CurvePlot(Theme(), Series(), Series(), name="Training loss")
    qtbot.addWidget(plot)
    plot.show()
    plot.request_draw(now=True)
    assert plot._empty_label.isVisible() and "first step" in plot._empty_label.toPlainText()


def test_an_empty_plot_clears_its_old_curves(qtbot: QtBot) -> None:
    plot, _ = make_curve_plot(qtbot)
    plot.set_curves(Series(), Series())
    chart = make_band_chart(qtbot)
    chart.set_data(BandChartData())
    for widget in (plot, chart):
        assert widget._drawn_curves()
        widget.request_draw(now=True)
        assert widget._empty_label.isVisible() and not widget._drawn_curves()


def make_band_chart(qtbot: QtBot, lead: float = 285, limits: tuple[MemoryLimit, ...] = ()) -> BandChart:
    histories = []
    for index in range(4):
        series = Series(4096, 1024)
        x = np.linspace(0, 50, 30)
        series.append_many(x, np.full(30, (lead if index == 0 else 76 + index) * MIB))
        histories.append(series)
    chart = BandChart(Theme(), "Memory over time")
    qtbot.addWidget(chart)
    chart.resize(420, 200)
    chart.show()
    chart.set_data(
        BandChartData([f"Virtual {i}" for i in range(4)], histories, 0, limits, (-9.0, 51.0), is_live=True)
    )
    chart.request_draw(now=True)
    return chart


def test_the_band_spans_the_other_devices(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot)
    assert chart._low.getData()[1].max() == pytest.approx(77 * MIB)
    assert chart._high.getData()[1].min() == pytest.approx(79 * MIB)
    assert chart._gap_top.getData()[1].min() == pytest.approx(285 * MIB)
    assert chart.visible_x() == (-9.0, 51.0)
    assert chart._lead_label.toPlainText() == "Virtual 0 lead"
    assert chart._rest_label.toPlainText() == "Virtual 1–3 min…max"
    hosts = ["a Virtual 0", "a Virtual 1", "b Virtual 2", "b Virtual 3"]
    chart.set_data(dataclasses.replace(chart.data, labels=hosts))
    assert "3 others min…max" in chart._rest_names()


@pytest.mark.parametrize("lead", [80, 120, 285, 980])
def test_labels_do_not_overlap(qtbot: QtBot, lead: float) -> None:
    chart = make_band_chart(qtbot, lead, (MemoryLimit("capacity 1 GiB", 1024 * MIB),))
    per_pixel = chart.getViewBox().viewRange()[1][1] / chart.getViewBox().height()
    labels = (chart._lead_label, chart._rest_label, *chart._limit_labels)
    heights = sorted(label.pos().y() / per_pixel for label in labels if label.isVisible())
    assert len(heights) == 3
    assert min(np.diff(heights)) >= 14


def test_labels_avoid_curves(qtbot: QtBot) -> None:
    """The others lie where the name of the lead would be."""
    chart, x, histories = make_band_chart(qtbot), np.linspace(0, 50, 200), []
    for level in (300, 320, 330):
        histories.append(Series(4096, 1024))
        histories[-1].append_many(x, np.full(200, level * MIB))
    chart.set_data(BandChartData(["Virtual 0", "Virtual 1", "Virtual 2"], histories, 0, (), (0.0, 51.0)))
    chart.request_draw(now=True)
    view, drawn = chart.getViewBox(), chart._drawn_curves()
    across, down = view.viewPixelSize()
    for label in (chart._lead_label, chart._rest_label):
        assert label.isVisible()
        right, y, size = label.pos().x(), label.pos().y(), label.textItem.boundingRect()
        columns = np.linspace(right - size.width() * across, right, 200)
        for xs, ys in drawn:
            levels = np.interp(columns, xs, ys, left=np.nan, right=np.nan)
            assert not np.any(np.abs(levels - y) < 5 * down), label.toPlainText()


def test_labels_are_at_the_ends_of_their_curves(qtbot: QtBot) -> None:
    """After a switch from DP to DDP all devices hold the same; before it one held more."""
    chart, histories, x = make_band_chart(qtbot), [], np.linspace(0, 50, 200)
    for before in (240, 48, 48):
        histories.append(Series(4096, 1024))
        histories[-1].append_many(x, np.where(x < 40, before, 108.0) * MIB)
    chart.set_data(BandChartData(["Virtual 0", "Virtual 1", "Virtual 2"], histories, None, (), (0.0, 51.0)))
    chart.request_draw(now=True)
    per_pixel = chart.getViewBox().viewPixelSize()[1]
    for label in (chart._lead_label, chart._rest_label):
        assert abs(label.pos().y() - 108 * MIB) < 50 * per_pixel, label.toPlainText()


def test_labels_have_the_background_of_the_card(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot, limits=(MemoryLimit("capacity 1 GiB", 1024 * MIB),))
    theme = chart._theme
    for name in (theme.name, "Light Modern"):
        theme.load(name)
        for label in (chart._lead_label, chart._rest_label, *chart._limit_labels):
            assert label.fill.color() == theme.color("rankdeck.card.background")
            assert label.zValue() > max(item.zValue() for item in (chart._lead, chart._low, chart._high))
    chart.set_data(replace(chart.data, limits=()))
    chart.request_draw(now=True)
    assert len(chart._labels) == 2, "a limit takes its label along"


def test_the_last_value_is_extended_to_now_in_a_live_run(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot)
    x, y = chart._hold_line.getData()
    assert list(x) == [50.0, 51.0] and set(y) == {285 * MIB}
    x, y = chart._rest_hold_lines.getData()
    assert np.nanmin(y) == 77 * MIB and np.nanmax(y) == 79 * MIB and np.nanmax(x) == 51.0
    chart.set_data(replace(chart.data, is_live=False))
    chart.request_draw(now=True)
    assert not chart._hold_line.isVisible() and not chart._rest_hold_lines.isVisible()


def test_a_single_sample_is_drawn_as_a_whole_dot(qtbot: QtBot) -> None:
    chart, histories = make_band_chart(qtbot), []
    for index in range(3):
        histories.append(Series(4096, 1024))
        histories[-1].append_many(np.array([0.0]), np.array([(100 - 20 * index) * MIB]))
    labels = [f"Virtual {index}" for index in range(3)]
    chart.set_data(BandChartData(labels, histories, 0, (), (0.0, 1.0)))
    chart.request_draw(now=True)
    assert [list(y) for _, y in (chart._dots.getData(), chart._rest_dots.getData())] == [
        [100 * MIB], [60 * MIB, 80 * MIB],
    ]  # fmt: skip
    assert chart.visible_x()[0] < -2 * chart.getViewBox().viewPixelSize()[0]


def test_a_range_before_the_first_reading_is_empty(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot)
    chart.getViewBox().setXRange(-8, -3, padding=0)
    chart.getViewBox().sigRangeChangedManually.emit([True, False])
    chart.request_draw(now=True)
    assert chart.zoom_text == "zoomed: -8.0 s to -3.0 s"


def turn_wheel(plot: ZoomPlot, notches: int) -> None:
    for _ in range(abs(notches)):
        wheel_over(plot.viewport(), 1 if notches > 0 else -1, ctrl=True)
    plot.request_draw(now=True)


def test_zooming_and_panning_stay_within_the_data(qtbot: QtBot) -> None:
    """Back to the first reading too, where only the last minute of a run is followed."""
    loss, memory = make_curve_plot(qtbot)[0], make_band_chart(qtbot)
    memory.set_data(replace(memory.data, x_range=(20.0, 51.0)))
    memory.request_draw(now=True)
    for plot, full_range in ((loss, loss.visible_x()), (memory, (0.0, 51.0))):
        turn_wheel(plot, -60)
        assert not plot.is_following and plot.visible_x() == pytest.approx(full_range)
        turn_wheel(plot, 400)
        x0, x1 = plot.visible_x()
        assert full_range[0] <= x0 < x1 <= full_range[1] and x1 - x0 == pytest.approx(1.0)
        for key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            for _ in range(2000):
                qtbot.keyClick(plot, key)
            assert full_range[0] <= plot.visible_x()[0] and plot.visible_x()[1] <= full_range[1] + 1e-9
    loss.set_curves(Series(), Series())
    loss.request_draw(now=True)
    assert loss.visible_x() == (0.0, 1.0), "nothing of before"


def test_the_reset_button_covers_no_label(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot)
    chart.zoom_by(0.9)
    chart.request_draw(now=True)
    y1, per_pixel = chart.getViewBox().viewRange()[1][1], chart.getViewBox().viewPixelSize()[1]
    tops = [(y1 - label.pos().y()) / per_pixel for label in (chart._lead_label, chart._rest_label)]
    assert min(tops) - 10 > chart._reset_button.geometry().bottom()


def test_the_capacity_is_visible(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot, limits=(MemoryLimit("capacity 1 GiB", 1024 * MIB),))
    assert chart.getViewBox().viewRange()[1][1] > 1024 * MIB


def test_the_readout_has_lead_and_others(qtbot: QtBot) -> None:
    assert make_band_chart(qtbot).readout_text(25.0) == "0:25  Virtual 0 285.0 MiB  others 77.0…79.0"


def test_axis_ends_and_times_are_formatted() -> None:
    assert (
        round_up_axis_end(1000) == 1024
        and round_up_axis_end(1000, 1000) == 1000
        and round_up_axis_end(0) == 1.0
    )
    assert [elapsed_label(s, 5) for s in (-5, 0, 5, 65, 3605)] == ["-0:05", "0:00", "0:05", "1:05", "1:00:05"]
    low, high = padded_range(2.2, 9.8)
    assert low <= 2.2 and high >= 9.8
    assert padded_range(3.0, 3.0)[0] < 3.0 < padded_range(3.0, 3.0)[1]


def labels(plot: pg.PlotWidget, side: str) -> list[str]:
    axis, picture = plot.getPlotItem().getAxis(side), QPicture()
    painter = QPainter(picture)
    _, _, specs = axis.generateDrawSpecs(painter)
    painter.end()
    boxes = [box for box, _, _ in specs]
    assert side == "left" or all(a.right() < b.left() for a, b in itertools.pairwise(boxes))
    assert all(box.left() >= 0 and box.right() <= axis.geometry().width() for box in boxes)
    return [text for _, _, text in specs]


@pytest.mark.parametrize(
    ("axis", "last"),
    [("step", "1\u2009000 steps"), ("samples", "30\u2009000 samples"), ("time", "8:00")],
)
def test_the_last_axis_label_has_the_unit(qtbot: QtBot, axis: str, last: str) -> None:
    plot = make_styled_plot(qtbot, x_axis=axis)
    *others, label = labels(plot, "bottom")
    assert label == last and not any(" " in text for text in others)


def test_axes_show_now_and_the_memory_unit(qtbot: QtBot) -> None:
    chart = make_band_chart(qtbot)
    axis = chart.getPlotItem().getAxis("bottom")
    axis.now_s = chart.visible_x()[1]
    assert labels(chart, "bottom")[-1] == "now"
    *others, top = labels(chart, "left")
    assert top.endswith(" MiB") and not any("MiB" in text for text in others)
