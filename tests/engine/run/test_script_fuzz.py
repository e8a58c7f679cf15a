"""Whatever a person's script makes the observer write, no reader breaks: drawn events, some absurd.

tests/fuzz damages runs of every kind, and draws few lines of a script; here all are of its own kinds, of
several ranks and attempts.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.cli.summary import print_report, print_summary
from rankdeck.run import export as exporting
from rankdeck.run.row import read_info, row_json
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from tests.helpers.written_script import WrittenScript

NUM_RUNS = 12


def random_number(choose: random.Random) -> Any:
    common = [choose.randint(-2, 50), choose.random() * 5, 0, 1]
    return choose.choice([*common * 4, None, -1, 10**30, 10**400, 1e308, -1e308, 2**53 + 1, 1e-320])


def random_numbers(choose: random.Random) -> Any:
    return [random_number(choose) for _ in range(choose.choice([0, 1, 2, 3, 3, 3, 7]))]


def random_name(choose: random.Random) -> str:
    return choose.choice(
        ["loss", "a/b", "", "é\n\x1b[31m", "[bold]x", "x" * 300, str(choose.randint(0, 900))]
    )


def random_table(choose: random.Random, value: Any) -> dict[str, Any]:
    return {random_name(choose): value(choose) for _ in range(choose.randint(0, 4))}


def random_line(choose: random.Random, rank: int) -> dict[str, Any]:
    """One event as JSON, its columns of any lengths."""
    random_rank = choose.choice([rank] * 9 + [-1, 2**40])
    match choose.randint(0, 9):
        case 0:
            return {
                "kind": "rank_started",
                "rank": random_rank,
                "pid": random_number(choose),
                "devices": [rank],
            }
        case 1:
            texts = {
                key: random_name(choose) for key in ("wrapper", "model", "optimizer", "dataset", "precision")
            }
            counts = {
                key: random_number(choose) for key in ("num_parameters", "num_samples", "batch", "accumulate")
            }
            return {
                "kind": "observed",
                "rank": random_rank,
                "script": random_name(choose),
                **texts,
                **counts,
                "wrapper_options": random_table(choose, random_number),
                "parts": random_table(choose, random_name),
                "versions": random_table(choose, random_name),
            }
        case 2 | 3:
            keys = ("steps", "times", "after")
            columns = {key: random_numbers(choose) for key in keys}
            return {
                "kind": "metric",
                "rank": random_rank,
                "through": "x",
                **columns,
                "values": random_table(choose, random_numbers),
            }
        case 4:
            keys = ("calls", "num_bytes", "seconds")
            tables = {key: random_table(choose, random_number) for key in keys}
            return {"kind": "collectives", "rank": random_rank, "step": random_number(choose), **tables}
        case 5:
            sizes = {key: random_number(choose) for key in ("live_bytes", "peak_bytes")}
            kinds = {key: random_table(choose, random_number) for key in ("live_by_kind", "peak_by_kind")}
            source = choose.choice(["owners seen on CPU", "measured on GPU", "?"])
            device = {"device": choose.choice([rank, 7]), **sizes, **kinds}
            return {
                "kind": "memory",
                "rank": random_rank,
                "step": random_number(choose),
                "source": source,
                "devices": [device],
            }
        case _:
            keys = (
                "loss_sum",
                "count",
                "lr",
                "samples",
                "step_s",
                "ended",
                "grad_norm",
                "wait_s",
                "backwards",
            )
            return {
                "kind": "steps",
                "rank": random_rank,
                "first": choose.choice([1, 2, choose.randint(0, 60), 2**51, 2**60]),
                **{key: random_numbers(choose) for key in keys if choose.random() < 0.9},
            }


def random_script_run(runs: Path, choose: random.Random) -> WrittenScript:
    run = WrittenScript(runs)
    for attempt in range(choose.randint(1, 2)):
        if choose.random() < 0.95:
            run.start_script(choose.randint(1, 3), attempt=attempt)
        for rank in range(choose.randint(1, 3)):
            if choose.random() < 0.7:
                run.observe_rank(rank, attempt=attempt)
                run.write_step_line(rank, 1, [1.0, None, 0.5], attempt=attempt, samples=4)
            with open(run.dir.events_folder / f"rank-{rank}.{attempt}.jsonl", "a") as file:
                for seq in range(choose.randint(0, 40)):
                    event = {"v": 1, "seq": seq, "t": run.started + seq, **random_line(choose, rank)}
                    file.write(json.dumps(event) + "\n")
    return run


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_readers_survive_random_events(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    choose = random.Random(seed)
    run = random_script_run(tmp_path / "runs", choose)
    if choose.random() < 0.5:
        run.end_script(choose.choice([0, 1, 137, 255]))
    row_json(read_info(run.dir))
    summary = summarize(run.dir)
    facts = summary.facts()
    json.dumps(facts, allow_nan=False)
    print_summary(summary, shown_problems=())
    print_report(summary)
    output = capsys.readouterr().out
    assert "\x1b" not in output
    state = read_run_state(run.dir, max_rows=5)
    for curve in (state.losses, state.rates, *(metric.curve for metric in state.metrics.values())):
        curve.window(-10.0, 1e6, 100)
    writes = (
        exporting.export_csv,
        exporting.export_json,
        exporting.export_trace,
        exporting.export_tensorboard,
    )
    for write in writes:
        try:
            write(run.dir, tmp_path / write.__name__)
        except ConfigError as error:
            assert "has no" in str(error)
    run.lose()
