"""Every pair of axes on 4 ranks ends with one device's weights, and not without what either axis does.

Three steps of SGD. An axis alone is run on 2 ranks: the hybrid of one axis is the strategy of that axis.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rankdeck import events
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES, configuration, single_device_weights
from tests.helpers.ranks import RankSet, largest_difference

RanksOf = Callable[[int], RankSet]
PAIRS = {
    "ddp x pipeline": "data = 2, stage = 2",
    "fsdp x tensor": "shard = 2, tensor = 2",
    "ddp x tensor": "data = 2, tensor = 2",
    "hsdp": "data = 2, shard = 2",
    "fsdp x pipeline": "shard = 2, stage = 2",
    "tensor x pipeline": "stage = 2, tensor = 2",
}
CONTROLS = {
    "ddp x pipeline": "data",
    "fsdp x tensor": "shard",
    "ddp x tensor": "data",
    "hsdp": "data",
    "fsdp x pipeline": "shard",
    "tensor x pipeline": "sums",
}
SEQUENCE_AND_LOSS_PARALLEL = ", sequence_parallel = true, loss_parallel = true"
OPTIONS = {
    "ddp x pipeline, ring, interleaved": (
        "gpt",
        'data = 2, stage = 2, sync = "ring", schedule = "looped-bfs"',
    ),
    "ddp x pipeline in a V, tied": ("gpt-tied", 'data = 2, stage = 2, schedule = "zbv"'),
    "ddp x pipeline by hand": ("gpt-tied", 'data = 2, stage = 2, schedule = "1f1b-by-hand"'),
    "fsdp x pipeline by hand": ("gpt", 'shard = 2, stage = 2, schedule = "1f1b-by-hand"'),
    "fsdp x pipeline in a V": ("gpt", 'shard = 2, stage = 2, schedule = "zbv"'),
    "tensor x pipeline in a V": (
        "gpt",
        f'stage = 2, tensor = 2, schedule = "zbv"{SEQUENCE_AND_LOSS_PARALLEL}',
    ),
    "fsdp x tensor, all options": (
        "gpt-tied",
        f"shard = 2, tensor = 2, reshard = false{SEQUENCE_AND_LOSS_PARALLEL}",
    ),
    "ddp x tensor, all options": (
        "gpt-tied",
        f'data = 2, tensor = 2, sync = "all-to-all"{SEQUENCE_AND_LOSS_PARALLEL}',
    ),
    "ddp x pipeline, samples of all lengths": ("padded", "data = 2, stage = 2"),
    "uncut scalars": ("scaled", "data = 2, shard = 2"),
}
SLOW_OPTIONS = {
    "fsdp x pipeline by hand",
    "fsdp x pipeline in a V",
    "tensor x pipeline in a V",
    "ddp x tensor, all options",
}
"""Each pair of axes is run below as well, and each option beside another axis or by a strategy alone."""
MASKED_IN_CI = {"ddp x pipeline", "hsdp"}
CONTROLS_IN_CI = {"ddp x pipeline", "fsdp x tensor", "hsdp", "tensor x pipeline"}
EVALUATED_IN_CI = ("ddp x pipeline", "fsdp x tensor", "hsdp")


@pytest.fixture(scope="module")
def four_ranks(rank_set_of: RanksOf) -> RankSet:
    return rank_set_of(4)


@pytest.fixture(scope="module")
def two_ranks(rank_set_of: RanksOf) -> RankSet:
    return rank_set_of(2)


def slow_except(names: set[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in PAIRS]


def hybrid_strategy(sizes: str) -> str:
    return f'{{ use = "hybrid", {sizes} }}'


@pytest.mark.parametrize("axis", ["data", "shard", "stage", "tensor"])
def test_one_axis_alone_matches_one_device(two_ranks: RankSet, axis: str) -> None:
    weights = two_ranks.train(configuration("gpt-masked", hybrid_strategy(f"{axis} = 2"), 2, accumulate=2))
    assert largest_difference(weights, single_device_weights("gpt-masked", "fp32", 2)) <= TOLERANCES["fp32"]


def test_sparse_gradients_work_where_stages_hold_full_weights(two_ranks: RankSet) -> None:
    tomls = [
        configuration("sparse", hybrid_strategy(sizes), 2).replace("clip_norm = 1.0", "")
        for sizes in ("stage = 2", "shard = 2")
    ]
    assert two_ranks.train(tomls[0])
    with pytest.raises(AssertionError, match="sparse gradients"):
        two_ranks.train(tomls[1])


@pytest.mark.parametrize("sizes", PAIRS.values(), ids=PAIRS)
def test_every_pair_of_axes_matches_one_device(four_ranks: RankSet, sizes: str) -> None:
    weights = four_ranks.train(configuration("gpt-tied", hybrid_strategy(sizes), 4))
    assert largest_difference(weights, single_device_weights("gpt-tied")) <= TOLERANCES["fp32"]


@pytest.mark.parametrize("name", slow_except(MASKED_IN_CI))
def test_fp64_matches_one_device(four_ranks: RankSet, name: str) -> None:
    toml = configuration("gpt-masked", hybrid_strategy(PAIRS[name]), 4, precision="fp64", accumulate=2)
    weights = four_ranks.train(toml)
    assert largest_difference(weights, single_device_weights("gpt-masked", "fp64", 2)) <= TOLERANCES["fp64"]


@pytest.mark.parametrize("name", slow_except(CONTROLS_IN_CI))
def test_weights_differ_without_the_sync_of_an_axis(four_ranks: RankSet, tmp_path: Path, name: str) -> None:
    out = tmp_path / "weights.safetensors"
    toml = configuration("gpt", hybrid_strategy(PAIRS[name]), 4)
    four_ranks.call(
        "tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what=CONTROLS[name]
    )
    assert largest_difference(load_file(out), single_device_weights("gpt")) > MIN_DIFFERENCE


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in SLOW_OPTIONS else [])
        for name, case in OPTIONS.items()
    ],
)
def test_options_do_not_change_the_result(four_ranks: RankSet, workload: str, options: str) -> None:
    train = "activation_checkpointing = true" if workload.startswith("gpt") else ""
    # "scaled" uses a layer in every other forward only.
    accumulate = 2 if workload == "scaled" else 1
    weights = four_ranks.train(
        configuration(workload, hybrid_strategy(options), 4, accumulate=accumulate, train=train)
    )
    assert (
        largest_difference(weights, single_device_weights(workload, "fp32", accumulate)) <= TOLERANCES["fp32"]
    )


def test_bytes_of_all_axes_are_reported_together(four_ranks: RankSet, tmp_path: Path) -> None:
    toml = configuration("gpt", hybrid_strategy('data = 2, stage = 2, sync = "ring"'), 4)
    four_ranks.train(toml, events=str(tmp_path))
    for rank in range(4):
        rank_events = events.decode_lines((tmp_path / f"rank-{rank}.0.jsonl").read_bytes())
        comm = [event for event in rank_events if isinstance(event, events.Comm)][-1]
        assert comm.algorithm == "point-to-point (1f1b); ring over data" and comm.measured
        assert comm.sent_bytes > 0


@pytest.mark.parametrize(
    "names",
    [EVALUATED_IN_CI, pytest.param(tuple(PAIRS), marks=pytest.mark.slow)],
    ids=["three", "all"],
)
def test_evaluation_counts_every_sample_once_on_any_mesh(
    four_ranks: RankSet, tmp_path: Path, names: tuple[str, ...]
) -> None:
    losses = []
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        toml = configuration("mlp-deep", hybrid_strategy(PAIRS[name]), 4)
        toml = toml.replace("steps = 3", "steps = 1").replace("global_batch = 16", "global_batch = 64")
        four_ranks.train(toml, events=str(folder))
        rank_events = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
        losses += [
            (event.loss, event.samples) for event in rank_events if isinstance(event, events.Evaluation)
        ]
    assert len(losses) == len(names)
    assert losses == [(pytest.approx(losses[0][0], rel=1e-6), losses[0][1])] * len(names)


def test_layers_divided_by_a_cut_are_not_split(four_ranks: RankSet) -> None:
    torn = hybrid_strategy('stage = 2, tensor = 2, cuts = ["blocks.3"]')
    weights = four_ranks.train(configuration("mlp-deep", torn, 4))
    assert largest_difference(weights, single_device_weights("mlp-deep")) <= TOLERANCES["fp32"]
    with pytest.raises(AssertionError, match=r"axis would split .* with a layer in another stage"):
        four_ranks.train(configuration("mlp", hybrid_strategy("stage = 2, tensor = 2"), 4))


def test_ranks_with_unequal_group_counts_still_connect(four_ranks: RankSet) -> None:
    """In a pipeline of four the first and the last rank share the tied weight, and only they."""
    tied = single_device_weights("gpt-tied")
    for strategy in (
        '{ use = "pipeline", schedule = "1f1b", microbatches = 4 }',
        hybrid_strategy("data = 2, stage = 2"),
    ):
        assert (
            largest_difference(four_ranks.train(configuration("gpt-tied", strategy, 4)), tied)
            <= TOLERANCES["fp32"]
        )
