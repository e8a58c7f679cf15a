"""What ddp tells of itself: bytes as the kernel counts them, overlap, and one set of weights on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from tests.helpers.parity import configuration
from tests.helpers.ranks import RankSet, alternate_pairs, alternate_rows, four_are_slow

Ranks = tuple[int, RankSet]
RANK_MODULE = "tests.helpers.sync_ranks"
WIDE_GPT = """
model = { use = "gpt", args = { layers = 2, heads = 2, width = 96, context = 16, vocabulary = 512 } }
data = { use = "synthetic", args = { samples = 256 } }
train = { steps = 5, global_batch = 16, evaluate_every = 0, clip_norm = 1.0 }
"""


def run_one_step(ranks: Ranks, options: str, toml: str = WIDE_GPT) -> list[dict[str, Any]]:
    strategy = f'strategy = {{ use = "ddp"{", " if options else ""}{options} }}'
    return ranks[1].call(
        f"{RANK_MODULE}:one_step", toml=f'{toml}\n{strategy}\ndevices.use = "cpu:{ranks[0]}"'
    )


@pytest.mark.parametrize(
    ("ranks", "compress"), alternate_rows(["bf16", "none", "powersgd"]), indirect=["ranks"]
)
def test_native_bytes_match_the_kernel(ranks: Ranks, compress: str) -> None:
    """Once per step, also where a batch comes in parts."""
    toml = WIDE_GPT.replace("steps = 5", f"steps = 5, accumulate = {2 if compress == 'none' else 1}")
    results = run_one_step(ranks, f'compress = "{compress}"', toml)
    for rank in results:
        assert not rank["measured"]
        assert rank["written"] == pytest.approx(rank["told"], rel=0.02, abs=8192)
    total_bytes = 2 * (ranks[0] - 1) / ranks[0] * results[0]["gradient_bytes"]
    share = {"none": 1.0, "bf16": 0.5, "powersgd": 0.25}[compress]
    assert results[0]["told"] <= share * total_bytes + 1


@pytest.mark.parametrize(
    ("ranks", "sync", "compress"),
    alternate_pairs(["ring", "reduce-broadcast", "all-to-all"], ["none", "fp16"]),
    indirect=["ranks"],
)
def test_explicit_bytes_are_counted_message_by_message(ranks: Ranks, sync: str, compress: str) -> None:
    size = ranks[0]
    results = run_one_step(ranks, f'sync = "{sync}", compress = "{compress}"')
    gradients = results[0]["gradient_bytes"] * (0.5 if compress == "fp16" else 1)
    messages = {
        "ring": [2 * (size - 1) / size] * size,
        "reduce-broadcast": [size - 1] + [1] * (size - 1),
        "all-to-all": [size - 1] * size,
    }[sync]
    for rank, count in zip(results, messages, strict=True):
        assert rank["measured"] and rank["told"] == pytest.approx(count * gradients, rel=0.001)
        assert rank["written"] == pytest.approx(rank["told"], rel=0.02, abs=8192)


@four_are_slow
def test_only_the_native_sync_overlaps_with_backward(ranks: Ranks) -> None:
    for rank in run_one_step(ranks, "bucket_mb = 0.1"):
        assert 0 < rank["overlapped_s"] <= rank["sync_s"]
    for rank in run_one_step(ranks, 'sync = "ring"'):
        assert rank["overlapped_s"] == 0 < rank["sync_s"]


def test_events_report_bytes_per_peer_and_sync_time(ranks: Ranks, tmp_path: Path) -> None:
    size, rank_set = ranks
    toml = configuration("gpt", '{ use = "ddp", sync = "ring" }', size, steps=5)
    rank_set.train(toml, events=str(tmp_path))
    for rank in range(size):
        rank_events = events.decode_lines((tmp_path / f"rank-{rank}.0.jsonl").read_bytes())
        comms = [event for event in rank_events if isinstance(event, events.Comm)]
        assert [comm.step for comm in comms] == [3, 5]
        for comm in comms:
            assert comm.by_peer == {str((rank + 1) % size): comm.sent_bytes}
            assert comm.algorithm == "ring" and comm.measured
            assert comm.sync_s is not None and comm.sync_s > 0 and comm.overlapped_s == 0


@pytest.mark.parametrize(("ranks", "sync"), alternate_rows(["native", "ring"]), indirect=["ranks"])
def test_all_ranks_start_with_the_weights_of_rank_0(ranks: Ranks, sync: str) -> None:
    size, rank_set = ranks
    toml = configuration("unseeded", f'{{ use = "ddp", sync = "{sync}" }}', size)
    weights = rank_set.call(f"{RANK_MODULE}:weights_bits", toml=toml)
    assert len(set(weights)) == 1


@pytest.mark.parametrize(
    ("ranks", "sync"),
    alternate_rows(["native", "ring", "reduce-broadcast", "all-to-all"]),
    indirect=["ranks"],
)
def test_all_ranks_end_bitwise_equal(ranks: Ranks, sync: str) -> None:
    size, rank_set = ranks
    toml = configuration("gpt", f'{{ use = "ddp", sync = "{sync}" }}', size)
    weights = rank_set.call(f"{RANK_MODULE}:weights_bits", toml=toml, steps=3)
    assert len(set(weights)) == 1


@pytest.mark.parametrize(("ranks", "sync"), alternate_rows(["native", "ring"]), indirect=["ranks"])
def test_powersgd_keeps_its_error_between_steps(ranks: Ranks, sync: str) -> None:
    size, rank_set = ranks
    toml = configuration("gpt", f'{{ use = "ddp", sync = "{sync}", compress = "powersgd" }}', size, steps=5)
    expected = rank_set.call(f"{RANK_MODULE}:weights_bits", toml=toml, steps=5)
    assert rank_set.call(f"{RANK_MODULE}:resumed_bits", toml=toml, after=3, steps=5) == expected
