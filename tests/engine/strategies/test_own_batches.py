"""Batches of a person's own classes train under every strategy as on one device."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rankdeck.parallel.pipelining.cutting import find_chain
from tests.helpers.parity import TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

_USER_CODE = """
from collections import UserDict
from typing import NamedTuple
import torch
from torch import nn

class Sides(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor

class Encoded(UserDict):
    "As Hugging Face's tokenizers return it: a mapping that is no dict."

class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 16)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)])
        self.leave = nn.Linear(16, 4)

    def forward(self, left, right, labels=None):
        return self.leave(self.blocks(self.enter(left + right)))

def model():
    return Added()

class Mixed(NamedTuple):
    hidden: torch.Tensor
    mean: torch.Tensor

class Mixing(nn.Linear):
    def forward(self, hidden):
        mixed = super().forward(hidden).relu()
        return Mixed(mixed, mixed.mean())

class Named(nn.Module):
    "Its blocks return named tuples."
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Mixing(8, 8) for _ in range(4)])
        self.leave = nn.Linear(8, 4)

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden).hidden
        return self.leave(hidden)

def sides():
    return [left_and_right(index) for index in range(64)]

def left_and_right(index):
    generator = torch.Generator().manual_seed(index)
    return torch.randn(8, generator=generator), torch.randn(8, generator=generator), index % 4

def named():
    return [(Sides(left, right), label) for left, right, label in sides()], None

class Whole:
    "Reads a batch at once."
    def __len__(self):
        return 64

    def __getitem__(self, index):
        raise AssertionError("batches are read whole")

    def read_batch(self, indices):
        rows = [left_and_right(index) for index in indices]
        left, right, label = zip(*rows)
        return Sides(torch.stack(left), torch.stack(right)), torch.tensor(label)

def whole():
    return Whole(), None

def encoded():
    return [Encoded(left=left, right=right, labels=label) for left, right, label in sides()], None

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)
"""
STRATEGIES = {
    "dp": '"dp"',
    "model": '"model"',
    "ddp": '"ddp"',
    "fsdp": '"fsdp"',
    "pipeline": '"pipeline", microbatches = 4',
    "pipeline-async": '"pipeline-async"',
    "tensor": '"tensor", plan = { "blocks.0.0" = "column", "blocks.1.0" = "row" }',
    "hybrid": '"hybrid", data = 1, shard = 2',
}
_IN_ONE_PROCESS = ("dp", "model")


def make_toml(folder: Path, data: str, strategy: str, num_devices: int) -> str:
    (folder / "own.py").write_text(_USER_CODE)
    return f"""
model = {{ use = "{folder}/own.py:model" }}
data = {{ use = "{folder}/own.py:{data}" }}
loss = {{ use = "{folder}/own.py:loss" }}
strategy = {{ use = {strategy} }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 2
global_batch = 16
evaluate_every = 0
precision = "fp64"
optimizer = {{ use = "sgd", lr = 0.1 }}
"""


def train_in_process(folder: Path, data: str, strategy: str, num_devices: int) -> dict[str, Tensor]:
    out = folder / "weights.safetensors"
    train_once(
        {"toml": make_toml(folder, data, strategy, num_devices), "out": str(out)}, rank=0, world_size=1
    )
    return load_file(out)


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    ("strategy", "data"),
    [(strategy, "named") for strategy in STRATEGIES] + [("model", "whole"), ("ddp", "encoded")],
)
def test_a_batch_of_a_user_class_matches_one_device(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str, data: str
) -> None:
    of_one = train_in_process(tmp_path, data, '"single"', 1)
    if strategy in _IN_ONE_PROCESS:
        weights = train_in_process(tmp_path, data, STRATEGIES[strategy], 2)
    else:
        weights = ranks[1].train(make_toml(tmp_path, data, STRATEGIES[strategy], 2))
    if strategy == "pipeline-async":  # its weights are late by design: that it trains is the claim
        assert weights.keys() == of_one.keys()
    else:
        assert largest_difference(weights, of_one) <= TOLERANCES["fp64"]


def test_blocks_that_return_named_tuples_can_be_cut(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_USER_CODE)
    namespace = runpy.run_path(str(tmp_path / "own.py"))
    chain = find_chain(namespace["Named"](), torch.randn(4, 8), 4)
    assert chain.accepts_any_batch and chain.names == [*(f"blocks.{index}" for index in range(4)), "leave"]
