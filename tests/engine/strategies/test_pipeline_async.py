"""The pipeline without a flush is exact: to the last bit what its delays, applied by hand, give."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from rankdeck import events
from tests.helpers.delayed_weights import train_delayed
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES, WORKLOADS
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, alternate_pairs, alternate_rows, largest_difference


def configuration(workload: str, mode: str, num_devices: int, train: str = "") -> str:
    """Ten updates, with the pipe drained in mid-run."""
    return f"""
{WORKLOADS[workload]}
strategy = {{ use = "pipeline-async", mode = "{mode}" }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 10
global_batch = 16
accumulate = {num_devices if mode == "2bw" else 1}
evaluate_every = 6
optimizer = {{ use = "sgd", lr = 0.05, momentum = 0.9 }}
schedule = {{ use = "cosine", warmup = 3 }}
{train}
"""


@cache
def train_with_delays(toml: str, num_stages: int, delay: int = 0) -> dict[str, Tensor]:
    return train_delayed(toml, num_stages, late_by=delay)[0]


@cache
def train_on_one_device(toml: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


@pytest.mark.parametrize(
    ("ranks", "mode", "workload"),
    alternate_pairs(["stash", "2bw"], ["gpt", "gpt-masked", "mlp-deep", "padded"], every=3),
    indirect=["ranks"],
)
def test_async_training_equals_its_delays_bitwise(
    ranks: tuple[int, RankSet], mode: str, workload: str
) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(workload, mode, num_ranks)
    weights = rank_set.train(toml)
    assert largest_difference(weights, train_with_delays(toml, num_ranks)) == 0.0
    assert largest_difference(weights, train_with_delays(toml, num_ranks, delay=1)) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_checkpointed_blocks_recompute_with_their_forward_weights(ranks: tuple[int, RankSet]) -> None:
    toml = configuration("gpt", "stash", 2)
    checkpointed = configuration("gpt", "stash", 2, "activation_checkpointing = true")
    assert largest_difference(ranks[1].train(checkpointed), train_with_delays(toml, 2)) == 0.0


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_fp64_equals_its_delays_bitwise(ranks: tuple[int, RankSet]) -> None:
    toml = configuration("gpt", "stash", 2, 'precision = "fp64"')
    assert largest_difference(ranks[1].train(toml), train_with_delays(toml, 2)) == 0.0


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_pipeline_drained_each_update_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    toml = configuration("mlp-deep", "stash", 2).replace("evaluate_every = 6", "evaluate_every = 1")
    single = toml.replace('"pipeline-async", mode = "stash"', '"single"').replace("cpu:2", "cpu:1")
    assert largest_difference(ranks[1].train(toml), train_on_one_device(single)) <= TOLERANCES["fp32"]


@pytest.mark.parametrize(("ranks", "mode"), alternate_rows(["2bw", "stash"]), indirect=["ranks"])
def test_versions_and_staleness_match_the_papers(
    ranks: tuple[int, RankSet], tmp_path: Path, mode: str
) -> None:
    num_ranks, rank_set = ranks
    rank_set.train(configuration("mlp-deep", mode, num_ranks), events=str(tmp_path))
    for stage in range(num_ranks):
        rank_events = events.decode_lines((tmp_path / f"rank-{stage}.0.jsonl").read_bytes())
        facts = [event for event in rank_events if isinstance(event, events.Pipeline)][-1]
        behind = num_ranks - 1 - stage
        assert facts.stages == [stage]
        assert facts.in_flight == behind + 1
        assert (facts.staleness, facts.weight_versions) == ((1, 2) if mode == "2bw" else (behind, behind + 1))
        drains = [(e.microbatches, e.updates) for e in rank_events if isinstance(e, events.Drained)]
        assert drains == [(behind, 6), (behind, 10)]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_weight_tied_across_stages_is_refused(ranks: tuple[int, RankSet]) -> None:
    toml = configuration("tied_blocks", "stash", 2).replace('"stash"', '"stash", cuts = ["1.1.0"]')
    with pytest.raises(AssertionError, match="so its copies would diverge"):
        ranks[1].train(toml)
