"""What a person sees of a run: plain lines in a pipe, a picture on a terminal, events as JSON, a report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck.cli import console
from rankdeck.cli.display import PlainDisplay
from rankdeck.cli.formatting import bar, evaluation_text, kinds_text, loss_text
from rankdeck.cli.live import LiveDisplay, device_bars
from rankdeck.run.batch import Batch
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.verified import verified_text
from rankdeck.run_dir import add_to_index
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    """A dp run of ten steps on two devices with all that a run can tell."""
    run = WrittenRun(tmp_path / "rankdeck-runs", "gpt-dp")
    run.start(1, device_infos(2), steps=10)
    rank = run.writer("rank-0")
    rank.write(events.Phase(rank=0, phase="loading data"))
    run.write_steps(0, 1, [5.0 - step / 10 for step in range(10)], step_s=0.5)
    run.write_memory(0, 3, {0: {"parameters": MIB, "gathered": 8 * MIB}, 1: {"parameters": MIB}})
    rank.write(events.Sample(devices=[events.DeviceSample(0, utilisation=0.5)], interval_s=1.0, rank=0))
    rank.write(events.Comm(rank=0, step=3, algorithm="scatter", sent_bytes=3 * MIB))
    rank.write(events.Evaluation(step=10, loss=0.5, samples=8, seconds=0.1, accuracy=0.975, final=True))
    return run


def end_run(run: WrittenRun, outcome: str = "completed", exit_code: int = 0) -> WrittenRun:
    run.end(outcome, exit_code)
    return run


def run_cli(*argv: str) -> tuple[str, str]:
    done = rankdeck_in_process(*argv, exit_code=0)
    return done.out, done.err


def test_watch_prints_a_finished_run_as_plain_lines(written: WrittenRun) -> None:
    end_run(written)
    out, err = run_cli("watch", "gpt-dp")
    assert err == ""
    lines = out.splitlines()
    assert lines[:2] == ["starting 1 rank", "loading data"]
    assert "step 10/10  loss 4.1000  32.0 samples/s" in lines[2:]
    assert "step 10: held-out loss 0.5000, accuracy 97.50 %" in lines
    assert any(line.startswith("completed  10/10 steps  dp on 2 devices") for line in lines)
    assert lines[-1] == f"run            {written.path}"


def test_watch_follows_a_running_run_to_its_end(written: WrittenRun) -> None:
    """The run ends while it is watched: the end is put off until the watcher has shown the steps so far."""
    from rankdeck.cli.display import PlainDisplay
    from rankdeck.cli.follow import follow

    outcomes = []

    def on_tick() -> bool:
        outcomes.append(written.dir.outcome())
        if len(outcomes) == 3:
            written.write_steps(0, 11, [0.25])
            written.end()
        return True

    state = follow(written.dir, PlainDisplay(), on_tick)
    assert "running" in outcomes and state.step == 11


def test_watch_json_streams_events_with_their_writers(written: WrittenRun) -> None:
    end_run(written)
    out, _ = run_cli("watch", "last", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["writer"] == "supervisor" and lines[0]["kind"] == "run_started"
    assert [line["kind"] for line in lines].count("steps") == 1
    assert all({"writer", "kind", "t"} <= set(line) for line in lines)


def test_problems_are_printed_on_stderr_with_the_last_lines(written: WrittenRun) -> None:
    problem = Problem(
        "nan", "Rank 1: the loss is not finite.", rank=1, advice="Lower it.", last_lines=("boom",)
    )
    written.writer("supervisor").write(events.ProblemRaised(problem=problem))
    end_run(written, "failed", 1)
    out, err = run_cli("watch", "last")
    assert err.splitlines() == ["Rank 1: the loss is not finite.", "Lower it.", "  | boom"]
    assert "failed" in out and "not finite" not in out


def test_a_killed_run_is_shown_as_lost(written: WrittenRun) -> None:
    written.lose()
    out, err = run_cli("watch", "last")
    assert "lost" in out and "killed from outside" in err


def test_show_lists_memory_by_kind_and_device_with_its_source(written: WrittenRun) -> None:
    end_run(written)
    out, _ = run_cli("show", "last")
    assert "memory at each device's peak, measured in rehearsal" in out
    assert "device 0 is 8.0 MiB above the median of the others (9.0×)" in out
    assert "sent per step  scatter: 3.0 MiB" in out
    assert "highest of 1 of 10 steps" in out and "capacity" not in out
    table = {line.split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert table["gathered"][1:3] == ["8.0", "MiB"]
    assert table["peak"] == ["peak", "9.0", "MiB", "1.0", "MiB"]
    assert json.loads(run_cli("show", "last", "--json")[0])["run"] == written.dir.name


@pytest.mark.parametrize(
    ("steps", "capacity_mib", "text"),
    [
        ((1, 2, 3), 10, "10.0 MiB, not exceeded, highest of all 3 steps"),
        ((1, 2), 8, "8.0 MiB, exceeded on device 0"),
    ],
)
def test_the_capacity_is_compared_with_measured_peaks(
    tmp_path: Path, steps: tuple[int, ...], capacity_mib: int, text: str
) -> None:
    run = WrittenRun(tmp_path / "rankdeck-runs")
    run.start(1, device_infos(2, total_bytes=capacity_mib * MIB), steps=3)
    run.write_steps(0, 1, [1.0] * 3)
    for step in steps:
        run.write_memory(0, step, {0: {"gathered": 9 * MIB}, 1: {"parameters": MIB}})
    out, _ = run_cli("watch", end_run(run).dir.name)
    assert ["capacity", text] in [line.split(maxsplit=1) for line in out.splitlines()]


def test_show_works_for_a_run_that_never_started(tmp_path: Path) -> None:
    end_run(WrittenRun(tmp_path / "rankdeck-runs"), "failed", 2)
    out, err = run_cli("show", "last")
    assert "failed" in out and "without an error message" in err


def test_runs_are_listed_from_every_folder(written: WrittenRun, tmp_path: Path) -> None:
    other = WrittenRun(tmp_path / "elsewhere", "other")
    add_to_index(other.dir)
    rows = json.loads(run_cli("runs", "--json")[0])
    assert {row["run"]: row["outcome"] for row in rows} == {
        written.dir.name: "running",
        other.dir.name: "running",
    }
    keys = {
        "run",
        "title",
        "tags",
        "archived",
        "path",
        "outcome",
        "reason",
        "strategy",
        "started",
        "steps",
        "steps_planned",
    }
    assert all(set(row) == keys for row in rows)
    out, _ = run_cli("runs")
    assert written.dir.name in out and "dp" in out
    end_run(written), end_run(other)


def test_a_run_can_be_renamed_tagged_and_archived(written: WrittenRun) -> None:
    run = written.dir.name
    out, _ = run_cli("label", run, "--name", "the night", "--tag", "hot", "--tag", "lr", "--note", "why\nnot")
    assert out.splitlines() == ["the night  #hot  #lr", "why", "not"]
    assert "the night" in run_cli("runs")[0] and run_cli("show", "the night")[0].startswith("the night\n")
    out, _ = run_cli("label", "the night", "--untag", "lr", "--archive")
    assert out.splitlines()[0] == "the night  #hot  (archived)"
    assert run_cli("runs")[0] == "" and "rankdeck runs --all" in run_cli("runs")[1]
    assert run in run_cli("runs", "--all")[0]
    result = json.loads(run_cli("label", run, "--name", "", "--note", "", "--unarchive", "--json")[0])
    assert result == {"run": run, "title": "gpt-dp", "tags": ["hot"], "note": "", "archived": False}
    assert run in run_cli("runs")[0]
    end_run(written)


def test_listing_no_runs_is_no_error() -> None:
    out, err = run_cli("runs")
    assert out == "" and "no runs yet" in err
    assert json.loads(run_cli("runs", "--json")[0]) == []


def test_export_writes_every_format(written: WrittenRun, tmp_path: Path) -> None:
    written.dir.weights.write_bytes(b"w")
    end_run(written)
    for kind in ("safetensors", "csv", "json"):
        out, err = run_cli("export", "last", "--to", kind, str(tmp_path / kind))
        assert out == "" and kind in err
        assert (tmp_path / kind).stat().st_size > 0
    out, _ = run_cli("export", "last", "--to", "csv", str(tmp_path / "csv"), "--json")
    assert json.loads(out) == {"file": str(tmp_path / "csv"), "step": None}


def test_a_dash_exports_to_stdout(
    written: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.dir.weights.write_bytes(b"w")
    end_run(written)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    for kind, beginning in (("safetensors", "w"), ("csv", "step,"), ("json", "{")):
        out, err = run_cli("export", "last", "--to", kind, "-")
        assert out.startswith(beginning) and err.startswith("Saved the ") and " to stdout" in err
    for more, message in (
        (["--to", "csv", "--json"], "cannot both be written"),
        (["--to", "tensorboard"], "TensorBoard reads a folder"),
    ):
        refused = rankdeck_in_process("export", "last", "-", *more, exit_code=2)
        assert message in refused.out + refused.err
    for command in (["adopt", "last", "-o", "-"], ["race", "digits-mlp", "--save", "-"]):
        assert "written to stdout (-)" in rankdeck_in_process(*command, exit_code=2).err
    assert set(tmp_path.iterdir()) == before


def test_stopping_a_finished_run_is_no_error(written: WrittenRun) -> None:
    end_run(written, "failed", 1)
    out, err = run_cli("stop", "last")
    assert out == "" and "is not running: failed" in err


def draw_device_bars(state: RunState, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(device_bars(state))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_device_bars_share_one_scale_and_are_aligned(written: WrittenRun) -> None:
    lead, other = draw_device_bars(read_run_state(written.dir), 160)
    end_run(written)
    assert lead.index("━") == other.index("━")
    assert lead.count("━") == 24 and other.count("━") == round(24 / 9)
    assert lead.index("peak") == other.index("peak")
    assert "peak 9.0 MiB" in lead and "gathered 8.0 MiB, weights 1.0 MiB" in lead
    assert "50 %" in lead and "%" not in other


@pytest.mark.parametrize("width", [40, 80])
def test_device_rows_are_cut_at_the_terminal_width(written: WrittenRun, width: int) -> None:
    rows = draw_device_bars(read_run_state(written.dir), width)
    end_run(written)
    assert len(rows) == 2 and all(len(row) <= width for row in rows)


def test_a_device_without_readings_shows_no_number() -> None:
    state, batch = RunState(), Batch()
    batch.add("sampler.0.jsonl", [events.Sample(devices=[events.DeviceSample(device=0)], interval_s=0.2)])
    state.apply(batch)
    (row,) = draw_device_bars(state, 80)
    assert "?" in row and "0 B" not in row


@pytest.mark.parametrize(("share", "cells"), [(-1.0, 0), (0.0, 0), (0.5, 12), (1.0, 24), (7.0, 24)])
def test_a_bar_stays_within_its_cells(share: float, cells: int) -> None:
    assert bar(share, style="blue").plain.count("━") == cells
    assert len(bar(share, style="blue").plain) == 24


def test_kinds_losses_and_evaluations_are_formatted() -> None:
    assert (
        kinds_text({"gathered": 2 * MIB, "parameters": MIB, "inputs": 0})
        == "gathered 2.0 MiB, weights 1.0 MiB"
    )
    assert (loss_text(None), loss_text(float("nan")), loss_text(0.5)) == ("?", "?", "0.5000")
    evaluation = events.Evaluation(step=3, loss=0.5, samples=1, seconds=0.1)
    assert evaluation_text(evaluation) == "step 3: held-out loss 0.5000"


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, problems with their last lines and plain lines; colours of our own are none of it."""
    hostile = "a\x1b]0;title\x07b\x9b2J\u202ec\r\td\ne"
    console.out().print(Text(hostile), soft_wrap=True)
    table = Table(box=None)
    table.add_row(hostile)
    console.err().print(table)
    console.print_problem(Problem("failed", hostile, advice=hostile, last_lines=(hostile,)))
    PlainDisplay().show_message(hostile)
    output = "".join(capsys.readouterr())
    assert output.count("?]0;title") == 6 and not set("\x1b\x07\x9b\u202e\r") & set(output)


def test_a_problem_is_printed_with_the_location_of_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    last, evidence = "ValueError: no", Evidence("3 of 4 ranks agree", "events/rank-0.0.jsonl")
    quoted = Evidence(last, "logs/rank-1.0.err", 12)
    console.print_problem(Problem("x", "It failed.", last_lines=(last,), evidence=(quoted, evidence)))
    assert capsys.readouterr().err.splitlines() == [
        "It failed.",
        "  | ValueError: no",
        "  (logs/rank-1.0.err:12)",
        "  3 of 4 ranks agree  (events/rank-0.0.jsonl)",
    ]


@pytest.mark.parametrize("outcome", VERIFIED)
def test_the_verification_is_shown_as_one_line(
    written: WrittenRun, capsys: pytest.CaptureFixture[str], outcome: str
) -> None:
    verification = VERIFIED[outcome]
    for display in (PlainDisplay(), LiveDisplay(written.dir)):
        display.show_event("rank-0", verification, RunState())
        assert capsys.readouterr().out.replace("\n", " ").strip() == verified_text(verification)
    written.writer("rank-0").write(verification)
    end_run(written)
    out, _ = run_cli("show", "gpt-dp")
    assert f"one device     {verified_text(verification)}" in out
    out, _ = run_cli("watch", "gpt-dp")
    assert out.splitlines().count(verified_text(verification)) == 1, "beside the one of the summary"
