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
from tests.helpers.parity import BARS, MUST_DIFFER, configuration, of_one_device
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
BOTH = ", sequence_parallel = true, loss_parallel = true"
OPTIONS = {
    "ddp x pipeline, ring, interleaved": (
        "gpt",
        'data = 2, stage = 2, sync = "ring", schedule = "looped-bfs"',
    ),
    "ddp x pipeline in a V, tied": ("gpt-tied", 'data = 2, stage = 2, schedule = "zbv"'),
    "ddp x pipeline by hand": ("gpt-tied", 'data = 2, stage = 2, schedule = "1f1b-by-hand"'),
    "fsdp x pipeline by hand": ("gpt", 'shard = 2, stage = 2, schedule = "1f1b-by-hand"'),
    "fsdp x pipeline in a V": ("gpt", 'shard = 2, stage = 2, schedule = "zbv"'),
    "tensor x pipeline in a V": ("gpt", f'stage = 2, tensor = 2, schedule = "zbv"{BOTH}'),
    "fsdp x tensor, all options": ("gpt-tied", f"shard = 2, tensor = 2, reshard = false{BOTH}"),
    "ddp x tensor, all options": ("gpt-tied", f'data = 2, tensor = 2, sync = "all-to-all"{BOTH}'),
    "ddp x pipeline, samples of all lengths": ("padded", "data = 2, stage = 2"),
    "uncut scalars": ("scaled", "data = 2, shard = 2"),
}
SLOW = {
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
def four(rank_set_of: RanksOf) -> RankSet:
    return rank_set_of(4)


@pytest.fixture(scope="module")
def two(rank_set_of: RanksOf) -> RankSet:
    return rank_set_of(2)


def slow_but(names: set[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in PAIRS]


def hybrid(sizes: str) -> str:
    return f'{{ use = "hybrid", {sizes} }}'


@pytest.mark.parametrize("axis", ["data", "shard", "stage", "tensor"])
def test_one_axis_alone_ends_where_one_device_does(two: RankSet, axis: str) -> None:
    weights = two.train(configuration("gpt-masked", hybrid(f"{axis} = 2"), 2, accumulate=2))
    assert largest_difference(weights, of_one_device("gpt-masked", "fp32", 2)) <= BARS["fp32"]


def test_sparse_gradients_are_taken_where_stages_hold_whole_weights(two: RankSet) -> None:
    tomls = [
        configuration("sparse", hybrid(sizes), 2).replace("clip_norm = 1.0", "")
        for sizes in ("stage = 2", "shard = 2")
    ]
    assert two.train(tomls[0])
    with pytest.raises(AssertionError, match="sparse gradients"):
        two.train(tomls[1])


@pytest.mark.parametrize("sizes", PAIRS.values(), ids=PAIRS)
def test_every_pair_ends_where_one_device_does(four: RankSet, sizes: str) -> None:
    weights = four.train(configuration("gpt-tied", hybrid(sizes), 4))
    assert largest_difference(weights, of_one_device("gpt-tied")) <= BARS["fp32"]


@pytest.mark.parametrize("name", slow_but(MASKED_IN_CI))
def test_fp64_leaves_no_doubt(four: RankSet, name: str) -> None:
    toml = configuration("gpt-masked", hybrid(PAIRS[name]), 4, precision="fp64", accumulate=2)
    weights = four.train(toml)
    assert largest_difference(weights, of_one_device("gpt-masked", "fp64", 2)) <= BARS["fp64"]


@pytest.mark.parametrize("name", slow_but(CONTROLS_IN_CI))
def test_without_what_an_axis_does_weights_are_far_off(four: RankSet, tmp_path: Path, name: str) -> None:
    out = tmp_path / "weights.safetensors"
    toml = configuration("gpt", hybrid(PAIRS[name]), 4)
    four.call("tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what=CONTROLS[name])
    assert largest_difference(load_file(out), of_one_device("gpt")) > MUST_DIFFER


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in OPTIONS.items()
    ],
)
def test_options_change_the_way_and_not_the_end(four: RankSet, workload: str, options: str) -> None:
    train = "activation_checkpointing = true" if workload.startswith("gpt") else ""
    # "scaled" uses a layer in every other forward only.
    accumulate = 2 if workload == "scaled" else 1
    weights = four.train(configuration(workload, hybrid(options), 4, accumulate=accumulate, train=train))
    assert largest_difference(weights, of_one_device(workload, "fp32", accumulate)) <= BARS["fp32"]


def test_bytes_of_every_axis_are_told_together(four: RankSet, tmp_path: Path) -> None:
    toml = configuration("gpt", hybrid('data = 2, stage = 2, sync = "ring"'), 4)
    four.train(toml, events=str(tmp_path))
    for rank in range(4):
        found = events.decode_lines((tmp_path / f"rank-{rank}.0.jsonl").read_bytes())
        comm = [event for event in found if isinstance(event, events.Comm)][-1]
        assert comm.algorithm == "point to point (1f1b); ring over data" and comm.measured
        assert comm.sent_bytes > 0


@pytest.mark.parametrize(
    "names",
    [EVALUATED_IN_CI, pytest.param(tuple(PAIRS), marks=pytest.mark.slow)],
    ids=["three", "all"],
)
def test_evaluation_counts_every_sample_once_on_any_mesh(
    four: RankSet, tmp_path: Path, names: tuple[str, ...]
) -> None:
    losses = []
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        toml = configuration("mlp-deep", hybrid(PAIRS[name]), 4)
        toml = toml.replace("steps = 3", "steps = 1").replace("global_batch = 16", "global_batch = 64")
        four.train(toml, events=str(folder))
        found = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
        losses += [(event.loss, event.samples) for event in found if isinstance(event, events.Evaluation)]
    assert len(losses) == len(names)
    assert losses == [(pytest.approx(losses[0][0], rel=1e-6), losses[0][1])] * len(names)


def test_layers_that_a_cut_tears_apart_are_not_split_and_a_mesh_without_any_is_refused(four: RankSet) -> None:
    torn = hybrid('stage = 2, tensor = 2, cuts = ["blocks.3"]')
    weights = four.train(configuration("mlp-deep", torn, 4))
    assert largest_difference(weights, of_one_device("mlp-deep")) <= BARS["fp32"]
    with pytest.raises(AssertionError, match=r"split over tensor together with a layer of another stage"):
        four.train(configuration("mlp", hybrid("stage = 2, tensor = 2"), 4))


def test_ranks_that_made_unequal_numbers_of_groups_before_still_meet(four: RankSet) -> None:
    """In a pipeline of four the first and the last rank share the tied weight, and only they."""
    tied = of_one_device("gpt-tied")
    for strategy in (
        '{ use = "pipeline", schedule = "1f1b", microbatches = 4 }',
        hybrid("data = 2, stage = 2"),
    ):
        assert largest_difference(four.train(configuration("gpt-tied", strategy, 4)), tied) <= BARS["fp32"]
