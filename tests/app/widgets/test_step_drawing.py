"""A step is drawn with what moves where: every mark tells pointer and keys its bytes, and who with whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPointF, Qt
from pytestqt.qtbot import QtBot

from rankdeck.run.movement import RECEIVE, SEND, Operation, build_timeline
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.chart_colors import BUBBLE
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from rankdeck_app.widgets.step_drawing import StepDrawing
from rankdeck_app.widgets.step_layout import MIN_BLOCK_PX, StepDrawingData, StepMark

MIB = 2**20
GROUP = [0, 1]


def names(num_devices: int) -> tuple[str, ...]:
    return tuple(f"Virtual {index}" for index in range(num_devices))


def make_replicas() -> StepDrawingData:
    """Two replicas whose gradients meet, and then one tells the other."""
    devices = [
        [
            Operation("forward", rank, flops=100_000),
            Operation("backward", rank, flops=200_000),
            Operation("all-reduce", rank, num_bytes=3 * MIB, peers=GROUP),
        ]
        for rank in GROUP
    ]
    devices[0].append(Operation(SEND, 0, num_bytes=MIB, peers=[1]))
    devices[1] += [Operation(RECEIVE, 1, num_bytes=MIB, peers=[0]), Operation("step", 1, flops=100_000)]
    return StepDrawingData(names(2), build_timeline(devices, 0.3), "It sends what it sends.")


def make_pipeline(num_stages: int, microbatches: int) -> StepDrawingData:
    devices = []
    for stage in range(num_stages):
        operations = []
        for phase, towards in (("forward", 1), ("backward", -1)):
            for number in range(microbatches):
                if 0 <= stage - towards < num_stages:
                    operations.append(Operation(RECEIVE, stage, num_bytes=MIB, peers=[stage - towards]))
                operations.append(Operation(phase, stage, flops=100, stage=stage, microbatch=number))
                if 0 <= stage + towards < num_stages:
                    operations.append(Operation(SEND, stage, num_bytes=MIB, peers=[stage + towards]))
        devices.append(operations)
    return StepDrawingData(names(num_stages), build_timeline(devices), gap=BUBBLE)


@pytest.fixture
def chart(qtbot: QtBot) -> StepDrawing:
    step_drawing = StepDrawing(Theme())
    qtbot.addWidget(step_drawing)
    step_drawing.set_data(make_replicas())
    step_drawing.resize(700, step_drawing.sizeHint().height())
    return step_drawing


def mark_center(mark: StepMark) -> QPointF:
    return (mark.arrow[0] + mark.arrow[1]) / 2 if mark.arrow else mark.boxes[0].center()


def tooltip_of(chart: StepDrawing, mark: StepMark) -> str:
    point = mark_center(mark)
    return chart.tooltip_at(point.x(), point.y())


def test_the_tooltip_has_bytes_devices_and_formula(chart: StepDrawing) -> None:
    layout = chart.get_layout()
    (collective,), (arrow,) = layout.collectives, layout.arrows
    assert tooltip_of(chart, collective) == (
        "all-reduce · among all 2 devices · "
        "3.0 MiB sent by each device over a ring: 2(n-1)/n x 3.0 MiB, n = 2\n"
        "It sends what it sends."
    )
    assert tooltip_of(chart, arrow) == "send · Virtual 0 → Virtual 1 · 1.0 MiB\nIt sends what it sends."
    assert tooltip_of(chart, layout.blocks[0]) == "Virtual 0 · forward · 100 k floating-point operations"
    assert tooltip_of(chart, layout.gaps[0]) == "Virtual 0 · idle"
    assert chart.tooltip_at(1, 1) == ""
    assert [label.text for label in layout.labels] == ["all-reduce 3.0 MiB", "1.0 MiB"]


def test_totals_are_those_of_the_marks(chart: StepDrawing) -> None:
    assert chart.accessibleDescription() == (
        "Virtual 0 sends 4.0 MiB and receives 3.0 MiB, Virtual 1 sends 3.0 MiB and receives 4.0 MiB"
    )
    layout = chart.get_layout()
    by_marks = [
        sum(mark.num_bytes for mark in layout.collectives if row in mark.rows)
        + sum(mark.num_bytes for mark in layout.arrows if mark.rows[0] == row)
        for row in GROUP
    ]
    assert chart.data.timeline is not None
    assert by_marks == [traffic.sent_bytes for traffic in chart.data.timeline.traffic()]


def test_arrow_keys_move_between_marks_and_devices(qtbot: QtBot, chart: StepDrawing) -> None:
    chart.show()
    chart.setFocus()
    texts: list[str] = []
    chart.mark_text_changed.connect(texts.append)
    for key in (Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_End):
        qtbot.keyClick(chart, key)
    starts = [" · ".join(text.split("\n")[0].split(" · ")[:2]) for text in texts]
    assert starts[:3] == ["Virtual 0 · forward", "Virtual 0 · backward", "all-reduce · among all 2 devices"]
    assert starts[-1] == "Virtual 1 · step"
    assert chart.accessibleDescription() == texts[-1]
    qtbot.keyClick(chart, Qt.Key.Key_Escape)
    assert chart.selected is None and texts[-1] == ""
    qtbot.keyClick(chart, Qt.Key.Key_Home)
    qtbot.mouseMove(chart, mark_center(chart.get_layout().arrows[0]).toPoint())
    qtbot.waitUntil(lambda: texts[-1].startswith("send · "))


def test_pipeline_gaps_are_bubbles_and_numbers_are_microbatches(chart: StepDrawing) -> None:
    chart.set_data(make_pipeline(2, 2))
    layout = chart.get_layout()
    assert {gap.name for gap in layout.gaps} == {BUBBLE}
    assert tooltip_of(chart, layout.blocks[1]).startswith("Virtual 0 · forward · microbatch 1 · stage 0 · ")
    assert all(mark.left <= mark.arrow[1].x() for mark in layout.arrows if mark.arrow), "nothing goes back"


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("width", [260, 480, 1900])
def test_any_number_of_devices_fits_any_width(chart: StepDrawing, num_devices: int, width: int) -> None:
    chart.set_data(make_pipeline(num_devices, 32))
    chart.resize(width, chart.sizeHint().height())
    overflows: list[Overflow] = []
    with watch_overflows(overflows.append):
        chart.grab()
    assert not overflows
    layout = chart.get_layout()
    operations = [operation for mark in layout.blocks for operation in mark.operations]
    assert len(operations) == num_devices * 64, "put together, none left out"
    moved = [operation for mark in layout.arrows for operation in mark.operations]
    assert len(moved) == (num_devices - 1) * 64
    together = [mark for mark in layout.blocks if len(mark.operations) > 1]
    each_px = layout.rows.plot.width() / (2 * (32 + num_devices - 1))
    assert bool(together) == (each_px < MIN_BLOCK_PX), "only where they would be too thin"
    assert all(mark.boxes[0].width() >= MIN_BLOCK_PX / 2 for mark in together)
    if together:
        assert " x " in tooltip_of(chart, together[0])


def test_without_a_step_the_reason_is_shown(chart: StepDrawing) -> None:
    chart.set_data(StepDrawingData(empty_text="Working out a step…"))
    chart.grab()
    assert chart.tooltip_at(100, 60) == "" and chart.accessibleDescription() == ""


def test_a_step_without_communication_is_drawn(qtbot: QtBot, chart: StepDrawing) -> None:
    chart.set_data(StepDrawingData(names(1), build_timeline([[Operation("forward", 0, flops=9)]])))
    chart.grab()
    assert chart.accessibleDescription() == "Virtual 0 sends 0 B and receives 0 B"
    qtbot.keyClick(chart, Qt.Key.Key_Right)
    assert chart.selected is not None and chart.selected.name == "forward"


def test_a_drawing_is_exported_as_svg(qtbot: QtBot, tmp_path: Path) -> None:
    card = ChartCard("One step", Theme(), chart := StepDrawing(Theme()))
    qtbot.addWidget(card)
    chart.set_data(make_replicas())
    card.resize(600, card.preferred_height)
    card.make_export("svg")(tmp_path / "step.svg")
    assert "backward" in (tmp_path / "step.svg").read_text()
