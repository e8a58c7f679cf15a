"""The page of one run says what it came to and what to try next, and every word of it stays a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.compare.page import render_report, write_report
from rankdeck.compare.run_metrics import ComparedDevice, MetricValue, load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.run_report import suggest_fixes
from rankdeck.diagnose.fixes import Fix
from rankdeck.diagnose.out_of_memory import OutOfMemoryReport
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck.run.prediction import prediction_file
from rankdeck.run.row import read_info
from rankdeck.run_dir import create_race
from tests.helpers.hostile_run import HOSTILE, ParsedPage, write_hostile_run
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


def write_prediction(run: WrittenRun, *sizes: int) -> None:
    devices = [
        PlannedDevice(device=at, active_bytes=size * MIB, total_bytes=size * MIB)
        for at, size in enumerate(sizes)
    ]
    line = PlanLine(strategy="dp", options={}, label="dp", verdict=FITS, devices=devices)
    prediction_file(run.dir).write_bytes(plan_lines.encode(line))


def test_the_report_has_the_results_of_the_run(tmp_path: Path) -> None:
    run = write_hostile_run(tmp_path / "runs", "one", [4.0, 3.0, 2.0, 1.0])
    write_prediction(run, 88, 10)
    run.writer("rank-0").write(VERIFIED["equal"])
    run.writer("rank-0").write(
        events.Spans(
            rank=0, step=3, began=run.started, seconds=0.02, names=["forward", "<backward>"], name=[0, 1],
            device=[0, 0], start_us=[0, 8000], duration_us=[8000, 12500],
        )
    )  # fmt: skip
    page = render_report(load_run(RunRef(run.path)), "samples")
    document = ParsedPage(page)
    assert "One device" in document.text and "largest difference 6e-16" in document.text
    for text in (
        "80.0 MiB",
        "88.0 MiB",
        "+10.00 %",
        "8.00 ms",
        "12.5 ms",
        "<backward>",
        "There is no prediction",
    ):
        assert (text in document.text) == (text != "There is no prediction"), text
    assert document.text.count(HOSTILE) >= 2 and not [
        tag for tag, _ in document.elements if tag in ("script", "img", "b")
    ]
    assert str(Path.home()) not in page and "\u202e" not in page and "\x1b" not in page
    boxes = {attrs["id"]: "checked" in attrs for tag, attrs in document.elements if tag == "input"}
    assert boxes == {"by-step": False, "by-time": False, "by-samples": True}


def test_empty_runs_and_attempts_have_reports(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    empty.start()
    empty.lose()
    write_report(tmp_path / "empty.html", load_run(RunRef(empty.path)), "time")
    text = ParsedPage((tmp_path / "empty.html").read_text()).text
    assert "lost" in text and "killed from outside" in text and "rankdeck resume" not in text
    commit_checkpoint(empty)
    resumed = f"rankdeck resume {empty.dir.name}"
    assert resumed in render_report(load_run(RunRef(empty.path)), "step")
    assert resumed not in render_report(load_run(RunRef(empty.path, 0)), "step")


def commit_checkpoint(run: WrittenRun | WrittenScript) -> None:
    saved = run.dir.checkpoints_folder / "5"
    saved.mkdir(parents=True)
    (saved / "COMMIT").write_text("{}")


def test_a_race_entry_gets_no_resume_command(tmp_path: Path) -> None:
    race = create_race(tmp_path, "race", "")
    race.file.write_text("{}")
    entry = WrittenRun(race.entries_folder, "1-ddp")
    entry.start(1, device_infos(2), steps=8)
    entry.end("stopped", 0)
    commit_checkpoint(entry)
    placed = entry.path.rename(race.entries_folder / "1-ddp")
    assert "rankdeck resume" not in render_report(load_run(RunRef(placed)), "step")


GIB = 2**30


@pytest.mark.parametrize(
    ("metrics", "sizes", "changes", "text"),
    [
        ({}, (5, 1, 1), {"strategy": "dp"}, "DistributedDataParallel"),
        ({}, (5, 1, 1), {"strategy": "ddp"}, ""),
        ({}, (1, 1, 1), {"strategy": "dp"}, ""),
        ({"bubble": 0.4, "bubble_theory": 0.1}, (), {}, "Balance the stages"),
        ({"bubble": 0.3, "bubble_theory": 0.27}, (), {}, "more microbatches"),
        ({"bubble": 0.05, "bubble_theory": 0.04}, (), {}, ""),
        ({"wait": 0.4}, (), {}, "DataLoader more workers"),
        ({"wait": 0.02}, (), {}, ""),
        ({"held_out": 1.2, "best_held_out": 1.0}, (), {}, "Stop training after step 7"),
        ({"held_out": 1.01, "best_held_out": 1.0}, (), {}, ""),
        ({"step": 5}, (), {"outcome": "stopped"}, "newest checkpoint"),
    ],
)
def test_fixes_follow_from_metrics(
    tmp_path: Path,
    metrics: Mapping[str, float],
    sizes: tuple[int, ...],
    changes: Mapping[str, object],
    text: str,
) -> None:
    written = WrittenRun(tmp_path / "runs", "a run")
    written.start(1, device_infos(3), steps=8)
    written.end()
    commit_checkpoint(written)
    run = replace(
        load_run(RunRef(written.path)).run,
        metrics={key: MetricValue(value, 7) for key, value in metrics.items()},
        devices=tuple(ComparedDevice(f"GPU {at}", size * GIB, {}) for at, size in enumerate(sizes)),
        **changes,  # type: ignore[arg-type]
    )
    fixes = suggest_fixes(run)
    assert [text in fix.text for fix in fixes] == ([True] if text else [])
    assert all("a run" not in fix.command_line or "'" in fix.command_line for fix in fixes)


def test_a_stopped_script_gets_no_resume_command(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs")
    run.start_script(1)
    run.write_step_line(0, 1, [3.0, 2.0])
    run.end("stopped")
    commit_checkpoint(run)  # its own file, which happens to be called so
    assert suggest_fixes(load_run(RunRef(run.path)).run) == []
    assert not read_info(run.dir).is_resumable


def test_the_command_of_a_fix_is_shell_quoted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "one")
    command = ["rankdeck", "train", "/my work/run.toml", "--set", "data.args={seed = 1}"]
    why = Problem("out-of-memory", "There was no room.")
    ran = OutOfMemoryReport(why, Allocation(), fixes=[Fix("Use less.", command=command)])
    page = ParsedPage(render_report(load_run(RunRef(run.path)), "samples", ran))
    assert "rankdeck train '/my work/run.toml' --set 'data.args={seed = 1}'" in page.text
