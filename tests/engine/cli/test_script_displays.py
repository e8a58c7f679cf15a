"""What a person sees of a run of their own script."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rankdeck.cli.live import LiveDisplay, device_bars
from rankdeck.cli.staying import last_words
from rankdeck.run.fold import read_fold
from tests.helpers.cli import rankdeck_here
from tests.helpers.written_run import MIB
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    """Ten steps of two ranks, of which every third was sampled."""
    run = WrittenScript(tmp_path / "rankdeck-runs", config={"args": ["--name", "a b"], "ranks": 2})
    run.launch(2)
    for rank in (0, 1):
        run.see(rank, wrapper="DistributedDataParallel", model="__main__:Net", num_parameters=1200)
        run.step(
            rank, 1, [None if step % 3 else 5.0 - step / 10 for step in range(11)], samples=8, wait_s=0.1
        )
        run.hold(rank, {"parameters": MIB, "optimizer": 2 * MIB})
    run.log(0, steps=[100, 200], accuracy=[0.25, 0.5])
    yield run
    run.lose()


def spoken(*argv: str) -> tuple[str, str]:
    done = rankdeck_here(*argv, code=0)
    return done.out, done.err


def test_the_last_line_says_of_which_step_its_loss_is_and_where_it_was_no_number(run: WrittenScript) -> None:
    run.finish()
    told = "11 steps, loss 5.0000 to 4.1000 at step 10; rankdeck show"
    assert last_words(run.dir).endswith(f"{told} {run.dir.name}") and "not finite" not in last_words(run.dir)
    run.see(1, not_finite=11)
    lost = "with a loss that is not finite from step 11 on"
    assert f", {lost}, {told}" in last_words(run.dir)
    assert f"completed, {lost}  11 steps" in spoken("show", "last")[0]
    run.see(0, not_finite=4)
    assert ", with a loss that is not finite in step 4, 11 steps" in last_words(run.dir)


def test_the_loss_of_the_last_step_needs_no_step(run: WrittenScript) -> None:
    for rank in (0, 1):
        run.step(rank, 12, [3.0])
    run.finish()
    assert "12 steps, loss 5.0000 to 3.0000; rankdeck show" in last_words(run.dir)


def test_watch_tells_a_script_in_plain_lines_without_plan_or_end(run: WrittenScript) -> None:
    run.finish()
    out, err = spoken("watch", "train.py")
    lines = out.splitlines()
    assert lines[:2] == ["starting 2 ranks", "step 11  loss 4.1000 at step 10  2.0 steps/s  32.0 samples/s"]
    assert lines[2].startswith("completed  11 steps  train.py  DistributedDataParallel (observed) on 2 ranks")
    assert "device 0    3.0 MiB owners seen on CPU (optimizer 2.0 MiB, weights 1.0 MiB)" in lines
    assert err == "" and "left" not in out and "?" not in out


def test_show_tells_script_status_set_up_and_what_was_logged(run: WrittenScript) -> None:
    run.finish(3)
    out, err = spoken("show", "last")
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line]
    assert ["script", "/usr/bin/python3 train.py --name 'a b'"] in lines
    assert ["model", "Net, 1\u2009200 parameters"] in lines
    assert any(line.split() == ["exit", "status", "3"] for line in out.splitlines())
    assert any(line.split() == ["loader", "wait", "20", "%", "of", "a", "step"] for line in out.splitlines())
    assert "peak" not in out and "memory, owners seen on CPU" in out
    assert any(line.split() == ["accuracy", "0.5", "200", "2", "rankdeck"] for line in out.splitlines())
    assert "train.py exited with 3." in err


def test_a_script_that_never_steps_says_so(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "rankdeck-runs", "etl.py")
    run.launch()
    run.finish()
    out, _ = spoken("watch", "last")
    assert any(line.split(maxsplit=1) == ["note", "no optimizer step was seen"] for line in out.splitlines())
    assert "loss" not in out and "speed" not in out


def test_the_picture_of_a_script_has_no_bar_of_progress(run: WrittenScript) -> None:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(LiveDisplay(run.dir)._progress(read_fold(run.dir)), device_bars(read_fold(run.dir)))
    progress, *bars = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert progress.strip() == "step 11  loss 4.1000 at step 10  2.0 steps/s  32.0 samples/s"
    assert "owners seen" in bars[0] and "optimizer 2.0 MiB" in bars[0] and "peak" not in bars[0]


def test_runs_lists_scripts_by_wrapper_or_as_scripts(run: WrittenScript, tmp_path: Path) -> None:
    other = WrittenScript(tmp_path / "rankdeck-runs", "other.py")
    other.launch()
    table = {line.split()[0]: line.split()[3] for line in spoken("runs")[0].splitlines()[1:]}
    assert table == {run.dir.name: "DistributedDataParallel", other.dir.name: "script"}
    other.lose()


def test_show_with_a_plan_is_refused(run: WrittenScript) -> None:
    done = rankdeck_here("show", "last", "--plan", code=2)
    assert "a person's own script" in done.err and done.out == ""


def test_export_names_the_file_that_tensorboard_reads(run: WrittenScript, tmp_path: Path) -> None:
    _, err = spoken("export", "last", "--to", "tensorboard", str(tmp_path / "board"))
    (file,) = (tmp_path / "board").iterdir()
    assert str(file) in err
    assert (
        "a script of your own"
        in rankdeck_here("export", "last", "--to", "safetensors", str(tmp_path / "w"), code=2).err
    )


def test_only_a_folder_that_is_not_there_is_to_be_made(run: WrittenScript, tmp_path: Path) -> None:
    for file, advice in {
        "/proc/x": "Name another file.",
        tmp_path / "a" / "x": f"mkdir -p {tmp_path}/a",
    }.items():
        assert advice in rankdeck_here("export", "last", "--to", "json", file, code=2).err


def test_watch_as_json_streams_what_was_seen(run: WrittenScript) -> None:
    run.finish()
    kinds = [json.loads(line)["kind"] for line in spoken("watch", "last", "--json")[0].splitlines()]
    assert {"observed", "metric", "steps", "memory"} <= set(kinds)
