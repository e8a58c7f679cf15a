"""Ranks and devices draw different dropout: told by losses and activations of samples that are all alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankdeck import events
from tests.helpers import oracle_parts, resume_ranks
from tests.helpers.ranks import RankSet

PARTS = "tests.helpers.oracle_parts"


def configuration(strategy: str, num_devices: int, dropout: float = 0.5, train: str = "") -> str:
    return f"""
model = {{ use = "{PARTS}:dropping", args = {{ dropout = {dropout} }} }}
data = {{ use = "{PARTS}:alike" }}
strategy = {{ {strategy} }}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 2, global_batch = 8, evaluate_every = 0{train} }}
"""


def read_losses(folder: Path) -> list[list[float]]:
    """Of each rank that reports one, step by step."""
    losses_by_rank = []
    for file in sorted(folder.glob("rank-*.jsonl")):
        lines = [line for line in events.decode_lines(file.read_bytes()) if isinstance(line, events.Steps)]
        if lines[0].loss_sum is not None:
            losses_by_rank.append([loss for line in lines for loss in line.loss_sum or ()])
    return losses_by_rank


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize("strategy", ['use = "ddp"', 'use = "fsdp"', 'use = "hybrid", data = 2'])
def test_ranks_with_different_samples_use_different_masks(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str
) -> None:
    """The control: without dropout equal samples give equal losses."""
    for name, dropout in (("with", 0.5), ("without", 0.0)):
        (tmp_path / name).mkdir()
        ranks[1].train(configuration(strategy, 2, dropout), events=str(tmp_path / name))
    first, second = read_losses(tmp_path / "with")
    assert first[0] != second[0] and first[1] != second[1]
    assert first[0] != first[1]
    first, second = read_losses(tmp_path / "without")
    assert first == second


@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_pipeline_replicas_use_different_masks(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    ranks[1].train(configuration('use = "hybrid", data = 2, stage = 2', 4), events=str(tmp_path))
    first, second = read_losses(tmp_path)
    assert first[0] != second[0]


@pytest.mark.parametrize("strategy", ['use = "dp"', 'use = "dp", parallel_loss = true'])
def test_dp_devices_use_different_masks(tmp_path: Path, strategy: str) -> None:
    dropped = record_masks(configuration(strategy, 2), tmp_path)
    assert [len(mask) for mask in dropped] == [4] * 4, "two devices in two steps"
    assert not any(have_equal_mask([mask], dropped[:index]) for index, mask in enumerate(dropped))


def test_a_run_resumed_under_another_layout_draws_new_masks(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "saved"
    record_masks(configuration('use = "single"', 1, train=", checkpoint_every = 2"), saved)
    longer = configuration('use = "dp"', 2).replace("steps = 2", "steps = 4")
    first = record_masks(longer, tmp_path / "first")
    after = record_masks(longer, tmp_path / "after", source=str(saved))
    assert (len(first), len(after)) == (8, 4)
    assert not have_equal_mask(first, after)


def record_masks(toml: str, folder: Path, source: str | None = None) -> list[Tensor]:
    """What a run in this process drops, forward by forward."""
    oracle_parts.SEEN.clear()
    resume_ranks.run(toml, str(folder), source=source)
    return [hidden == 0 for hidden in oracle_parts.SEEN]


def have_equal_mask(masks: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return any(torch.equal(mask, other) for mask in masks for other in others)
