"""What a strategy cannot train as one device does is refused in words, before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck.base.errors import ConfigError
from tests.helpers.parity import BARS, configuration, of_one_device
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

OWN = Path(__file__).parents[2] / "helpers" / "own_optimizers.py"


def toml_of(workload: str, strategy: str, optimizer: str = "sgd", num_devices: int = 2) -> str:
    toml = configuration(workload, f'{{ use = "{strategy}" }}', num_devices, precision="fp64")
    return toml.replace("clip_norm = 1.0", "").replace('use = "sgd"', f'use = "{optimizer}"')


@pytest.mark.parametrize(
    ("workload", "strategy", "optimizer", "words"),
    [
        ("mlp", "fsdp", f"{OWN}:ByNorm", "ByNorm gives other weights .* depends on others"),
        ("mlp", "pipeline", f"{OWN}:ByNorm", "ByNorm gives other weights .* depends on others"),
        ("mlp", "pipeline", f"{OWN}:ByPosition", "ByPosition gives other weights .* where it stands"),
        ("mlp", "pipeline", f"{OWN}:ByLargest", "ByLargest gives other weights .* depends on others"),
        ("mlp", "pipeline", f"{OWN}:SkippingSpikes", "SkippingSpikes gives other weights .* on others"),
        ("mlp", "fsdp", f"{OWN}:ByWeight", "ByWeight gives other weights .* it needs a weight as a whole"),
        ("mlp", "fsdp", f"{OWN}:BySize", "BySize gives other weights .* it needs a weight as a whole"),
        ("mlp", "fsdp", f"{OWN}:ByBlock", "ByBlock gives other weights .* it needs a weight as a whole"),
        ("mlp", "fsdp", f"{OWN}:SkippingSpikes", "SkippingSpikes gives other weights .* on others"),
        ("mlp", "ddp", f"{OWN}:Noisy", "Noisy draws random numbers, and each rank would draw its own"),
        (
            "mlp",
            "tensor",
            f"{OWN}:Factored",
            "Factored cannot step weights that lie in slices on several ranks",
        ),
        (
            "sparse",
            "fsdp",
            "sgd",
            r"The embedding '1' gives sparse gradients .*strategy\.use = fsdp cannot add up or cut",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_parts_that_would_become_something_else_are_refused(
    ranks: tuple[int, RankSet], workload: str, strategy: str, optimizer: str, words: str
) -> None:
    with pytest.raises(AssertionError, match=rf"(Config|Model)Error: .*{words}"):
        ranks[1].train(toml_of(workload, strategy, optimizer))


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "strategy", "optimizer"),
    [
        ("sparse", "ddp", "sgd"),
        ("mlp", "ddp", f"{OWN}:ByNorm"),
        ("marked", "ddp", f"{OWN}:Marked"),
        ("marked", "fsdp", f"{OWN}:Marked"),
        ("mlp", "fsdp", f"{OWN}:ByElement"),
        ("mlp", "fsdp", f"{OWN}:ByPosition"),
        ("mlp", "pipeline", f"{OWN}:ByWeight"),
        ("mlp", "pipeline", f"{OWN}:ByBlock"),
    ],
)
def test_they_train_where_ranks_hold_what_they_need(
    ranks: tuple[int, RankSet], tmp_path: Path, workload: str, strategy: str, optimizer: str
) -> None:
    out = tmp_path / "weights.safetensors"
    toml = toml_of(workload, "single", optimizer, 1)
    train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
    weights = ranks[1].train(toml_of(workload, strategy, optimizer))
    assert largest_difference(weights, load_file(out)) <= BARS["fp64"]


@pytest.mark.parametrize(
    ("workload", "optimizer", "words"),
    [
        (
            "mlp",
            "torch.optim:SparseAdam",
            "SparseAdam cannot take a step: RuntimeError: SparseAdam does not support dense",
        ),
        ("sparse", "torch.optim:Adamax", "Adamax cannot take a step: RuntimeError: .*sparse"),
    ],
)
def test_gradients_of_the_wrong_kind_are_refused(
    tmp_path: Path, workload: str, optimizer: str, words: str
) -> None:
    toml = toml_of(workload, "single", optimizer, 1)
    with pytest.raises(ConfigError, match=words):
        train_once({"toml": toml, "out": str(tmp_path / "weights.safetensors")}, rank=0, world_size=1)


def test_an_optimizer_that_finds_no_memory_is_not_bad_input(tmp_path: Path) -> None:
    toml = toml_of("mlp", "single", "tests.helpers.own_optimizers:Hungry", 1)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train_once({"toml": toml, "out": str(tmp_path / "weights.safetensors")}, rank=0, world_size=1)


def test_sparse_gradients_are_refused_where_a_norm_is_bounded() -> None:
    with pytest.raises(ConfigError, match=r"train\.clip_norm needs the norm .* those of '1' are sparse"):
        of_one_device("sparse")
