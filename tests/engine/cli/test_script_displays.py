"""What a person sees of a run of their own script."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.cli.live import LiveDisplay, device_bars
from rankdeck.cli.run_result import result_lines
from rankdeck.cli.summary import print_summary
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_run import MIB
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    """Ten steps of two ranks, of which every third was sampled."""
    run = WrittenScript(tmp_path / "rankdeck-runs", config={"args": ["--name", "a b"], "ranks": 2})
    run.start_script(2)
    for rank in (0, 1):
        run.observe_rank(rank, wrapper="DistributedDataParallel", model="__main__:Net", num_parameters=1200)
        run.write_step_line(
            rank, 1, [None if step % 3 else 5.0 - step / 10 for step in range(11)], samples=8, wait_s=0.1
        )
        run.write_owner_memory(rank, {"parameters": MIB, "optimizer": 2 * MIB})
    run.write_logged(0, steps=[100, 200], accuracy=[0.25, 0.5])
    yield run
    run.lose()


def run_cli(*argv: str) -> tuple[str, str]:
    done = rankdeck_in_process(*argv, exit_code=0)
    return done.out, done.err


def test_the_result_line_has_the_step_of_its_loss_and_of_a_nan(run: WrittenScript) -> None:
    run.end_script()
    text = "11 steps, loss 5.0000 to 4.1000 at step 10; rankdeck show"
    line = result_lines(run.dir)[0]
    assert line.endswith(f"{text} {run.dir.name}") and "not finite" not in line
    run.observe_rank(1, not_finite=11)
    lost = "with a non-finite loss from step 11 on"
    assert f", {lost}, {text}" in result_lines(run.dir)[0]
    assert f"completed, {lost}  11 steps" in run_cli("show", "last")[0]
    run.observe_rank(0, not_finite=4)
    assert ", with a non-finite loss in step 4, 11 steps" in result_lines(run.dir)[0]


def test_the_result_line_omits_the_step_of_the_last_loss(run: WrittenScript) -> None:
    for rank in (0, 1):
        run.write_step_line(rank, 12, [3.0])
    run.end_script()
    assert "12 steps, loss 5.0000 to 3.0000; rankdeck show" in result_lines(run.dir)[0]


def test_watch_prints_a_script_as_plain_lines_without_a_total(run: WrittenScript) -> None:
    run.end_script()
    out, err = run_cli("watch", "train.py")
    lines = out.splitlines()
    assert lines[:2] == ["starting 2 ranks", "step 11  loss 4.1000 at step 10  2.0 steps/s  32.0 samples/s"]
    assert lines[2].startswith("completed  11 steps  train.py  DistributedDataParallel (observed) on 2 ranks")
    assert "device 0    3.0 MiB owners seen on CPU (optimizer 2.0 MiB, weights 1.0 MiB)" in lines
    assert err == "" and "left" not in out and "?" not in out


def test_show_lists_script_exit_status_setup_and_logged_metrics(run: WrittenScript) -> None:
    run.end_script(3)
    out, err = run_cli("show", "last")
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line]
    assert ["script", "/usr/bin/python3 train.py --name 'a b'"] in lines
    assert ["model", "Net, 1\u2009200 parameters"] in lines
    assert any(line.split() == ["exit", "status", "3"] for line in out.splitlines())
    assert any(line.split() == ["loader", "wait", "20", "%", "of", "a", "step"] for line in out.splitlines())
    assert "peak" not in out and "memory, owners seen on CPU" in out
    assert any(line.split() == ["accuracy", "0.5", "200", "2", "rankdeck"] for line in out.splitlines())
    assert "train.py exited with status 3." in err


def test_a_script_without_an_optimizer_step_has_a_note(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "rankdeck-runs", "etl.py")
    run.start_script()
    run.end_script()
    out, _ = run_cli("watch", "last")
    assert any(
        line.split(maxsplit=1) == ["note", "no optimizer step was observed"] for line in out.splitlines()
    )
    assert "loss" not in out and "speed" not in out


def test_the_live_display_of_a_script_has_no_progress_bar(run: WrittenScript) -> None:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(
        LiveDisplay(run.dir)._progress_line(read_run_state(run.dir)), device_bars(read_run_state(run.dir))
    )
    progress, *bars = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert progress.strip() == "step 11  loss 4.1000 at step 10  2.0 steps/s  32.0 samples/s"
    assert "owners seen" in bars[0] and "optimizer 2.0 MiB" in bars[0] and "peak" not in bars[0]


def test_runs_lists_scripts_by_wrapper_or_as_script(run: WrittenScript, tmp_path: Path) -> None:
    other = WrittenScript(tmp_path / "rankdeck-runs", "other.py")
    other.start_script()
    table = {line.split()[0]: line.split()[3] for line in run_cli("runs")[0].splitlines()[1:]}
    assert table == {run.dir.name: "DistributedDataParallel", other.dir.name: "script"}
    other.lose()


def test_show_plan_is_refused_for_a_script(run: WrittenScript) -> None:
    done = rankdeck_in_process("show", "last", "--plan", exit_code=2)
    assert "is a run of your own script, train.py" in done.err and done.out == ""


def test_export_prints_the_tensorboard_file(run: WrittenScript, tmp_path: Path) -> None:
    _, err = run_cli("export", "last", "--to", "tensorboard", str(tmp_path / "board"))
    (file,) = (tmp_path / "board").iterdir()
    assert str(file) in err
    assert (
        "train.py is your own script"
        in rankdeck_in_process("export", "last", "--to", "safetensors", str(tmp_path / "w"), exit_code=2).err
    )


def test_export_suggests_mkdir_for_a_missing_folder_only(run: WrittenScript, tmp_path: Path) -> None:
    for file, advice in {
        "/proc/x": "Choose another file.",
        tmp_path / "a" / "x": f"mkdir -p {tmp_path}/a",
    }.items():
        assert advice in rankdeck_in_process("export", "last", "--to", "json", file, exit_code=2).err


def test_watch_json_streams_observed_events(run: WrittenScript) -> None:
    run.end_script()
    kinds = [json.loads(line)["kind"] for line in run_cli("watch", "last", "--json")[0].splitlines()]
    assert {"observed", "metric", "steps", "memory"} <= set(kinds)


def test_a_summary_omits_the_problems_that_were_printed_and_no_others(
    run: WrittenScript, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hang that is over is not among the summary's problems, so positions say nothing."""
    printed_before = [
        Problem("hang-suspected", "No progress.", severity="warning"),
        Problem("b", "B failed.", severity="warning"),
    ]
    writer = run.writer("supervisor")
    for problem in (*printed_before, Problem("c", "C failed.", severity="warning")):
        writer.write(events.ProblemRaised(problem=problem))
    run.end_script()
    print_summary(summarize(run.dir, read_run_state(run.dir, curves=True)), shown_problems=printed_before)
    printed = capsys.readouterr()
    assert "C failed." in printed.err and "B failed." not in printed.err + printed.out
