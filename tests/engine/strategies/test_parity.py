"""Every strategy computes what a single device computes: 20 steps, same seed, same global batch.

The bars are those of the design: 2e-6 with SGD in fp32, 1e-10 in fp64. A missing gradient sync still trains,
so each table has a negative control that must be far off.
"""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import pytest
from torch import Tensor

from rankdeck.parallel.collectives import replicate
from tests.helpers import parity
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, alternate_pairs, largest_difference

TOLERANCES = {"fp32": 2e-6, "fp64": 1e-10}
MIN_DIFFERENCE = 1e-4

GPT = "heads = 2, width = 32, context = 16, vocabulary = 64"
WORKLOADS = {
    "mlp": 'model = { use = "mlp", args = { hidden = [32] } }\ndata = { use = "digits" }',
    "mlp-masked": (
        'model = { use = "mlp", args = { hidden = [32] } }\n'
        'data = { use = "synthetic", args = { samples = 512, masked = 0.4 } }'
    ),
    "gpt-masked": (
        f'model = {{ use = "gpt", args = {{ layers = 2, {GPT} }} }}\n'
        'data = { use = "synthetic", args = { samples = 512, masked = 0.4 } }'
    ),
    "gpt-tied": (
        f'model = {{ use = "gpt", args = {{ layers = 1, tied = true, {GPT} }} }}\n'
        'data = { use = "synthetic", args = { samples = 512 } }'
    ),
}
STRATEGIES = {
    "single": '{ use = "single" }',
    "dp": '{ use = "dp" }',
    "dp-parallel-loss": '{ use = "dp", parallel_loss = true }',
    "ddp": '{ use = "ddp" }',
    "ddp-small-buckets": '{ use = "ddp", bucket_mb = 0.01, gradient_as_bucket_view = true }',
}


def configuration(workload: str, strategy: str, num_devices: int, precision: str, accumulate: int) -> str:
    return f"""
{WORKLOADS[workload]}
strategy = {STRATEGIES[strategy]}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 20
global_batch = 32
accumulate = {accumulate}
precision = "{precision}"
evaluate_every = 0
clip_norm = 1.0
optimizer = {{ use = "sgd", lr = 0.1 }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@functools.cache
def train_in_process(toml: str, folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    out = folder / f"{abs(hash(toml))}.safetensors"
    train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
    return load_file(out)


def train_reference(workload: str, precision: str, accumulate: int, folder: Path) -> dict[str, Tensor]:
    return train_in_process(configuration(workload, "single", 1, precision, accumulate), folder)


def accumulate_and_precision(workload: str, strategy: str) -> tuple[int, str]:
    """(parts that are accumulated, precision): every strategy meets all four, every number of devices too."""
    index = list(WORKLOADS).index(workload) + 2 * (strategy in ("ddp", "dp"))
    return ((1, "fp32"), (2, "fp64"), (1, "fp64"), (2, "fp32"))[index % 4]


@pytest.mark.parametrize(
    ("ranks", "strategy", "workload"),
    alternate_pairs(["ddp", "ddp-small-buckets"], WORKLOADS),
    indirect=["ranks"],
)
def test_ddp_ranks_match_one_device(
    ranks: tuple[int, RankSet], folder: Path, strategy: str, workload: str
) -> None:
    num_ranks, rank_set = ranks
    accumulate, precision = accumulate_and_precision(workload, strategy)
    weights = rank_set.train(configuration(workload, strategy, num_ranks, precision, accumulate))
    assert (
        largest_difference(weights, train_reference(workload, precision, accumulate, folder))
        <= TOLERANCES[precision]
    )


@pytest.mark.parametrize(
    ("num_devices", "strategy", "workload"), alternate_pairs(["dp", "dp-parallel-loss"], WORKLOADS)
)
def test_dp_devices_match_one_device(folder: Path, num_devices: int, strategy: str, workload: str) -> None:
    accumulate, precision = accumulate_and_precision(workload, strategy)
    weights = train_in_process(configuration(workload, strategy, num_devices, precision, accumulate), folder)
    assert (
        largest_difference(weights, train_reference(workload, precision, accumulate, folder))
        <= TOLERANCES[precision]
    )


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    "workload",
    [
        "mlp",
        pytest.param("mlp-masked", marks=pytest.mark.slow),
        "gpt-masked",
        pytest.param("gpt-tied", marks=pytest.mark.slow),
    ],
)
def test_ddp_without_gradient_sync_differs(ranks: tuple[int, RankSet], folder: Path, workload: str) -> None:
    num_ranks, rank_set = ranks
    weights = rank_set.train(configuration(workload, "ddp", num_ranks, "fp32", 1), without_sync=True)
    assert largest_difference(weights, train_reference(workload, "fp32", 1, folder)) > MIN_DIFFERENCE


@pytest.mark.parametrize(
    ("strategy", "workload"),
    [
        pytest.param(strategy, workload, marks=pytest.mark.slow if (above + left) % 2 else ())
        for above, strategy in enumerate(["dp", "dp-parallel-loss"])
        for left, workload in enumerate(WORKLOADS)
    ],
)
def test_dp_without_gradients_of_other_devices_differs(
    folder: Path, tmp_path: Path, strategy: str, workload: str
) -> None:
    with mock.patch.object(replicate, "reduce_to_first", lambda grads, devices: list(grads[0])):
        weights = train_in_process.__wrapped__(configuration(workload, strategy, 4, "fp32", 1), tmp_path)
    assert largest_difference(weights, train_reference(workload, "fp32", 1, folder)) > MIN_DIFFERENCE


@pytest.mark.parametrize("strategy", ["dp", "dp-parallel-loss"])
@pytest.mark.parametrize(
    ("workload", "precision"),
    # A deep ResNet on tiny pictures blows rounding up a million times: only fp64 can tell.
    [("batch-norm", "fp32"), pytest.param("resnet", "fp64", marks=pytest.mark.slow)],
)
def test_dp_with_batch_norms_matches_one_device_on_slices(
    strategy: str, workload: str, precision: str, folder: Path
) -> None:
    """Running statistics apart, which are those of replica 0, as torch keeps them."""
    toml = parity.configuration(workload, STRATEGIES[strategy], 2, precision=precision)
    weights = drop_running_stats(train_in_process(toml, folder))
    sliced = drop_running_stats(parity.single_device_weights(workload, precision, accumulate=2))
    expected = drop_running_stats(parity.single_device_weights(workload, precision))
    assert largest_difference(weights, sliced) <= TOLERANCES[precision]
    assert largest_difference(weights, expected) > MIN_DIFFERENCE


def drop_running_stats(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in weights.items()
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
    }
