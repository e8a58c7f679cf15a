"""What fsdp promises beside parity: first weights, memory that falls with ranks, bytes as told, 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from tests.helpers.parity import configuration, single_device_weights
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, alternate_pairs, alternate_rows, four_are_slow, largest_difference

Ranks = tuple[int, RankSet]
RANK_MODULE = "tests.helpers.sync_ranks"
WIDE_GPT = """
model = { use = "gpt", args = { layers = 4, heads = 2, width = 64, context = 16, vocabulary = 128 } }
data = { use = "synthetic", args = { samples = 256 } }
"""


def wide_config(ranks: Ranks, strategy: str, train: str = "", *, steps: int = 5, accumulate: int = 1) -> str:
    return f"""
{WIDE_GPT}
strategy = {strategy}
devices.use = "cpu:{ranks[0]}"
[train]
steps = {steps}
accumulate = {accumulate}
global_batch = 16
evaluate_every = 0
{train}
"""


@pytest.mark.parametrize(
    ("ranks", "workload"), alternate_rows(["batch-norm", "gpt-tied", "scaled", "mlp"]), indirect=["ranks"]
)
def test_initial_weights_match_one_device_and_are_sharded(ranks: Ranks, workload: str) -> None:
    first, *others = ranks[1].call(
        f"{RANK_MODULE}:first_weights", toml=configuration(workload, '{ use = "fsdp" }', ranks[0])
    )
    assert first == {"built": ["cpu"], "off": 0.0}
    assert all(other == {"built": ["meta"], "off": 0.0} for other in others)


@pytest.mark.parametrize(("ranks", "workload"), alternate_rows(["hiding", "asking"]), indirect=["ranks"])
def test_a_factory_that_needs_real_tensors_gets_them(ranks: Ranks, workload: str) -> None:
    first, *_ = ranks[1].call(
        f"{RANK_MODULE}:first_weights", toml=configuration(workload, '{ use = "fsdp" }', ranks[0])
    )
    assert first["off"] == 0
    weights = ranks[1].train(configuration(workload, '{ use = "fsdp" }', ranks[0]))
    assert largest_difference(weights, single_device_weights(workload)) <= 2e-6


@pytest.mark.parametrize(
    ("ranks", "options", "accumulate"), alternate_pairs(["", "reshard = false"], [1, 2]), indirect=["ranks"]
)
def test_sent_bytes_match_the_kernel(ranks: Ranks, options: str, accumulate: int) -> None:
    strategy = f'{{ use = "fsdp"{", " if options else ""}{options} }}'
    results = ranks[1].call(
        f"{RANK_MODULE}:one_step", toml=wide_config(ranks, strategy, accumulate=accumulate)
    )
    for rank in results:
        assert rank["written"] == pytest.approx(rank["told"], rel=0.02)
        assert rank["held_bytes"] == pytest.approx(rank["gradient_bytes"] / ranks[0], rel=0.02)


def peak_memory(ranks: Ranks, strategy: str, folder: Path, train: str = "") -> list[events.DeviceMemory]:
    """Each device's memory in the last step."""
    folder.mkdir()
    ranks[1].train(wide_config(ranks, strategy, train, steps=3), events=str(folder), always=True)
    peaks = []
    for rank in range(ranks[0]):
        rank_events = events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes())
        peaks.append([event for event in rank_events if isinstance(event, events.Memory)][-1].devices[0])
    return peaks


def peak_by_kind(memory: events.DeviceMemory) -> dict[str, int]:
    assert memory.peak_by_kind is not None
    return memory.peak_by_kind


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_every_device_peaks_below_ddp(ranks: Ranks, tmp_path: Path) -> None:
    ddp_peaks = peak_memory(ranks, '{ use = "ddp" }', tmp_path / "ddp")
    sliced = peak_memory(ranks, '{ use = "fsdp" }', tmp_path / "fsdp")
    no_reshard_peaks = peak_memory(ranks, '{ use = "fsdp", reshard = false }', tmp_path / "kept")
    for ddp, fsdp, no_reshard in zip(ddp_peaks, sliced, no_reshard_peaks, strict=True):
        assert fsdp.peak_bytes < 0.8 * ddp.peak_bytes
        assert fsdp.peak_bytes < no_reshard.peak_bytes
        for kind in ("parameters", "optimizer"):
            assert peak_by_kind(fsdp)[kind] == pytest.approx(peak_by_kind(ddp)[kind] / ranks[0], rel=0.02)
        assert sum(peak_by_kind(fsdp).values()) == fsdp.peak_bytes


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
def test_gathered_weights_count_as_communication(ranks: Ranks, tmp_path: Path) -> None:
    for memory in peak_memory(ranks, '{ use = "fsdp", reshard = false }', tmp_path / "kept"):
        whole_bytes = peak_by_kind(memory)["parameters"] * ranks[0]
        assert peak_by_kind(memory)["communication"] > 0.9 * whole_bytes


@four_are_slow
def test_bf16_halves_the_sent_bytes_and_keeps_fp32_weights(ranks: Ranks) -> None:
    results: list[dict[str, Any]] = ranks[1].call(
        f"{RANK_MODULE}:one_step", toml=wide_config(ranks, '{ use = "fsdp" }', 'precision = "bf16"')
    )
    for rank in results:
        assert rank["written"] == pytest.approx(rank["told"], rel=0.02)
        assert rank["held_bytes"] == pytest.approx(rank["gradient_bytes"] / ranks[0], rel=0.02)


@pytest.mark.parametrize(("ranks", "workload"), alternate_rows(["gpt", "batch-norm"]), indirect=["ranks"])
def test_bf16_weights_match_one_device_in_bf16(ranks: Ranks, workload: str) -> None:
    strategy = '{ use = "fsdp", sync_batchnorm = true }'
    toml = configuration(workload, strategy, ranks[0], precision="bf16")
    weights = ranks[1].train(toml)
    assert largest_difference(weights, single_device_weights(workload, "bf16")) < 5e-4
    assert largest_difference(weights, single_device_weights(workload)) > 1e-6


def last_evaluation(folder: Path) -> events.Evaluation:
    rank_events = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
    return [event for event in rank_events if isinstance(event, events.Evaluation)][-1]


@pytest.mark.parametrize(
    ("ranks", "strategy", "workload"),
    alternate_pairs(["ddp", "fsdp"], ["mlp", "batch-norm"]),
    indirect=["ranks"],
)
def test_an_uneven_evaluation_counts_every_sample_once(
    ranks: Ranks, tmp_path: Path, strategy: str, workload: str
) -> None:
    options = ", sync_batchnorm = true" if workload == "batch-norm" else ""
    for name, table in (("one", '{ use = "single" }'), ("many", f'{{ use = "{strategy}"{options} }}')):
        folder = tmp_path / name
        folder.mkdir()
        toml = configuration(workload, table, ranks[0] if name == "many" else 1)
        request = {"toml": toml, "out": str(folder / "weights"), "events": str(folder)}
        if name == "one":
            train_once(request, rank=0, world_size=1)
        else:
            ranks[1].train(toml, events=str(folder))
    single, many = last_evaluation(tmp_path / "one"), last_evaluation(tmp_path / "many")
    assert many.samples == single.samples and many.samples % 16
    assert many.loss == pytest.approx(single.loss, rel=1e-5)
    assert many.accuracy == single.accuracy
