"""Ranks and devices draw different dropout: told by losses and activations of samples that are all alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankdeck import events
from tests.helpers import oracle_parts
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet

PARTS = "tests.helpers.oracle_parts"


def configuration(strategy: str, num_devices: int, dropout: float = 0.5) -> str:
    return f"""
model = {{ use = "{PARTS}:dropping", args = {{ dropout = {dropout} }} }}
data = {{ use = "{PARTS}:alike" }}
strategy = {{ {strategy} }}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 2, global_batch = 8, evaluate_every = 0 }}
"""


def losses(folder: Path) -> list[list[float]]:
    """Of each rank that reports one, step by step."""
    told = []
    for file in sorted(folder.glob("rank-*.jsonl")):
        lines = [line for line in events.decode_lines(file.read_bytes()) if isinstance(line, events.Steps)]
        if lines[0].loss_sum is not None:
            told.append([loss for line in lines for loss in line.loss_sum or ()])
    return told


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize("strategy", ['use = "ddp"', 'use = "fsdp"', 'use = "hybrid", data = 2'])
def test_ranks_with_samples_of_their_own_drop_other_activations(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str
) -> None:
    """The control: without dropout equal samples give equal losses."""
    for name, dropout in (("with", 0.5), ("without", 0.0)):
        (tmp_path / name).mkdir()
        ranks[1].train(configuration(strategy, 2, dropout), events=str(tmp_path / name))
    first, second = losses(tmp_path / "with")
    assert first[0] != second[0] and first[1] != second[1]
    assert first[0] != first[1]
    first, second = losses(tmp_path / "without")
    assert first == second


@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_replicas_of_a_pipeline_drop_other_activations(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    ranks[1].train(configuration('use = "hybrid", data = 2, stage = 2', 4), events=str(tmp_path))
    first, second = losses(tmp_path)
    assert first[0] != second[0]


@pytest.mark.parametrize("strategy", ['use = "dp"', 'use = "dp", parallel_loss = true'])
def test_devices_of_dp_drop_other_activations(tmp_path: Path, strategy: str) -> None:
    oracle_parts.SEEN.clear()
    request = {"toml": configuration(strategy, 2), "out": str(tmp_path / "out"), "events": str(tmp_path)}
    train_once(request, rank=0, world_size=1)
    dropped = [hidden == 0 for hidden in oracle_parts.SEEN]
    assert [len(hidden) for hidden in dropped] == [4] * 4, "two devices in two steps"
    assert not any(torch.equal(one, other) for i, one in enumerate(dropped) for other in dropped[:i])
