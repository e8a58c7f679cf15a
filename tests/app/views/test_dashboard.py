"""The dashboard shows what a run's directory says, in every state, at every size, and repaints only that."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QRect, Qt
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck.run.prediction import prediction_file, read_prediction
from rankdeck.run.verified import verified_text
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.predictions import Predictions
from rankdeck_app.state.state_file import CardLayouts
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import page as dashboard_page
from rankdeck_app.views.dashboard import run_chart_data, run_csv, run_curves, run_status
from rankdeck_app.views.dashboard.page import RunPage, page_id
from tests.helpers.fake_plan import idle_plan
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos

LEAD = {"parameters": 21 * MIB, "activations": 60 * MIB, "gathered": 205 * MIB}
OTHER = {"parameters": 21 * MIB, "activations": 57 * MIB}
SIZES = [(1091, 601), (931, 421)]


@pytest.fixture
def opened(qtbot: QtBot) -> Iterator[Callable[[Path], RunPage]]:
    lives: list[LiveRun] = []
    clock = FrameClock(60)

    def open_page(
        path: Path, size: tuple[int, int] = SIZES[0], layouts: CardLayouts | None = None
    ) -> RunPage:
        live = LiveRun(path)
        lives.append(live)
        live.start()
        page = RunPage(live, Theme(), clock, run_command=lambda _command: None, layouts=layouts)
        qtbot.addWidget(page)
        page.resize(*size)
        page.show()
        return page

    yield open_page
    clock.stop()
    for live in lives:
        live.close()


def write_dp(run: WrittenRun, num_devices: int = 4, num_steps: int = 40) -> None:
    """A run like gpt-dp: device 0 gathers."""
    run.start(devices=device_infos(num_devices), steps=100)
    run.writer("rank-0").write(events.RankStarted(rank=0, pid=1, devices=list(range(num_devices))))
    run.write_steps(0, 1, [4.0 - 0.01 * step for step in range(num_steps)])
    run.write_memory(0, num_steps, {0: LEAD} | dict.fromkeys(range(1, num_devices), OTHER))
    sample = events.Sample(
        interval_s=0.2,
        devices=[events.DeviceSample(device=index, utilisation=0.5) for index in range(num_devices)],
    )
    run.writer("sampler").write(sample)


def stat_value(page: RunPage, label: str) -> str:
    return next(cell.value for cell in run_status.stats(page.run) if cell.label.startswith(label))


def test_a_dp_run_fills_every_card(qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]) -> None:
    write_dp(written)
    written.writer("rank-0").write(events.Evaluation(step=40, loss=3.7, samples=9, seconds=0.1))
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.heat.data.shares is not None and len(page.run.state.held_out) == 1)
    qtbot.waitUntil(lambda: page.cards["band"].body.data.is_notable)  # plots are made one after another
    assert page.grid.bars.data.imbalance is not None and page.grid.bars.data.imbalance.device == 0
    assert stat_value(page, "Virtual 0 vs median") == "+208.0 MiB  (3.7×)"
    assert stat_value(page, "Step") == "40 / 100"
    assert page.cards["band"].body.data.labels[0] == "Virtual 0"
    assert page.grid.heat.data.values == [0.5] * 4
    assert page.cards["loss"]._subtitles[-1] == "◆ held-out", "the sign is told in the least room"
    assert page.title == "gpt-dp"
    assert not page._banner.isVisible()
    for name in ("bars", "band"):
        assert page.cards[name].source == "tensor bytes on virtual devices (CPU rehearsal)"
    for name in ("heat", "loss", "rate"):
        assert "CPU rehearsal" in page.cards[name].toolTip()


def make_prediction(num_devices: int, lead_bytes: int, **fields: bool) -> PlanLine:
    totals = [lead_bytes] + [78 * MIB] * (num_devices - 1)
    devices = [
        PlannedDevice(device=index, name=f"Virtual {index}", active_bytes=total, total_bytes=total)
        for index, total in enumerate(totals)
    ]
    return PlanLine(strategy="dp", options={}, label="dp", verdict=FITS, devices=devices, **fields)


def test_predicted_memory_is_shown_next_to_measured_memory(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.bars.data.largest_bytes > 0)
    assert not page.grid.bars.data.has_prediction and page.cards["band"].body.data.limits == ()
    page.run.set_prediction(make_prediction(4, 300 * MIB))
    qtbot.waitUntil(lambda: page.grid.bars.data.has_prediction)
    assert [bar.predicted_bytes for bar in page.grid.bars.data.bars] == [300 * MIB] + [78 * MIB] * 3
    (limit,) = page.cards["band"].body.data.limits
    assert limit.name == "predicted peak 300.0 MiB" and limit.num_bytes == 300 * MIB and not limit.is_hard
    assert "predicted 300.0 MiB (+4.9 %)" in page.grid.bars.bar_tooltip(0)
    written.end("completed")
    qtbot.waitUntil(lambda: page.run.outcome == "completed")
    assert (
        run_chart_data.bars_subtitle(page.run, run_chart_data.bars(page.run))[0]
        == "highest of 1 of 40 steps; predicted 300.0 MiB (+4.9 %)"
    )


def test_an_upper_bound_is_not_shown_as_a_prediction(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.bars.data.largest_bytes > 0)
    page.run.set_prediction(make_prediction(4, 300 * MIB, is_bound=True))
    assert (
        run_chart_data.bars(page.run).has_prediction is False and run_chart_data.band(page.run).limits == ()
    )


def test_each_attempt_shows_the_prediction_of_its_strategy(
    qtbot: QtBot, written: WrittenRun, tmp_path: Path
) -> None:
    write_dp(written)
    written.configure("dp")
    prediction_file(written.dir).write_bytes(plan_lines.encode(make_prediction(4, 300 * MIB)))
    parent = QObject()
    draft = Draft(tmp_path / "draft.json", tmp_path, parent)
    plan = idle_plan(draft)
    live = LiveRun(written.path, parent)
    predictions = Predictions(plan.planner, plan, parent)
    predictions.add_run(live)
    live.start()
    qtbot.waitUntil(lambda: live.drain() is not None and live.prediction is not None)
    assert live.predicted_bytes(live.devices[0]) == 300 * MIB
    ddp = msgspec.structs.replace(make_prediction(4, 110 * MIB), strategy="ddp")
    written.configure("ddp", attempt=1)
    prediction_file(written.dir).write_bytes(plan_lines.encode(make_prediction(4, 400 * MIB)))
    written.start(4, device_infos(4), strategy="ddp", attempt=1)
    # A line of another strategy is not the attempt's, whoever wrote it there.
    qtbot.waitUntil(lambda: live.drain() is not None and live.prediction is None)
    prediction_file(written.dir).write_bytes(plan_lines.encode(ddp))
    predictions.remove_run(live)
    predictions.add_run(live)
    qtbot.waitUntil(lambda: live.drain() is not None and live.prediction == ddp)
    assert live.predicted_bytes(live.devices[0]) == 110 * MIB
    assert read_prediction(written.dir, 0) == make_prediction(4, 300 * MIB)
    live.close()
    predictions.close()
    draft.close()


def write_pipeline(run: WrittenRun) -> None:
    """Two stages, one microbatch, at a simulated pace: each waits for half of the step."""
    run.start(2, device_infos(2), strategy="pipeline", pace="simulated")
    for rank in (0, 1):
        run.write_steps(rank, 1, [4.0, 3.9] if rank else None)
        run.writer(f"rank-{rank}").write(
            events.Pipeline(rank=rank, step=3, stages=[rank], microbatches=1, in_flight=1, theory_bubble=0.5)
        )
        run.writer(f"rank-{rank}").write(
            events.Spans(
                rank=rank,
                step=3,
                began=run.started + 1.0,
                seconds=0.5,
                names=["forward", "backward"],
                name=[0, 1],
                device=[rank, rank],
                start_us=[rank * 100_000, 300_000 - rank * 100_000],
                duration_us=[100_000, 100_000],
                stage=[rank, rank],
                microbatch=[0, 0],
                simulated=True,
            )
        )


def test_a_pipeline_shows_its_schedule_and_measured_and_ideal_bubble(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_pipeline(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.anatomy.data.end_s > 0 and page.run.state.bubble is not None)
    assert [row.label for row in page.grid.anatomy.data.rows] == ["Virtual 0", "Virtual 1"]
    assert page.grid.anatomy.data.is_pipeline
    subtitle = run_chart_data.anatomy_subtitle(page.run)[0]
    assert subtitle.startswith("step 3, bubble 0.50 measured, 0.50 in theory; sampled ")
    assert "simulated time" in page.cards["anatomy"].toolTip()
    assert "simulated" not in page.cards["bars"].toolTip()
    rows = list(run_csv.anatomy_rows(page.run))
    assert rows[1] == ("Virtual 0", "forward", "0.000000", "0.100000", 0, 0, None)


def test_the_banner_says_what_a_starting_run_waits_for(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    page = opened(written.path)
    qtbot.waitUntil(lambda: page._banner.text == "Starting ranks…\nWaiting for the supervisor.")
    written.start(devices=device_infos(2))
    written.writer("rank-0").write(events.Phase(rank=0, phase="building the model"))
    qtbot.waitUntil(lambda: page._banner.text == "Starting ranks…\nBuilding the model")
    assert run_curves.rate_subtitle(page.run)[0] == "samples/s"
    written.writer("rank-0").write(events.Phase(rank=0, phase="training", samples=70, left_out=10))
    written.write_steps(0, 1, [1.0])
    qtbot.waitUntil(lambda: not page._banner.isVisible())
    assert run_chart_data.band(page.run).empty_text == ""
    written.end("stopped", 130)
    qtbot.waitUntil(lambda: page.run.is_over)
    assert run_chart_data.band(page.run).empty_text == "no step was sampled"
    assert "10 of 70 samples left out of each epoch" in run_curves.rate_subtitle(page.run)[0]


def test_the_banner_shows_a_failure_and_its_advice(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    problem = Problem("rank-raised", "ValueError: 12 classes in the labels.", advice="Set classes.", rank=1)
    written.writer("supervisor").write(events.ProblemRaised(problem=problem))
    written.end("failed", 1)
    page = opened(written.path)
    qtbot.waitUntil(
        lambda: page._banner.text == "Rank 1: ValueError: 12 classes in the labels.\nSet classes."
    )
    assert page.icon_color == "errorForeground"
    assert [action.command for action in page.tab_actions()] == ["run.again", "run.compare"]


def test_only_a_run_with_a_checkpoint_offers_resume(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    saved = events.CheckpointSaved(step=20, num_bytes=9, seconds=0.1, reason="schedule")
    written.writer("rank-0").write(saved)
    written.end("failed", 1)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.is_over)
    assert [action.command for action in page.tab_actions()] == ["run.resume", "run.again", "run.compare"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("stopped", "Stopped at step 40."), ("failed", "no space left"), ("lost", "killed")],
)
def test_the_banner_says_how_a_run_ended(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], outcome: str, expected: str
) -> None:
    write_dp(written)
    if outcome == "lost":
        written.lose()
    else:
        written.end(outcome, 1, reason="no space left on the disk" if outcome == "failed" else None)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.outcome == outcome and expected in page._banner.text)


def test_an_ended_run_without_readings_waits_for_nothing(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    written.start(devices=device_infos(2))
    written.write_steps(0, 1, [1.0, 2.0])
    written.end("failed", 1)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.outcome == "failed" and page.grid.heat.data.start_s == 0.0)
    assert "whole run" in page.cards["heat"].subtitle and page.grid.heat.data.shares is None
    assert page.grid.anatomy.data.is_over
    assert page.time_bar.scrubber.data.texts[-1] == "end"


def test_a_completed_run_shows_its_final_evaluation(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written, num_steps=100)
    evaluation = events.Evaluation(step=100, loss=0.1234, samples=9, seconds=0.1, accuracy=0.9712, final=True)
    written.writer("rank-0").write(evaluation)
    written.end()
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.outcome == "completed")
    assert stat_value(page, "Held-out loss, accuracy") == "0.1234  97.1%"
    assert page.icon_color == "rankdeck.ok"
    assert page.breadcrumbs()[0] == "runs" and page.breadcrumbs()[-1] == "Dashboard"
    assert page.page_id == page_id(written.path)


def test_an_ended_run_without_an_evaluation_shows_no_eta(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.step == 40)
    assert any(cell.label == "ETA" for cell in run_status.stats(page.run))
    written.end("stopped", 130)
    qtbot.waitUntil(lambda: page.run.is_over)
    assert not any(cell.label == "ETA" for cell in run_status.stats(page.run))
    assert stat_value(page, "Held-out loss") == "–"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_devices", [1, 4, 8, 16])
def test_cards_do_not_overlap_and_are_not_clipped(
    qtbot: QtBot,
    written: WrittenRun,
    opened: Callable[..., RunPage],
    num_devices: int,
    size: tuple[int, int],
) -> None:
    """The room that the frame leaves at 1440x900 and 1280x720 with the panel open."""
    write_dp(written, num_devices)
    page = opened(written.path, size)
    qtbot.waitUntil(
        lambda: len(page.grid.bars.data.bars) == num_devices and page.grid.heat.data.shares is not None
    )
    cards = [page.cards[name] for name in ("bars", "band", "heat", "anatomy", "loss", "rate")]

    def boxes() -> list[QRect]:
        return [QRect(card.mapTo(page, card.rect().topLeft()), card.size()) for card in cards]

    # The banner of the start leaves its room to the cards in a later event.
    qtbot.waitUntil(lambda: all(page.rect().contains(box) for box in boxes()))
    assert not page.grid.verticalScrollBar().isVisible()
    assert not any(a.intersects(b) for i, a in enumerate(boxes()) for b in boxes()[i + 1 :])
    assert page._stat_strip._cells[-1].right() <= page._stat_strip.width()
    assert page.grid.bars._make_layout().row_height >= 6.5


def test_a_narrow_tab_stacks_its_cards_and_scrolls(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path, (480, 421))
    qtbot.waitUntil(lambda: page.grid.verticalScrollBar().isVisible())
    lefts = {page.cards[name].x() for name in ("bars", "band", "heat", "loss", "rate")}
    assert lefts == {0}


class PaintCounter(QObject):
    """Counts how often a widget is painted."""

    def __init__(self, widget: QObject) -> None:
        super().__init__(widget)
        self.count = 0
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.count += event.type() == QEvent.Type.Paint
        return False


def test_a_step_does_not_repaint_the_memory_cards(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.heat.data.shares is not None and page.run.outcome == "running")
    qtbot.waitUntil(lambda: not page.run.has_unread)
    qtbot.wait(300)  # the frames that are already under way
    bars, curve = PaintCounter(page.grid.bars), PaintCounter(page.cards["loss"].body.viewport())
    written.write_steps(0, 41, [3.0] * 20)
    qtbot.waitUntil(lambda: curve.count > 0 and page.run.step == 60)
    assert bars.count == 0


@pytest.mark.parametrize(("much_s", "num_frames"), [(math.inf, 3), (0.0, 12)], ids=["quick", "slow"])
def test_a_frame_draws_one_plot_within_its_time_budget(
    qtbot: QtBot,
    written: WrittenRun,
    opened: Callable[..., RunPage],
    monkeypatch: pytest.MonkeyPatch,
    much_s: float,
    num_frames: int,
) -> None:
    """A frame that has taken much already draws none, and the next one does."""
    monkeypatch.setattr(dashboard_page, "_FRAME_BUDGET_S", much_s)
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.outcome == "running" and not page.run.has_unread)
    plots = [page.cards[name].body for name in ("band", "loss", "rate")]
    for plot in plots:
        plot.request_draw()
        plot.last_drawn_s = 0.0
    drawn = []
    for _ in range(num_frames):
        before = [plot.last_drawn_s for plot in plots]
        page._on_frame()
        drawn.append([plot for plot, at in zip(plots, before, strict=True) if plot.last_drawn_s != at])
    assert [len(of_frame) for of_frame in drawn if of_frame] == [1, 1, 1]
    assert {plot for of_frame in drawn for plot in of_frame} == set(plots)


def test_ages_are_updated_and_time_charts_share_one_range(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    written.started -= 200
    write_dp(written)
    page = opened(written.path)
    band = page.cards["band"].body
    qtbot.waitUntil(lambda: page.grid.heat.data.shares is not None and len(band.data.histories) == 4)
    x0, x1 = band.data.x_range
    assert x1 - x0 == 60 and x1 >= 200 and band.data.is_live, "now is at the right"
    assert page.grid.heat.data.span_s == 60 and page.grid.heat.data.time_label(1.0) == "now"
    assert "last 60 s" in page.cards["band"].subtitle and "sampled" in page.cards["band"].subtitle
    qtbot.waitUntil(lambda: band._hold_line.getData()[0] is not None)
    before = page.cards["band"].subtitle
    qtbot.waitUntil(lambda: page.cards["band"].subtitle != before)
    band.zoom_by(0.25)
    qtbot.waitUntil(lambda: page.grid.heat.data.start_s is not None)
    assert page.grid.heat.data.span_s == pytest.approx(15) and "zoomed" in page.cards["band"].subtitle
    assert band._reset_button.isVisible()
    qtbot.keyClick(band, Qt.Key.Key_Escape)
    assert band.is_following and "last 60 s" in page.cards["band"].subtitle
    assert not band._reset_button.isVisible() and page.grid.heat.data.start_s is None
    written.end()
    qtbot.waitUntil(lambda: page.run.is_over and band.data.x_range[0] == 0.0)
    assert page.cards["band"].subtitle == "whole run" and "whole run" in page.cards["heat"].subtitle


def test_logged_metrics_of_a_model_have_a_card(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: len(page.run.state.losses) == 40)
    assert "metrics" not in page.grid.visible_names, "nothing was logged yet"
    steps = [10, 20, 30]
    metrics = events.Metrics(
        rank=0, through="rankdeck", steps=list(steps), times=[written.started + step for step in steps],
        after=steps, values={"spread": [0.1, 0.2, 0.4]},
    )  # fmt: skip
    written.writer("rank-0").write(metrics)
    qtbot.waitUntil(lambda: "metrics" in page.grid.visible_names)
    (curve,) = page.grid.logged_card.curves.data.curves
    assert (curve.name, curve.last, curve.step) == ("spread", 0.4, 30)
    loss = page.cards["loss"]
    page.grid.logged_card.curves.select("spread")
    assert loss.title == "spread" and loss.body._series[2] is None, "no held-out loss on it"
    page.grid.logged_card.curves.select("")
    assert loss.title == "Training loss"
    assert loss.body._series == (page.run.state.losses, page.run.state.loss_ema, page.run.state.held_out)


def test_the_card_layout_of_a_strategy_is_kept(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], tmp_path: Path
) -> None:
    write_dp(written)
    layouts = CardLayouts(tmp_path / "cards.json")
    page = opened(written.path, layouts=layouts)
    qtbot.waitUntil(lambda: page._layout_kind == "dp")
    page.grid.hide_card("heat")
    page.grid.show_card("lr")
    page.cards["loss"].toggle_log()
    assert layouts.get("dp") == {"hidden": ["heat", "norm"], "charts": {"loss": {"is_log": True}}}
    again = opened(written.path, layouts=layouts)
    qtbot.waitUntil(lambda: again.grid.visible_names == ["bars", "anatomy", "band", "loss", "rate", "lr"])
    assert again.cards["loss"].body.style.is_log
    qtbot.waitUntil(lambda: again.run.state.lrs.last_y == pytest.approx(1e-3))
    steps, seconds = again.run.axis_positions("time") or ([], [])
    assert steps[-1] == 40 and seconds[-1] == pytest.approx(0.4, abs=0.02)
    assert (again.run.axis_positions("samples") or ([], []))[1][-1] == 640
    layouts.close()


def test_a_closed_page_is_destroyed(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], qapp: QCoreApplication
) -> None:
    write_dp(written)
    live = LiveRun(written.path)
    clock, closed = FrameClock(60), []
    page = RunPage(live, Theme(), clock, on_closed=lambda: closed.append(True))
    page_ref = weakref.ref(page)
    page.show()
    page.close()
    page.deleteLater()
    del page
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    gc.collect()
    assert closed == [True]
    qtbot.waitUntil(lambda: not clock._timer.isActive())
    assert page_ref() is None


def test_csv_exports_hold_the_shown_values(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], tmp_path: Path
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.grid.heat.data.shares is not None)
    rows = {}
    for name in ("bars", "band", "heat", "loss", "rate"):
        page.cards[name].make_export("csv")(tmp_path / f"{name}.csv")
        rows[name] = (tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    assert rows["bars"][1].startswith(f"Virtual 0,{286 * MIB},{21 * MIB}")
    assert rows["loss"][1].startswith("1,4,") and len(rows["loss"]) == 41
    assert len(rows["band"]) == len(rows["heat"]) == 5 and len(rows["rate"]) == 41


def test_plots_are_created_after_opening_and_only_when_shown(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    write_dp(written)
    page = opened(written.path)
    plots = [page.cards[name] for name in ("band", "loss", "rate")]
    assert [card.built_body for card in plots] == [None] * 3
    qtbot.waitUntil(lambda: all(card.built_body is not None for card in plots))
    assert page.cards["lr"].built_body is None and page.cards["norm"].built_body is None
    page.grid.show_card("lr")
    qtbot.waitUntil(lambda: page.cards["lr"].built_body is not None)


@pytest.mark.parametrize("outcome", VERIFIED)
def test_the_header_shows_the_verification_result(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], outcome: str
) -> None:
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page.run.step == 40)
    assert not page._verification_line.isVisible(), "of a run without a check nothing is said"
    written.writer("rank-0").write(VERIFIED[outcome])
    qtbot.waitUntil(lambda: page._verification_line.isVisible())
    (fact,) = page._verification_line.data
    assert fact.text == verified_text(VERIFIED[outcome])
    assert (fact.tone == "error") == (outcome == "differs") and (fact.tone == "ok") == (outcome == "equal")
    assert fact.text in page._verification_line.accessibleDescription()
    tooltip = page._verification_line.tooltip_at(1, 1)
    assert ("two steps of 32 samples in fp64" in tooltip) == (outcome != "unchecked")
    page.grab()


def test_a_refused_run_offers_its_fix(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage]
) -> None:
    written.start(devices=device_infos(4), steps=100)
    written.writer("rank-0").write(VERIFIED["differs"])
    refused = Problem("differs-from-one-device", "The model mixes samples.", advice="Use model.")
    written.writer("supervisor").write(
        events.ProblemRaised(problem=refused.replace_fields(cure={"strategy.use": "model"}))
    )
    written.end("failed", 2)
    page = opened(written.path)
    qtbot.waitUntil(lambda: page._banner.text == "The model mixes samples.\nUse model.")
    assert page._banner.buttons[0].text() == "Use Model parallel"
    assert page.tab_actions()[0].command == "run.cure"


def test_no_card_is_shown_before_the_kind_of_run_is_known(
    qtbot: QtBot, written: WrittenRun, opened: Callable[..., RunPage], tmp_path: Path
) -> None:
    unwritten = tmp_path / "unwritten"
    unwritten.mkdir()
    page = opened(unwritten)
    page._on_frame()
    assert page.run.is_planned is None and not page.grid.visible_names
    write_dp(written)
    page = opened(written.path)
    qtbot.waitUntil(lambda: len(page.grid.visible_names) == 6)
