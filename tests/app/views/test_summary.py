"""What a run came to stands above its cards once it is over, as its report has it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QLabel, QPushButton
from pytestqt.qtbot import QtBot
from safetensors.numpy import load_file, save_file

from rankdeck import events
from rankdeck.checkpoint_files import write_commit
from rankdeck.compare.page import render_report
from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.run_report import PhaseTable
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck.run.prediction import prediction_file
from rankdeck_app.composition import App
from rankdeck_app.views.dashboard import summary
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.dashboard.summary import SummaryPanel, one_line_text
from tests.helpers.app_window import open_run, process_events
from tests.helpers.hostile_run import ParsedPage
from tests.helpers.observed_run import observed_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos

WAIT_MS = 10_000


def write_run(name: str, num_devices: int = 2, outcome: str | None = "completed") -> WrittenRun:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), name, config={"strategy": {"use": "dp"}})
    run.start(num_devices, device_infos(num_devices), steps=40, strategy="dp")
    for rank in range(num_devices):
        run.write_steps(rank, 1, [3.0 - at / 100 for at in range(40)])
    for step, loss in ((20, 1.5), (40, 2.25)):
        run.writer("rank-0").write(events.Evaluation(step=step, loss=loss, samples=9, seconds=0.1))
    run.write_memory(0, 40, {at: {"parameters": (40 if at == 0 else 10) * MIB} for at in range(num_devices)})
    for rank in range(num_devices):
        run.writer(f"rank-{rank}").write(
            events.Spans(
                rank=rank, step=40, began=run.started, seconds=0.02, names=["forward", "backward"],
                name=[0, 1], device=[rank] * 2, start_us=[0, 8000], duration_us=[8000, 12500],
            )
        )  # fmt: skip
    devices = [
        PlannedDevice(device=at, active_bytes=44 * MIB, total_bytes=44 * MIB) for at in range(num_devices)
    ]
    line = PlanLine(strategy="dp", options={}, label="dp", verdict=FITS, devices=devices)
    prediction_file(run.dir).write_bytes(plan_lines.encode(line))
    if outcome is not None:
        run.end(outcome)
    return run


def open_summary(qtbot: QtBot, app: App, run: Path, height: int = 1200) -> SummaryPanel:
    """By default in a window in which there is room for charts and summary."""
    app.window.resize(1440, height)
    open_run(app, run)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page._ended_run.report is not None, timeout=WAIT_MS)
    return page._summary


def label_texts(panel: SummaryPanel) -> set[str]:
    return {label.text() for label in panel.findChildren(QLabel)}


def test_the_summary_shows_the_values_of_the_report(qtbot: QtBot, app: App) -> None:
    run = write_run("done")
    panel = open_summary(qtbot, app, run.path)
    assert panel.isVisible() and panel.is_open and panel.title.text() == "Completed"
    assert panel.one_line_label.text().startswith("40 steps in ")
    assert "best held-out loss 1.5000 at step 20" in panel.one_line_label.text()
    qtbot.waitUntil(lambda: panel.height() > 100, timeout=WAIT_MS)
    texts, page = label_texts(panel), ParsedPage(render_report(load_run(RunRef(run.path)), "step")).text
    for value in ("40.0 MiB", "44.0 MiB", "+10.00 %", "+340.00 %", "8.00 ms", "12.5 ms", "1.5000"):
        assert value in texts, value
        assert value in page, value
    assert any(text.startswith("Train with DistributedDataParallel") for text in texts)
    copy = next(button for button in panel.findChildren(QPushButton) if "Copy" in button.text())
    copy.click()
    assert "--strategy ddp" in QGuiApplication.clipboard().text()


def test_a_key_folds_the_summary_for_good(qtbot: QtBot, app: App) -> None:
    panel = open_summary(qtbot, app, write_run("done").path)
    qtbot.waitUntil(lambda: panel.height() > 100, timeout=WAIT_MS)
    assert panel.fold_button.accessibleName() == "Collapse the summary"
    panel.fold_button.setFocus()
    qtbot.keyClick(panel.fold_button, Qt.Key.Key_Space)
    assert not panel.is_open and panel.height() == summary.HEADER_HEIGHT
    page = app.window.editor.active_page()
    assert page is not None and page.save_state() == {"summary": False}
    page.restore_state({"summary": "odd"})
    assert panel.open_override is None and panel.is_open
    page.restore_state({"summary": False})
    assert not panel.is_open


def test_a_maximised_card_hides_the_summary(qtbot: QtBot, app: App) -> None:
    panel = open_summary(qtbot, app, write_run("done").path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: panel.height() > 100, timeout=WAIT_MS)
    page.grid.toggle_maximised("bars")
    assert not panel.isVisible()
    page._show_summary()
    assert not panel.isVisible(), "whatever news of the run there is"
    bottom = panel.geometry().top()
    qtbot.waitUntil(lambda: page.grid.geometry().top() <= bottom, timeout=WAIT_MS)
    page.grid.toggle_maximised("bars")
    assert panel.isVisible() and panel.is_open
    page.grid.toggle_maximised("bars")
    page.grid.show_only({"loss", "band"})
    assert panel.isVisible(), "a card that is gone has no page"


@pytest.mark.parametrize("outcome", ["failed", "stopped", None])
def test_the_summary_is_folded_unless_the_run_completed(qtbot: QtBot, app: App, outcome: str | None) -> None:
    run = write_run("other", outcome=outcome)
    if outcome is None:
        run.lose()
    panel = open_summary(qtbot, app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and page._banner.isVisible() and panel.isVisible() and not panel.is_open
    assert panel.title.text() == "Summary", "the banner has said how it ended"
    assert [button.text() for button in panel.buttons] == ["Export Weights…", "Save Report…"]


def test_live_runs_and_runs_without_steps_have_no_summary(qtbot: QtBot, app: App) -> None:
    alive = write_run("alive", outcome=None)
    empty = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "empty")
    empty.start()
    empty.end()
    for run, outcome in ((alive, "running"), (empty, "completed")):
        open_run(app, run.path)
        page = app.window.editor.active_page()
        assert isinstance(page, RunPage)
        qtbot.waitUntil(lambda page=page, outcome=outcome: page.run.outcome == outcome, timeout=WAIT_MS)
        assert page._ended_run.report is None and not page._summary.isVisible()
    alive.end()
    open_run(app, alive.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page._summary.isVisible(), timeout=WAIT_MS)


def test_a_script_has_a_summary_of_its_known_metrics(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    run = observed_run(Path(os.environ["RANKDECK_RUNS"]), tmp_path / "own.py")
    panel = open_summary(qtbot, app, run.path)
    assert panel.title.text() == "Summary" and "Steps done" in label_texts(panel)
    assert "Export Weights…" not in [button.text() for button in panel.buttons]


def test_weights_are_exported_to_the_chosen_file(
    qtbot: QtBot, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run("done")
    save_file({"w": np.arange(3.0)}, run.dir.weights, metadata={"step": "40"})
    panel = open_summary(qtbot, app, run.path)
    target = tmp_path / "out"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(target), ""))
    next(button for button in panel.buttons if button.text() == "Export Weights…").click()
    file = target.with_suffix(".safetensors")
    qtbot.waitUntil(file.exists, timeout=60_000)
    assert load_file(file)["w"].tolist() == [0.0, 1.0, 2.0]
    history = app.window.toasts.history
    qtbot.waitUntil(
        lambda: any("Exported the weights of" in notice.text for notice in history), timeout=WAIT_MS
    )


def test_exporting_a_checkpoint_needs_trusted_code(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "left", config={"model": {"use": "theirs.py:model"}})
    run.end("stopped")
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(app.comparisons, "_write", lambda _file, command, _callback: commands.append(command))
    save_file({"w": np.arange(3.0)}, run.dir.weights, metadata={"step": "40"})
    app.comparisons.export_weights(run.path, tmp_path / "w")
    app.session.io_thread.wait_for_done()
    assert len(commands) == 1 and "--trust" not in commands[0] and app.launcher.trust_dialog is None
    checkpoint = run.dir.checkpoints_folder / "41"
    checkpoint.mkdir(parents=True)
    write_commit(checkpoint, {})
    app.comparisons.export_weights(run.path, tmp_path / "w")
    app.session.io_thread.wait_for_done()
    question = app.launcher.trust_dialog
    assert question is not None and run.path in question.folders and len(commands) == 1
    question.accept_button.click()
    app.session.io_thread.wait_for_done()
    assert len(commands) == 2 and "--trust" in commands[1]


def test_phases_of_many_devices_are_summarised() -> None:
    names = [f"Virtual {at}" for at in range(16)]
    rows = [("forward", [f"{at} ms" for at in range(16)])]
    table = PhaseTable(3, names, rows, [("forward", ["8.00 ms", "15.0 ms"])], "")
    assert summary._phase_table(table) == (("", "median", "longest"), [("forward", "8.00 ms", "15.0 ms")])
    few = PhaseTable(3, names[:2], [("forward", ["1 ms", "2 ms"])], [], "")
    assert summary._phase_table(few) == (("", *names[:2]), [("forward", "1 ms", "2 ms")])


def min_chart_height(page: RunPage) -> int:
    """Height of the lowest chart of a curve."""
    process_events()
    return min(page.cards[name].built_body.height() for name in ("band", "loss", "rate"))  # type: ignore[union-attr]


def test_the_summary_leaves_charts_readable(qtbot: QtBot, app: App) -> None:
    """Folded where there is no room for both, and never so high that it takes theirs."""
    panel = open_summary(qtbot, app, write_run("done", 4).path, 900)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and app.window.show_panel("problems").isVisible()
    qtbot.waitUntil(lambda: all(card.built_body for card in page.cards.values() if card.isVisible()))
    assert not panel.is_open and min_chart_height(page) > 120
    panel.set_open_override(True)
    assert panel.is_open and min_chart_height(page) > 85
    panel.set_open_override(None)
    app.window.resize(1440, 1200)
    assert min_chart_height(page) > 120 and panel.is_open


@pytest.mark.parametrize("num_devices", [1, 16])
def test_the_summary_fits_at_every_size(qtbot: QtBot, app: App, num_devices: int) -> None:
    panel = open_summary(qtbot, app, write_run("done", num_devices).path)
    panel.set_open_override(True)
    qtbot.waitUntil(lambda: panel.height() > 60, timeout=WAIT_MS)
    page = app.window.editor.active_page()
    assert page is not None
    for size in ((1440, 900), (1280, 720), (900, 700)):
        app.window.resize(*size)
        process_events()
        assert panel.height() > 60 and panel.height() <= 0.45 * page.height() + 46, size
        assert panel.geometry().right() < page.width(), size
        for button in panel.buttons:
            assert not button.isVisible() or button.geometry().right() <= panel.width(), size
        app.window.grab()
    assert one_line_text(page._ended_run.report).endswith(" samples/s")  # type: ignore[attr-defined]
