"""Why out of memory, as a page: what stood there, what tipped it, and fixes with their buttons."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.diagnose.fixes import fixes_file
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import DOES_NOT_FIT, FITS, PlanLine, PlannedDevice
from rankdeck_app.composition import App
from rankdeck_app.views.code_page import CodePage
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.out_of_memory_page import OutOfMemoryPage
from rankdeck_app.views.problems import ProblemsView
from tests.helpers.app_window import open_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos

WAIT_MS = 30_000
GIB = 2**30


def encode_plan_line(strategy: str, size: int, verdict: str = FITS, *, configured: bool = False) -> bytes:
    device = PlannedDevice(device=0, active_bytes=size, total_bytes=size, capacity_bytes=GIB)
    line = PlanLine(strategy=strategy, options={}, label=strategy, verdict=verdict, devices=[device])
    line.configured = configured
    return plan_lines.encode(line)


@pytest.fixture
def path(app: App, tmp_path: Path) -> Path:
    """A ddp run that ran out of memory, with a checkpoint, and planned ways out."""
    file = tmp_path / "model.py"
    file.write_text("def forward(x):\n    return x @ x\n")
    written = WrittenRun(app.session.workspace.runs_folder, config={"strategy": {"use": "ddp"}})
    written.start(2, device_infos(2))
    written.write_steps(0, 1, [3.0, 2.0])
    written.write_memory(0, 2, {0: {"parameters": 8 * MIB, "activations": 90 * MIB}})
    written.writer("rank-0").write(events.CheckpointSaved(step=2, num_bytes=9, seconds=0.1, reason="request"))
    written.writer("rank-0").write(
        events.OutOfMemory(
            rank=0, step=3, device=0, module="blocks.1 (Block)", modules={"blocks.1": {"parameters": MIB}},
            allocation=Allocation(asked_bytes=2 * GIB, capacity_bytes=GIB, free_bytes=5 * MIB),
        )
    )  # fmt: skip
    problem = Problem(
        "out-of-memory", "OutOfMemoryError: CUDA out of memory.", path=str(file), line=2, rank=0,
        last_lines=(f'  File "{file}", line 2, in forward', "    return x @ x"),
        cure={"train.accumulate": 2},
    )  # fmt: skip
    written.writer("supervisor").write(events.ProblemRaised(problem=problem))
    lines = encode_plan_line("ddp", 2 * GIB, DOES_NOT_FIT, configured=True) + encode_plan_line(
        "fsdp", GIB // 2
    )
    fixes_file(written.dir).write_bytes(lines)
    written.end("failed", 1)
    return written.path


def open_page_from_problem(qtbot: QtBot, app: App, path: Path) -> OutOfMemoryPage:
    open_run(app, path)
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    qtbot.waitUntil(
        lambda: bool(view.rows) and "Resume with train.accumulate = 2" in view.rows[0].labels,
        timeout=WAIT_MS,
    )
    (button,) = [button for button in view.rows[0].buttons if button.text() == "Explain Out of Memory"]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, OutOfMemoryPage)
    qtbot.waitUntil(lambda: bool(page.fix_list.buttons), timeout=WAIT_MS)
    return page


def test_a_problem_opens_the_page_and_closing_it_releases_the_run(qtbot: QtBot, app: App, path: Path) -> None:
    page = open_page_from_problem(qtbot, app, path)
    assert page.headline_label.text() == "Virtual 0 ran out of memory in step 3."
    assert "An allocation of 2.0 GiB failed in blocks.1 (Block)." in page.cause_label.text()
    assert [item.name for item in page.kind_list.data.holders] == ["activations", "parameters"]
    assert [item.name for item in page.module_list.data.holders] == ["blocks.1"]
    assert "step 2" in page.kinds_card.subtitle
    assert [button.text() for button in page.fix_list.buttons] == ["Switch to FSDP"]
    assert "512.0 MiB to spare, fits, predicted" in page.fix_list.buttons[0].accessibleName()
    for theme, size in (("Dark Modern", (1440, 900)), ("Light Modern", (1280, 720))):
        app.window.theme.load(theme)
        app.window.resize(*size)
        assert not page.grab().isNull()  # no text is cut: a fixture looks
    page.code_link.click()
    assert isinstance(app.window.editor.active_page(), CodePage)
    assert "run.why" in app.window.commands and not app.window.commands.is_enabled("run.why")
    open_run(app, path)
    assert app.window.commands.is_enabled("run.why"), "the run's own tab is in front"
    run_page = app.window.editor.active_page()
    assert isinstance(run_page, RunPage)
    assert [action.command for action in run_page.tab_actions()] == ["run.why", "run.resume", "run.again"]
    app.window.editor.close_page(run_page.page_id)
    assert len(app.tabs.open_runs.list_runs()) == 1, "the page still follows it"
    app.window.editor.close_page(page.page_id)
    qtbot.waitUntil(lambda: not app.tabs.open_runs.list_runs(), timeout=WAIT_MS)
