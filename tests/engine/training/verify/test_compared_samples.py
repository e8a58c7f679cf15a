"""Data that give other samples when they are read again hide nothing: they are read once for the check, or it
says that they cannot be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.training.verify.test_check import STRATEGIES, two_ranks
from tests.helpers.ranks import RankSet
from tests.helpers.verifying import check_on_ranks, configuration

USER_DATA = """
import torch

class Mine:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(64, generator=self.generator), index % 10

def read_batch(mine, indices):
    inputs = torch.randn(len(indices), 64, generator=mine.generator)
    return {{"images": inputs, "scale": torch.tensor(1.0), "labels": torch.tensor(indices) % 10}}

{more}

def make():
    return Mine()
"""


READ_BATCH_WITH_FUNCTION = """
def read_batch(mine, indices):
    inputs = torch.randn(len(indices), 64, generator=mine.generator)
    return {"images": inputs, "mask": lambda: None, "labels": torch.tensor(indices) % 10}

Mine.read_batch = read_batch
"""


def write_user_data(folder: Path, more: str = "") -> str:
    """Data that draw from a generator of their own."""
    file = folder / "mine.py"
    file.write_text(USER_DATA.format(more=more), encoding="utf-8")
    return f"{file}:make"


@two_ranks
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nondeterministic_data_is_read_once(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str
) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy, data=write_user_data(tmp_path)))
    assert (result["outcome"], result["precision"]) == ("equal", "fp64")
    assert result["largest"] < 1e-14


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "dp", parallel_loss = true }'])
@pytest.mark.parametrize("most_fp64_weights", [10**9, 0])
def test_differences_are_found_with_nondeterministic_data(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str, most_fp64_weights: int
) -> None:
    toml = configuration(strategy, loss="contrast", data=write_user_data(tmp_path))
    result = check_on_ranks(ranks[1], toml, most_fp64_weights=most_fp64_weights)
    assert (result["outcome"], result["cause"]) == ("differs", "loss")


@two_ranks
@pytest.mark.parametrize(
    "more", ["Mine.is_random = False", "Mine.read_batch = read_batch", READ_BATCH_WITH_FUNCTION]
)
def test_unshareable_nondeterministic_data_is_not_checked(
    ranks: tuple[int, RankSet], tmp_path: Path, more: str
) -> None:
    """They say that they are not random, or what is no row of a batch cannot be cut, nor sent to others."""
    result = check_on_ranks(ranks[1], configuration('{ use = "ddp" }', data=write_user_data(tmp_path, more)))
    why = "The training data returns different samples when it is read again or split differently."
    assert (result["outcome"], result["why"]) == ("unchecked", why)
