"""fsdp ends with one device's weights, whatever the model, and not when each rank keeps its own gradients."""

from __future__ import annotations

import pytest

from tests.helpers.parity import BARS, MUST_DIFFER, configuration, of_one_device
from tests.helpers.ranks import RankSet, four_are_slow, in_turn, largest_difference

# And the parts that are accumulated.
WORKLOADS = {"mlp-nearly-all-masked": 1, "gpt": 1, "gpt-tied": 2, "gpt-masked": 2, "mlp": 1}


def distance(
    ranks: tuple[int, RankSet],
    workload: str,
    options: str = "",
    *,
    without_sync: bool = False,
    precision: str = "fp32",
    accumulate: int = 1,
    lr: float = 0.02,
    train: str = "",
) -> float:
    """How far the run's weights end from one device's."""
    num_ranks, rank_set = ranks
    strategy = f'{{ use = "fsdp"{", " if options else ""}{options} }}'
    toml = configuration(
        workload, strategy, num_ranks, precision=precision, accumulate=accumulate, lr=lr, train=train
    )
    weights = rank_set.train(toml, without_sync=without_sync)
    return largest_difference(weights, of_one_device(workload, precision, accumulate, lr, train))


@pytest.mark.parametrize(
    ("ranks", "workload", "options"), in_turn(WORKLOADS, ["", "reshard = false"], every=3), indirect=["ranks"]
)
def test_sharded_weights_end_where_one_device_does(
    ranks: tuple[int, RankSet], workload: str, options: str
) -> None:
    assert distance(ranks, workload, options, accumulate=WORKLOADS[workload]) <= BARS["fp32"]


@four_are_slow
def test_fp64_leaves_no_doubt(ranks: tuple[int, RankSet]) -> None:
    assert distance(ranks, "gpt-masked", precision="fp64", accumulate=2) <= BARS["fp64"]


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    "workload",
    [
        "mlp",
        pytest.param("gpt", marks=pytest.mark.slow),
        pytest.param("gpt-tied", marks=pytest.mark.slow),
        "gpt-masked",
    ],
)
def test_without_the_sync_weights_are_far_off(ranks: tuple[int, RankSet], workload: str) -> None:
    assert distance(ranks, workload, without_sync=True) > MUST_DIFFER


@four_are_slow
def test_scalars_buffers_and_layers_that_rest_are_right_too(ranks: tuple[int, RankSet]) -> None:
    assert distance(ranks, "scaled") <= BARS["fp32"]
    assert distance(ranks, "scaled", "find_unused_parameters = true") <= BARS["fp32"]


@four_are_slow
def test_a_weight_that_two_blocks_share_stays_one(ranks: tuple[int, RankSet]) -> None:
    assert distance(ranks, "tied_blocks") <= BARS["fp32"]
    assert distance(ranks, "tied_blocks", accumulate=2, precision="fp64") <= BARS["fp64"]


@four_are_slow
def test_batch_norm_over_ranks_equals_one_device(ranks: tuple[int, RankSet]) -> None:
    assert distance(ranks, "batch-norm", "sync_batchnorm = true", accumulate=2) <= BARS["fp32"]
    assert distance(ranks, "batch-norm") > MUST_DIFFER


@four_are_slow
def test_activation_checkpointing_computes_the_same(ranks: tuple[int, RankSet]) -> None:
    assert distance(ranks, "gpt-tied", train="activation_checkpointing = true") <= BARS["fp32"]


@pytest.mark.slow
def test_resnet18_with_its_batch_norms_over_ranks_equals_one_device(ranks: tuple[int, RankSet]) -> None:
    if ranks[0] == 4:
        pytest.skip("once is enough: 11 million weights")
    assert distance(ranks, "resnet", "sync_batchnorm = true", lr=0.01) <= BARS["fp32"]
