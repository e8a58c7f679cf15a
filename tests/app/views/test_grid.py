"""The strict grid: at every width, for every number of devices and every family of strategies, nothing
overflows, nothing overlaps, and edges of all rows stand on the same columns.

Text that is painted by hand is watched by the fixture of every app test; what pyqtgraph paints is measured
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyqtgraph as pg
import pytest
from PySide6.QtCore import QRectF
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.widgets.zoom_plot import ZoomPlot
from tests.helpers.card_grids import check_grid
from tests.helpers.written_run import MIB, WrittenRun, device_infos

WIDTHS = range(480, 2561, 37)
GIB = 1024 * MIB
PHASES = {
    "dp": ["scatter", "replicate", "forward", "gather", "loss", "backward", "step"],
    "ddp": ["data", "forward", "loss", "backward", "all-reduce", "step"],
    "fsdp": ["all-gather", "forward", "loss", "backward", "reduce-scatter", "step"],
    "pipeline": ["forward", "backward-input", "backward-weight", "step"],
    "tensor": ["forward", "all-reduce", "backward", "step"],
}


def write_full_run(run: WrittenRun, strategy: str, num_devices: int) -> None:
    """A run with everything on every card, in long words: a lead device, a pipeline's bubble."""
    kind = "virtual" if num_devices % 2 else "gpu"
    run.start(num_devices, device_infos(num_devices, kind, 80 * GIB), steps=120_000, strategy=strategy)
    devices = range(num_devices)
    kinds = {"parameters": 2 * GIB, "gradients": GIB, "optimizer": 4 * GIB, "activations": 9 * GIB}
    memory = {device: kinds | ({"gathered": 38 * GIB} if device == 0 else {}) for device in devices}
    for rank in devices:
        run.writer(f"rank-{rank}").write(events.RankStarted(rank=rank, pid=1, devices=[rank]))
        run.write_steps(rank, 1, [4.0 - 0.01 * step for step in range(100)])
        run.write_memory(rank, 3_999, {rank: memory[rank]})
        if strategy == "pipeline":
            fields = {"stages": [rank], "microbatches": 4, "in_flight": 2, "theory_bubble": 0.43}
            run.writer(f"rank-{rank}").write(events.Pipeline(rank=rank, step=3_999, **fields))
        names = PHASES[strategy]
        count = len(names)
        run.writer(f"rank-{rank}").write(
            events.Spans(
                rank=rank, step=3_999, began=run.started + 1.0, seconds=0.1 * count + 0.1, names=names,
                name=list(range(count)), device=[rank] * count,
                start_us=[100_000 * at + 1_000 * rank for at in range(count)], duration_us=[90_000] * count,
                stage=[rank] * count if strategy == "pipeline" else None,
                microbatch=[1] * count if strategy == "pipeline" else None,
            )
        )  # fmt: skip
    sampled = [
        events.DeviceSample(device=device, utilisation=1.0, used_bytes=(50 if device == 0 else 17) * GIB)
        for device in devices
    ]
    for _ in range(2):
        run.writer("sampler").write(events.Sample(interval_s=0.2, devices=sampled))


def make_plan_line(strategy: str, num_devices: int) -> PlanLine:
    devices = [
        PlannedDevice(device=at, name=f"GPU {at}", active_bytes=17 * GIB, total_bytes=20 * GIB)
        for at in range(num_devices)
    ]
    return PlanLine(strategy=strategy, options={}, label=strategy, verdict=FITS, devices=devices)


@pytest.fixture
def opened(qtbot: QtBot, tmp_path: Path) -> Iterator[Callable[[str, int], RunPage]]:
    clock, lives, runs = FrameClock(60), [], []

    def open_page(strategy: str, num_devices: int) -> RunPage:
        run = WrittenRun(tmp_path / "runs")
        runs.append(run)
        write_full_run(run, strategy, num_devices)
        live = LiveRun(run.path)
        lives.append(live)
        live.start()
        page = RunPage(live, Theme(), clock, run_command=lambda _command: None)
        qtbot.addWidget(page)
        page.resize(1200, 700)
        page.show()
        state = live.state
        qtbot.waitUntil(
            lambda: state.anatomy is not None and len(state.losses) >= 100 and not live.has_unread
        )
        live.set_prediction(make_plan_line(strategy, num_devices))
        page._on_frame()
        return page

    yield open_page
    clock.stop()
    for live in lives:
        live.close()
    for run in runs:
        run.lose()


def check_plot(plot: ZoomPlot) -> None:
    """Labels inside the plot, and ticks of the axes inside their widgets."""
    room = plot.getViewBox().sceneBoundingRect().adjusted(-1, -6, 1, 6)
    for item in plot.getPlotItem().items:
        if isinstance(item, pg.TextItem) and item.isVisible() and item.toPlainText():
            at, size = plot.getViewBox().mapViewToScene(item.pos()), item.textItem.boundingRect()
            left, top = at.x() - item.anchor.x() * size.width(), at.y() - item.anchor.y() * size.height()
            box = QRectF(left, top, size.width(), size.height())
            assert room.contains(box), (plot.accessibleName(), plot.size(), item.toPlainText(), box, room)


STRATEGY_CASES = [
    ("dp", 1), ("dp", 4), ("ddp", 2), ("ddp", 16),
    ("fsdp", 8), ("pipeline", 2), ("pipeline", 16), ("tensor", 4),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "num_devices"), STRATEGY_CASES)
def test_every_strategy_fits_at_every_width(
    opened: Callable[[str, int], RunPage], strategy: str, num_devices: int
) -> None:
    check_widths(opened(strategy, num_devices), WIDTHS)


@pytest.mark.parametrize("index", range(len(STRATEGY_CASES)))
def test_cards_stay_on_the_grid_at_every_width(opened: Callable[[str, int], RunPage], index: int) -> None:
    """Every width, shared out among the families."""
    check_widths(opened(*STRATEGY_CASES[index]), WIDTHS[index :: len(STRATEGY_CASES)])


def check_widths(page: RunPage, widths: Sequence[int]) -> None:
    plots = [card.body for card in page.cards.values() if isinstance(card.body, ZoomPlot)]
    page._on_frame()
    for index, width in enumerate(widths):
        page.resize(width, (421, 601, 900)[index % 3])
        QApplication.processEvents()
        check_grid(page.grid)
        for plot in plots:
            plot.request_draw(now=True)
        page.grab()  # labels find their places when they are painted
        for plot in plots:
            check_plot(plot)


def test_rows_of_few_devices_are_low(
    opened: Callable[[str, int], RunPage],
) -> None:
    shares = {}
    for num_devices in (2, 4, 8, 16):
        page = opened("dp", num_devices)
        page.resize(1300, 800)
        QApplication.processEvents()
        shares[num_devices] = page.cards["bars"].height() / page.grid.viewport().height()
        if num_devices <= 4:
            columns = page.grid.bars._make_layout()
            used = columns.row_height * num_devices / (page.grid.bars.height() - 40)
            assert used > 0.75, "no card is half empty"
    assert list(shares.values()) == sorted(shares.values()) and shares[16] > shares[2] + 0.1


def test_a_low_page_does_not_scroll_with_few_devices(
    opened: Callable[[str, int], RunPage],
) -> None:
    page = opened("dp", 4)
    grid = page.grid
    for height in (240, 340):
        grid.setFixedSize(900, height)
        QApplication.processEvents()
        assert not grid.verticalScrollBar().isVisible()
        assert grid.cards["loss"].height() >= grid.cards["bars"].height()
