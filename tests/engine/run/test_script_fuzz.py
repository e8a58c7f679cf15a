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
from rankdeck.run.fold import read_fold
from rankdeck.run.row import read_info, row_of
from rankdeck.run.summarising import summarise
from tests.helpers.written_script import WrittenScript

NUM_RUNS = 12


def number(choose: random.Random) -> Any:
    usual = [choose.randint(-2, 50), choose.random() * 5, 0, 1]
    return choose.choice([*usual * 4, None, -1, 10**30, 10**400, 1e308, -1e308, 2**53 + 1, 1e-320])


def numbers(choose: random.Random) -> Any:
    return [number(choose) for _ in range(choose.choice([0, 1, 2, 3, 3, 3, 7]))]


def name(choose: random.Random) -> str:
    return choose.choice(
        ["loss", "a/b", "", "é\n\x1b[31m", "[bold]x", "x" * 300, str(choose.randint(0, 900))]
    )


def table(choose: random.Random, value: Any) -> dict[str, Any]:
    return {name(choose): value(choose) for _ in range(choose.randint(0, 4))}


def line(choose: random.Random, rank: int) -> dict[str, Any]:
    """One event as JSON, its columns of any lengths."""
    shown = choose.choice([rank] * 9 + [-1, 2**40])
    match choose.randint(0, 9):
        case 0:
            return {"kind": "rank_started", "rank": shown, "pid": number(choose), "devices": [rank]}
        case 1:
            texts = {key: name(choose) for key in ("wrapper", "model", "optimizer", "dataset", "precision")}
            counts = {key: number(choose) for key in ("num_parameters", "num_samples", "batch", "accumulate")}
            return {
                "kind": "observed",
                "rank": shown,
                "script": name(choose),
                **texts,
                **counts,
                "wrapper_options": table(choose, number),
                "parts": table(choose, name),
                "versions": table(choose, name),
            }
        case 2 | 3:
            keys = ("steps", "times", "after")
            columns = {key: numbers(choose) for key in keys}
            return {
                "kind": "metric",
                "rank": shown,
                "through": "x",
                **columns,
                "values": table(choose, numbers),
            }
        case 4:
            keys = ("calls", "num_bytes", "seconds")
            told = {key: table(choose, number) for key in keys}
            return {"kind": "collectives", "rank": shown, "step": number(choose), **told}
        case 5:
            sizes = {key: number(choose) for key in ("live_bytes", "peak_bytes")}
            kinds = {key: table(choose, number) for key in ("live_by_kind", "peak_by_kind")}
            source = choose.choice(["owners seen on CPU", "measured on GPU", "?"])
            device = {"device": choose.choice([rank, 7]), **sizes, **kinds}
            return {
                "kind": "memory",
                "rank": shown,
                "step": number(choose),
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
                "rank": shown,
                "first": choose.choice([1, 2, choose.randint(0, 60), 2**51, 2**60]),
                **{key: numbers(choose) for key in keys if choose.random() < 0.9},
            }


def drawn(runs: Path, choose: random.Random) -> WrittenScript:
    run = WrittenScript(runs)
    for attempt in range(choose.randint(1, 2)):
        if choose.random() < 0.95:
            run.launch(choose.randint(1, 3), attempt=attempt)
        for rank in range(choose.randint(1, 3)):
            if choose.random() < 0.7:
                run.see(rank, attempt=attempt)
                run.step(rank, 1, [1.0, None, 0.5], attempt=attempt, samples=4)
            with open(run.dir.events_folder / f"rank-{rank}.{attempt}.jsonl", "a") as file:
                for seq in range(choose.randint(0, 40)):
                    event = {"v": 1, "seq": seq, "t": run.started + seq, **line(choose, rank)}
                    file.write(json.dumps(event) + "\n")
    return run


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_no_reader_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    choose = random.Random(seed)
    run = drawn(tmp_path / "runs", choose)
    if choose.random() < 0.5:
        run.finish(choose.choice([0, 1, 137, 255]))
    row_of(read_info(run.dir))
    summary = summarise(run.dir)
    facts = summary.facts()
    json.dumps(facts, allow_nan=False)
    print_summary(summary, num_shown=0)
    print_report(summary)
    told = capsys.readouterr().out
    assert "\x1b" not in told
    fold = read_fold(run.dir, rows_held=5)
    for curve in (fold.losses, fold.rates, *(metric.curve for metric in fold.metrics.values())):
        curve.window(-10.0, 1e6, 100)
    writes = (exporting.steps_csv, exporting.everything_json, exporting.trace, exporting.tensorboard)
    for write in writes:
        try:
            write(run.dir, tmp_path / write.__name__)
        except ConfigError as error:
            assert "has no" in str(error)
    run.lose()
