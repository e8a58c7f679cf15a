"""What forwards change beside weights is what one device has, however a batch is cut: counters, moving
averages, spectral norm's vectors, EMA teachers, counts of samples, and the same computed again in a backward.

All of them scale or shift what goes on, so that weights show them too.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers import changing
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

MODELS = Path(changing.__file__)
SHARDED = tuple(unit for unit in changing.ALIKE if unit != "teacher")
"""Without frozen weights that are written to: fsdp's are slices then."""
ONE_DEVICE = '{ use = "single" }'
IN_ONE_PROCESS = ['{ use = "dp" }', '{ use = "dp", parallel_loss = true }', '{ use = "model" }']


def toml(
    strategy: str, num_devices: int, units: tuple[str, ...] = changing.ALIKE, accumulate: int = 1
) -> str:
    """`units` () is the model that is cut by watching it."""
    model = f'"{MODELS}:model", args = {{ units = {json.dumps(units)} }}' if units else f'"{MODELS}:row"'
    return f"""
model = {{ use = {model} }}
data = {{ use = "digits" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 3
global_batch = 32
accumulate = {accumulate}
precision = "fp64"
evaluate_every = 0
optimizer = {{ use = "sgd", lr = 0.1 }}
"""


@functools.cache
def train_in_process(config: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": config, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


def train_on_one_device(units: tuple[str, ...] = changing.ALIKE, accumulate: int = 1) -> dict[str, Tensor]:
    return train_in_process(toml(ONE_DEVICE, 1, units, accumulate))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", IN_ONE_PROCESS)
def test_state_in_one_process_matches_one_device(strategy: str, accumulate: int) -> None:
    weights = train_in_process(toml(strategy, 2, accumulate=accumulate))
    assert largest_difference(weights, train_on_one_device(accumulate=accumulate)) <= TOLERANCES["fp64"]


def test_attributes_of_an_observed_model_match_one_device() -> None:
    weights = train_in_process(toml('{ use = "model" }', 3, ()))
    assert largest_difference(weights, train_on_one_device(())) == 0.0


@pytest.mark.parametrize(
    ("strategy", "units", "accumulate"),
    [
        ('{ use = "ddp" }', changing.ALIKE, 2),
        ('{ use = "ddp", sync = "ring" }', changing.ALIKE, 1),
        ('{ use = "fsdp" }', SHARDED, 2),
        ('{ use = "pipeline", schedule = "gpipe", microbatches = 4 }', changing.ALIKE, 1),
        ('{ use = "pipeline", schedule = "1f1b", microbatches = 4 }', changing.ALIKE, 2),
        ('{ use = "pipeline", schedule = "1f1b-by-hand", microbatches = 4 }', changing.ALIKE, 1),
        ('{ use = "pipeline", schedule = "interleaved-1f1b", microbatches = 4 }', changing.ALIKE, 1),
        ('{ use = "pipeline", schedule = "zbv", microbatches = 4 }', changing.ALIKE, 1),
        ('{ use = "pipeline", schedule = "1f1b", microbatches = 4 }', (), 1),
        # A bank keeps the order of its samples, microbatch by microbatch.
        ('{ use = "pipeline", schedule = "1f1b", microbatches = 4 }', ("samples", "samples"), 1),
    ],
)
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_state_over_ranks_matches_one_device(
    ranks: tuple[int, RankSet], strategy: str, units: tuple[str, ...], accumulate: int
) -> None:
    weights = ranks[1].train(toml(strategy, 2, units, accumulate))
    assert largest_difference(weights, train_on_one_device(units, accumulate)) <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    ("strategy", "units"),
    [
        ('{ use = "hybrid", data = 2, stage = 2, microbatches = 2 }', changing.ALIKE),
        ('{ use = "hybrid", data = 2, shard = 2 }', SHARDED),
    ],
)
@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_state_on_a_mesh_matches_one_device(
    ranks: tuple[int, RankSet], strategy: str, units: tuple[str, ...]
) -> None:
    weights = ranks[1].train(toml(strategy, 4, units))
    assert largest_difference(weights, train_on_one_device(units)) <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    "strategy", ['{ use = "ddp" }', '{ use = "pipeline", schedule = "1f1b", microbatches = 4 }']
)
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_state_not_merged_over_chunks_differs(
    ranks: tuple[int, RankSet], strategy: str, tmp_path: Path
) -> None:
    out = tmp_path / "weights.safetensors"
    ranks[1].call(
        "tests.helpers.changing:trained_without_state", toml=toml(strategy, 2, SHARDED), out=str(out)
    )
    assert largest_difference(load_file(out), train_on_one_device(SHARDED)) > MIN_DIFFERENCE


def test_state_not_merged_over_replicas_differs(tmp_path: Path) -> None:
    out = tmp_path / "weights.safetensors"
    changing.trained_without_state(toml('{ use = "dp" }', 2), str(out))
    assert largest_difference(load_file(out), train_on_one_device()) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_data_dependent_weights_use_the_first_microbatch(ranks: tuple[int, RankSet]) -> None:
    """Only one of them may set them, and later ones work with what it has set."""
    pipeline = '{ use = "pipeline", schedule = "gpipe", microbatches = 4 }'
    weights = ranks[1].train(toml(pipeline, 2, ("act_norm",)))
    in_turn = train_on_one_device(("act_norm",), accumulate=4)
    assert largest_difference(weights, in_turn) <= TOLERANCES["fp64"]
