"""What a person's own model logs in a rank becomes curves of the run, in steps of the training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rankdeck
from rankdeck import events
from rankdeck.run_dir import EventWriter
from rankdeck.training.reporting import StepLog
from tests.helpers.parity import configuration
from tests.helpers.rank_main import train_once

MODEL = """
import rankdeck
from torch import nn

class Telling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        rankdeck.log(spread=out.std(), told="a word", training=self.training)
        return out

def build():
    return Telling()
"""


def read_metrics(file: Path) -> list[events.Metrics]:
    return [event for event in events.decode_lines(file.read_bytes()) if isinstance(event, events.Metrics)]


@pytest.fixture
def log(tmp_path: Path) -> StepLog:
    return StepLog(EventWriter(tmp_path / "rank-1.0.jsonl"), 1)


def test_a_value_belongs_to_the_current_or_the_given_step(log: StepLog, tmp_path: Path) -> None:
    with log.logging_step(7):
        rankdeck.log({"two": 2}, one=nn.Parameter(torch.tensor(0.5)))
        rankdeck.log(mine=torch.tensor(3.0), step=100)
    log.flush(is_final=True)
    (event,) = read_metrics(tmp_path / "rank-1.0.jsonl")
    assert (event.rank, event.through, event.steps, event.after) == (1, "rankdeck", [7, 100], [7, 7])
    assert event.values == {"two": [2.0, None], "one": [0.5, None], "mine": [None, 3.0]}


def test_values_logged_between_steps_are_ignored(log: StepLog, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of the step"), log.logging_step(1):
        raise RuntimeError("of the step")
    rankdeck.log(held_out=1.0)
    log.flush(is_final=True)
    assert not (tmp_path / "rank-1.0.jsonl").exists() or not read_metrics(tmp_path / "rank-1.0.jsonl")


def test_logging_a_non_mapping_does_not_end_training(log: StepLog) -> None:
    with log.logging_step(1):
        rankdeck.log(["no", "mapping"])  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_a_user_model_logs_metrics_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    (tmp_path / "telling_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    toml = configuration("mlp", f'{{ use = "{strategy}" }}', 2 if strategy == "dp" else 1, steps=4)
    lines = [line for line in toml.splitlines() if not line.startswith("model")]
    request = {
        "toml": "\n".join(['model = { use = "telling_model:build" }', *lines]),
        "out": str(tmp_path / "out"),
        "events": str(tmp_path),
    }
    try:
        train_once(request, rank=0, world_size=1)
    finally:
        sys.modules.pop("telling_model", None)
    metrics = read_metrics(tmp_path / "rank-0.0.jsonl")
    steps = [step for event in metrics for step in event.steps]
    assert sorted(set(steps)) == [1, 2, 3, 4] and len(steps) == (8 if strategy == "dp" else 4)
    assert {name for event in metrics for name in event.values} == {"spread"}, "numbers alone"
