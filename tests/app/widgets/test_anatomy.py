"""The anatomy draws one row per device, hatches a bubble, and tells what is under the pointer."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from rankdeck.run.anatomy import Span
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.anatomy import AnatomyData, AnatomyRow, StepAnatomyChart

SCHEDULE = AnatomyData(
    [
        AnatomyRow("Virtual 0", [Span("forward", 0.0, 0.25, 0, 0, 4096), Span("backward", 0.5, 0.5, 0, 0)]),
        AnatomyRow("Virtual 1", [Span("forward", 0.25, 0.25, 1, 0)]),
    ],
    0.0,
    1.0,
    is_pipeline=True,
)


@pytest.fixture
def chart(qtbot: QtBot) -> StepAnatomyChart:
    anatomy_chart = StepAnatomyChart(Theme())
    qtbot.addWidget(anatomy_chart)
    anatomy_chart.resize(460, 120)
    anatomy_chart.set_data(SCHEDULE)
    return anatomy_chart


def point_at(chart: StepAnatomyChart, row: int, share: float) -> tuple[float, float]:
    rows = chart._get_layout().rows
    strip = rows.plot
    return strip.left() + strip.width() * share, strip.top() + rows.row_height * (row + 0.5)


def test_the_tooltip_has_phase_microbatch_stage_time_and_bytes(chart: StepAnatomyChart) -> None:
    text = "Virtual 0 · forward · microbatch 0 · stage 0 · 250 ms · 4.0 KiB"
    assert chart.tooltip_at(*point_at(chart, 0, 0.1)) == text
    assert chart.tooltip_at(*point_at(chart, 0, 0.4)) == "Virtual 0 · bubble · 250 ms"
    assert chart.tooltip_at(1, 1) == ""


def test_gaps_without_a_pipeline_are_idle(chart: StepAnatomyChart) -> None:
    chart.set_data(AnatomyData(SCHEDULE.rows, 0.0, 1.0))
    assert chart.tooltip_at(*point_at(chart, 1, 0.9)) == "Virtual 1 · idle · 500 ms"


def test_phases_have_distinct_colours_and_bubbles_show_the_track(chart: StepAnatomyChart) -> None:
    image = chart.grab().toImage()
    theme = Theme()

    def color(row: int, share: float) -> QColor:
        x, y = point_at(chart, row, share)
        return image.pixelColor(int(x), int(y + 9))  # beside the number

    assert color(0, 0.05).rgb() == theme.color("rankdeck.kind.activations").rgb()
    assert color(0, 0.6).rgb() == theme.color("rankdeck.kind.gradients").rgb()
    hatched = {color(1, 0.6 + 0.002 * step).rgb() for step in range(40)}
    assert theme.color("rankdeck.track").rgb() in hatched and len(hatched) > 1


def test_an_overlapped_phase_is_a_strip_at_the_bottom(chart: StepAnatomyChart) -> None:
    spans = [Span("backward", 0.0, 0.8), Span("all-reduce", 0.4, 0.6, num_bytes=2048)]
    chart.set_data(AnatomyData([AnatomyRow("GPU 0", spans)], 0.0, 1.0))
    x, y = point_at(chart, 0, 0.6)
    assert chart.tooltip_at(x, y).startswith("GPU 0 · backward")
    assert "all-reduce" in chart.tooltip_at(x, y + chart._get_layout().rows.row_height * 0.35)
    assert chart._get_layout().busy == [pytest.approx(1.0)]


def test_a_device_without_spans_is_unknown(chart: StepAnatomyChart) -> None:
    chart.set_data(AnatomyData([*SCHEDULE.rows, AnatomyRow("Virtual 2")], 0.0, 1.0))
    assert chart._get_layout().busy == [pytest.approx(0.75), pytest.approx(0.25), None]
    assert "Virtual 2: unknown" in chart.accessibleDescription()


def test_sixteen_devices_fit(chart: StepAnatomyChart) -> None:
    chart.set_data(AnatomyData([SCHEDULE.rows[0]] * 16, 0.0, 1.0))
    rows = chart._get_layout().rows
    assert rows.plot.bottom() <= chart.height() - 30 and rows.row_height > 4
    chart.grab()


def test_without_a_sampled_step_the_chart_is_empty(chart: StepAnatomyChart) -> None:
    chart.set_data(AnatomyData([AnatomyRow("Virtual 0")]))
    assert chart.tooltip_at(100, 20) == ""
    chart.grab()
