"""The dashboard of a script shows what its events tell, says why a card is empty, and invents nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.written_run import MIB, write_backdated
from tests.helpers.written_script import WrittenScript

KINDS = {"parameters": 20 * MIB, "gradients": 20 * MIB, "optimizer": 40 * MIB}
SIZES = [(1091, 601), (931, 421)]


@pytest.fixture
def opened(qtbot: QtBot) -> Iterator[Callable[..., RunPage]]:
    lives: list[LiveRun] = []
    clock = FrameClock(60)

    def open_page(
        written: WrittenScript, size: tuple[int, int] = SIZES[0], commands: list[str] | None = None
    ) -> RunPage:
        live = LiveRun(written.path)
        lives.append(live)
        live.start()
        run_command = (lambda _command: None) if commands is None else commands.append
        page = RunPage(live, Theme(), clock, run_command=run_command)
        qtbot.addWidget(page)
        page.resize(*size)
        page.show()
        return page

    yield open_page
    clock.stop()
    for live in lives:
        live.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., WrittenScript]]:
    runs: list[WrittenScript] = []

    def make_run(**config: object) -> WrittenScript:
        runs.append(WrittenScript(tmp_path / "runs", config=config))
        return runs[-1]

    yield make_run
    for run in runs:
        run.lose()


def write_full_script(run: WrittenScript, source: str = events.OWNERS_SEEN) -> None:
    """Two ranks that tell everything."""
    run.start_script(2)
    for rank in range(2):
        run.observe_rank(
            rank, world_size=2, wrapper="DistributedDataParallel", backend="gloo", model="m:GPT",
            num_parameters=1_240_000, optimizer="torch.optim.adamw:AdamW", batch=16,
            versions={"python": "3.11.7", "torch": "2.13.0"},
        )  # fmt: skip
        run.write_step_line(rank, 1, [3.0 - 0.01 * step for step in range(40)], samples=16, wait_s=0.05)
        for step in (1, 20, 40):
            device_memory = events.DeviceMemory(
                device=rank, live_bytes=80 * MIB, peak_bytes=80 * MIB, peak_by_kind=KINDS
            )
            memory = events.Memory(rank=rank, step=step, source=source, devices=[device_memory])
            run.writer(f"rank-{rank}").write(memory)
    steps = list(range(0, 40, 10))
    run.write_logged(0, through="transformers", steps=steps, accuracy=[0.1, 0.5, 0.8, 0.9])
    samples = [
        (
            run.started + 0.5 * n,
            events.Sample(
                interval_s=0.5, devices=[events.DeviceSample(device=i, utilisation=0.5) for i in (0, 1)]
            ),
        )
        for n in range(1, 6)
    ]
    write_backdated(run.dir.events_folder / "sampler.0.jsonl", samples)


def visible_cards(page: RunPage) -> set[str]:
    return {name for name, card in page.cards.items() if not card.isHidden()}


def stats(page: RunPage) -> dict[str, str]:
    return {cell.label: cell.value for cell in page._stat_strip.data}


@pytest.mark.parametrize("size", SIZES)
def test_a_fully_observed_script_fills_every_card(
    qtbot: QtBot,
    make: Callable[..., WrittenScript],
    opened: Callable[..., RunPage],
    size: tuple[int, int],
    tmp_path: Path,
) -> None:
    run = make(ranks=2, args=["--lr", "0.1"])
    write_full_script(run)
    page = opened(run, size)
    expected_cards = set(page.cards) - {
        "anatomy",
        "lr",
        "norm",
    }  # which is not told of a script; hidden until wanted
    qtbot.waitUntil(
        lambda: visible_cards(page) == expected_cards and len(page.grid.logged_card.curves.data.curves) == 1
    )
    assert page.title == "train.py"
    assert {"Step": "40", "Loader wait": "10.0%"}.items() <= stats(page).items()
    assert not {"ETA", "Held-out loss"} & set(stats(page)), "nobody knows where it ends"
    assert [bar.total_bytes for bar in page.grid.bars.data.bars] == [80 * MIB] * 2
    assert page.cards["bars"].source == events.OWNERS_SEEN
    assert page.grid.heat.data.labels == ["CPU 0", "CPU 1"] and page.grid.heat.data.values == [0.5, 0.5]
    (curve,) = page.grid.logged_card.curves.data.curves
    assert (curve.name, curve.last, curve.step) == ("accuracy", 0.9, 30)
    assert "accuracy 0.9" in page.grid.logged_card.curves.accessibleDescription()
    assert "step 30: 0.9" in page.grid.logged_card.curves.tooltip_at(
        page.grid.logged_card.curves.curve_rect(0).right() - 1, 30
    )
    qtbot.mouseClick(page.grid.logged_card.curves, Qt.MouseButton.LeftButton, pos=QPoint(30, 30))
    loss = page.cards["loss"]
    assert loss.title == "accuracy" and loss.body._series[0] is not page.run.state.losses
    qtbot.keyClick(page.grid.logged_card.curves, Qt.Key.Key_Escape)
    assert loss.title == "Training loss" and loss.body._series[0] is page.run.state.losses
    description = page._facts_line.accessibleDescription()
    for word in ("train.py --lr 0.1", "torch 2.13.0", "DistributedDataParallel · 2 ranks · gloo", "1.24 M"):
        assert word in description
    qtbot.waitUntil(lambda: page.cards["rate"].body._series[0] is page.run.state.rates)
    boxes = [page.cards[name].geometry() for name in expected_cards]
    for index, box in enumerate(boxes):
        assert box.width() >= 150 and not any(box.intersects(other) for other in boxes[:index])
    page.grid.logged_card.make_export("csv")(tmp_path / "logged.csv")
    rows = (tmp_path / "logged.csv").read_text().splitlines()
    assert rows[1] == "accuracy,transformers,0,0.1" and len(rows) == 5


def test_all_ranks_are_counted_before_all_have_reported(
    qtbot: QtBot, make: Callable[..., WrittenScript], opened: Callable[..., RunPage]
) -> None:
    run = make(ranks=2)
    run.start_script(2)
    run.observe_rank(0)
    page = opened(run)
    # The page shows the script's name before the events have been read.
    qtbot.waitUntil(lambda: "2 ranks" in page._facts_line.accessibleDescription())


def test_a_script_without_steps_is_described(
    qtbot: QtBot, make: Callable[..., WrittenScript], opened: Callable[..., RunPage]
) -> None:
    run, commands = make(), list[str]()
    run.start_script()
    page = opened(run, commands=commands)
    qtbot.waitUntil(lambda: page.cards["loss"].body.empty_text == "waiting for the first optimizer step")
    assert visible_cards(page) == {"loss", "rate"} and page._banner.isVisible()
    qtbot.waitUntil(lambda: [action.command for action in page.tab_actions()] == ["run.stop"])
    run.end_script(3, reason="train.py exited with 3")
    qtbot.waitUntil(lambda: bool(page._banner.buttons))
    assert page.cards["loss"].body.empty_text == "no optimizer step was observed" and visible_cards(page) == {
        "loss"
    }
    assert stats(page)["Exit status"] == "3" and "Step" not in stats(page)
    assert [action.command for action in page.tab_actions()] == ["run.again", "run.compare"]
    page._banner.buttons[0].click()
    assert commands == ["run.again"]


def test_unobserved_metrics_are_marked(
    qtbot: QtBot, make: Callable[..., WrittenScript], opened: Callable[..., RunPage]
) -> None:
    blind = make(observe="none")
    blind.start_script()
    page = opened(blind)
    qtbot.waitUntil(lambda: page.cards["loss"].body.empty_text == "not observed: the run uses --observe none")
    assert not page._banner.isVisible() and set(stats(page)) == {"Elapsed"}
    half = make()
    half.start_script()
    half.observe_rank(parts={"loss": "AttributeError: no backward"})
    half.write_step_line(0, 1, [None] * 5)
    page = opened(half)
    qtbot.waitUntil(lambda: page.cards["loss"].body.empty_text == "not observed: AttributeError: no backward")
    assert "not observed: loss" in page._facts_line.accessibleDescription()
    assert stats(page)["Step"] == "5" and "Samples/s" not in stats(page)
    assert page.cards["rate"].subtitle == "steps/s"


def test_secrets_of_the_command_are_masked(
    qtbot: QtBot, make: Callable[..., WrittenScript], opened: Callable[..., RunPage]
) -> None:
    run = make(args=["--hf-token", "S3cret", "--lr", "0.5"], environment={"HUB_TOKEN": "S3cret"})
    run.start_script()
    page = opened(run)
    qtbot.waitUntil(lambda: "--lr 0.5" in page._facts_line.accessibleDescription())
    text = page._facts_line.accessibleDescription() + page._facts_line.tooltip_at(0.0, 0.0)
    assert "HUB_TOKEN" in text and "S3cret" not in text


@pytest.mark.parametrize("later, shown_loss", [([None] * 3, "not finite"), ([None, 0.5, None], "0.5000")])
def test_a_non_finite_loss_is_not_hidden_by_the_last_finite_one(
    qtbot: QtBot,
    make: Callable[..., WrittenScript],
    opened: Callable[..., RunPage],
    later: list[float | None],
    shown_loss: str,
) -> None:
    run = make()
    run.start_script()
    run.observe_rank(not_finite=4)
    run.write_step_line(0, 1, [0.5, 0.5, None, None, *later], step_s=0.0005)
    page = opened(run)
    qtbot.waitUntil(lambda: stats(page)["Step"] == "7")
    assert stats(page)["Last loss"] == shown_loss
    assert "loss not finite at step 4" in page._facts_line.accessibleDescription()
    assert stats(page)["Steps/s"] == "2\u2009000"


def test_unattributed_memory_has_its_own_segment(
    qtbot: QtBot, make: Callable[..., WrittenScript], opened: Callable[..., RunPage]
) -> None:
    run = make()
    run.start_script(1, [events.DeviceInfo(0, "H100", "gpu", "GPU-0", 80 << 30)])
    run.observe_rank()
    run.write_step_line(0, 1, [1.0])
    kinds = {"parameters": 20 * MIB, events.UNATTRIBUTED: 60 * MIB}
    device_memory = events.DeviceMemory(
        device=0, live_bytes=80 * MIB, peak_bytes=80 * MIB, peak_by_kind=kinds
    )
    run.writer("rank-0").write(
        events.Memory(rank=0, step=1, source=events.MEASURED_ON_GPU, devices=[device_memory])
    )
    page = opened(run)
    qtbot.waitUntil(lambda: page.grid.bars.data.largest_bytes > 0)
    assert "unattributed" in page.grid.bars.bar_tooltip(0) and stats(page)["GPU 0 peak"] == "80.0 MiB"
