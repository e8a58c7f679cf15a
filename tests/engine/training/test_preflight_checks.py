"""What a strategy cannot train as one device does is refused in words, before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck.base.errors import ConfigError
from tests.helpers.parity import TOLERANCES, configuration, single_device_weights
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

USER_OPTIMIZERS = Path(__file__).parents[2] / "helpers" / "own_optimizers.py"


def make_toml(workload: str, strategy: str, optimizer: str = "sgd", num_devices: int = 2) -> str:
    toml = configuration(workload, f'{{ use = "{strategy}" }}', num_devices, precision="fp64")
    return toml.replace("clip_norm = 1.0", "").replace('use = "sgd"', f'use = "{optimizer}"')


@pytest.mark.parametrize(
    ("workload", "strategy", "optimizer", "message"),
    [
        (
            "mlp",
            "fsdp",
            f"{USER_OPTIMIZERS}:ByNorm",
            "ByNorm gives different results .* depends on other weights",
        ),
        (
            "mlp",
            "pipeline",
            f"{USER_OPTIMIZERS}:ByNorm",
            "ByNorm gives different results .* depends on other weights",
        ),
        (
            "mlp",
            "pipeline",
            f"{USER_OPTIMIZERS}:ByPosition",
            "ByPosition gives different results .* position",
        ),
        (
            "mlp",
            "pipeline",
            f"{USER_OPTIMIZERS}:ByLargest",
            "ByLargest gives different results .* depends on other weights",
        ),
        (
            "mlp",
            "pipeline",
            f"{USER_OPTIMIZERS}:SkippingSpikes",
            "SkippingSpikes gives different results .* on other weights",
        ),
        (
            "mlp",
            "fsdp",
            f"{USER_OPTIMIZERS}:ByWeight",
            "ByWeight gives different results .* it needs each weight as a whole",
        ),
        (
            "mlp",
            "fsdp",
            f"{USER_OPTIMIZERS}:BySize",
            "BySize gives different results .* it needs each weight as a whole",
        ),
        (
            "mlp",
            "fsdp",
            f"{USER_OPTIMIZERS}:ByBlock",
            "ByBlock gives different results .* it needs each weight as a whole",
        ),
        (
            "mlp",
            "fsdp",
            f"{USER_OPTIMIZERS}:SkippingSpikes",
            "SkippingSpikes gives different results .* on other weights",
        ),
        (
            "mlp",
            "ddp",
            f"{USER_OPTIMIZERS}:Noisy",
            "Noisy draws random numbers, and each rank would draw different ones",
        ),
        (
            "mlp",
            "tensor",
            f"{USER_OPTIMIZERS}:Factored",
            "Factored cannot update weights that are sharded across ranks",
        ),
        (
            "sparse",
            "fsdp",
            "sgd",
            r"The embedding '1' produces sparse gradients .*strategy fsdp cannot reduce or shard",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_optimizers_that_would_behave_differently_are_refused(
    ranks: tuple[int, RankSet], workload: str, strategy: str, optimizer: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=rf"(Config|Model)Error: .*{message}"):
        ranks[1].train(make_toml(workload, strategy, optimizer))


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "strategy", "optimizer"),
    [
        ("sparse", "ddp", "sgd"),
        ("mlp", "ddp", f"{USER_OPTIMIZERS}:ByNorm"),
        ("marked", "ddp", f"{USER_OPTIMIZERS}:Marked"),
        ("marked", "fsdp", f"{USER_OPTIMIZERS}:Marked"),
        ("mlp", "fsdp", f"{USER_OPTIMIZERS}:ByElement"),
        ("mlp", "fsdp", f"{USER_OPTIMIZERS}:ByPosition"),
        ("mlp", "pipeline", f"{USER_OPTIMIZERS}:ByWeight"),
        ("mlp", "pipeline", f"{USER_OPTIMIZERS}:ByBlock"),
    ],
)
def test_such_optimizers_train_where_ranks_hold_full_weights(
    ranks: tuple[int, RankSet], tmp_path: Path, workload: str, strategy: str, optimizer: str
) -> None:
    out = tmp_path / "weights.safetensors"
    toml = make_toml(workload, "single", optimizer, 1)
    train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
    weights = ranks[1].train(make_toml(workload, strategy, optimizer))
    assert largest_difference(weights, load_file(out)) <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    ("workload", "optimizer", "message"),
    [
        (
            "mlp",
            "torch.optim:SparseAdam",
            "SparseAdam cannot take a step: RuntimeError: SparseAdam does not support dense",
        ),
        ("sparse", "torch.optim:Adamax", "Adamax cannot take a step: RuntimeError: .*sparse"),
    ],
)
def test_unsupported_gradient_types_are_refused(
    tmp_path: Path, workload: str, optimizer: str, message: str
) -> None:
    toml = make_toml(workload, "single", optimizer, 1)
    with pytest.raises(ConfigError, match=message):
        train_once({"toml": toml, "out": str(tmp_path / "weights.safetensors")}, rank=0, world_size=1)


def test_an_optimizer_out_of_memory_is_not_a_config_error(tmp_path: Path) -> None:
    toml = make_toml("mlp", "single", "tests.helpers.own_optimizers:Hungry", 1)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train_once({"toml": toml, "out": str(tmp_path / "weights.safetensors")}, rank=0, world_size=1)


def test_sparse_gradients_are_refused_with_clip_norm() -> None:
    with pytest.raises(ConfigError, match=r"train\.clip_norm needs the norm .* those of '1' are sparse"):
        single_device_weights("sparse")
