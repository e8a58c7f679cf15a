"""fsdp ends with one device's weights, whatever the model, and not when each rank keeps its own gradients."""

from __future__ import annotations

import pytest

from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES, configuration, single_device_weights
from tests.helpers.ranks import RankSet, alternate_pairs, four_are_slow, largest_difference

# And the parts that are accumulated.
WORKLOADS = {"mlp-nearly-all-masked": 1, "gpt": 1, "gpt-tied": 2, "gpt-masked": 2, "mlp": 1}


def difference_from_one_device(
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
    return largest_difference(weights, single_device_weights(workload, precision, accumulate, lr, train))


@pytest.mark.parametrize(
    ("ranks", "workload", "options"),
    alternate_pairs(WORKLOADS, ["", "reshard = false"], every=3),
    indirect=["ranks"],
)
def test_sharded_weights_match_one_device(ranks: tuple[int, RankSet], workload: str, options: str) -> None:
    assert (
        difference_from_one_device(ranks, workload, options, accumulate=WORKLOADS[workload])
        <= TOLERANCES["fp32"]
    )


@four_are_slow
def test_fp64_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    assert (
        difference_from_one_device(ranks, "gpt-masked", precision="fp64", accumulate=2) <= TOLERANCES["fp64"]
    )


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
def test_weights_without_sync_differ(ranks: tuple[int, RankSet], workload: str) -> None:
    assert difference_from_one_device(ranks, workload, without_sync=True) > MIN_DIFFERENCE


@four_are_slow
def test_scalars_buffers_and_unused_layers_match(ranks: tuple[int, RankSet]) -> None:
    assert difference_from_one_device(ranks, "scaled") <= TOLERANCES["fp32"]
    assert difference_from_one_device(ranks, "scaled", "find_unused_parameters = true") <= TOLERANCES["fp32"]


@four_are_slow
def test_a_weight_shared_by_two_blocks_stays_shared(ranks: tuple[int, RankSet]) -> None:
    assert difference_from_one_device(ranks, "tied_blocks") <= TOLERANCES["fp32"]
    assert (
        difference_from_one_device(ranks, "tied_blocks", accumulate=2, precision="fp64") <= TOLERANCES["fp64"]
    )


@four_are_slow
def test_sync_batch_norm_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    assert (
        difference_from_one_device(ranks, "batch-norm", "sync_batchnorm = true", accumulate=2)
        <= TOLERANCES["fp32"]
    )
    assert difference_from_one_device(ranks, "batch-norm") > MIN_DIFFERENCE


@four_are_slow
def test_activation_checkpointing_does_not_change_weights(ranks: tuple[int, RankSet]) -> None:
    assert (
        difference_from_one_device(ranks, "gpt-tied", train="activation_checkpointing = true")
        <= TOLERANCES["fp32"]
    )


@pytest.mark.slow
def test_resnet18_with_sync_batch_norm_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    if ranks[0] == 4:
        pytest.skip("once is enough: 11 million weights")
    assert difference_from_one_device(ranks, "resnet", "sync_batchnorm = true", lr=0.01) <= TOLERANCES["fp32"]
