"""Every way to sum gradients gives the sum, the same bits on every rank, and sends what its formula says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankdeck.parallel.collectives.ring import num_pieces
from tests.helpers.ranks import RankSet, alternate_pairs, alternate_rows

RANK_MODULE = "tests.helpers.sync_ranks"
ALGORITHMS = ("native", "ring", "reduce-broadcast", "all-to-all")
HALF_PRECISION_TOLERANCES = {"fp16": 2e-3, "bf16": 2e-2}  # and how far off the largest sum may be
BYTE_RATIOS = {"fp16": 0.5, "bf16": 0.5, "powersgd": 0.0078}
MIB = 2**20
Ranks = tuple[int, RankSet]


@pytest.mark.parametrize(
    ("ranks", "algorithm", "bucket_bytes"),
    alternate_pairs(ALGORITHMS, [1, 20_000, 25 * MIB]),
    indirect=["ranks"],
)
def test_every_algorithm_sums_to_the_same_bits_on_all_ranks(
    ranks: Ranks, algorithm: str, bucket_bytes: int
) -> None:
    results = ranks[1].call(f"{RANK_MODULE}:sync", algorithm=algorithm, bucket_bytes=bucket_bytes)
    assert max(rank["error"] for rank in results) < 2e-6
    assert len({rank["bits"] for rank in results}) == 1
    assert all(rank["seconds"] > 0 for rank in results)


@pytest.mark.parametrize(
    ("ranks", "algorithm", "compress"),
    alternate_pairs(ALGORITHMS, HALF_PRECISION_TOLERANCES),
    indirect=["ranks"],
)
def test_half_precision_sums_are_close_and_equal_on_all_ranks(
    ranks: Ranks, algorithm: str, compress: str
) -> None:
    results = ranks[1].call(f"{RANK_MODULE}:sync", algorithm=algorithm, compress=compress)
    for rank in results:
        assert 1e-5 < rank["error"] / rank["largest"] < HALF_PRECISION_TOLERANCES[compress]
    assert len({rank["bits"] for rank in results}) == 1


@pytest.mark.parametrize(("ranks", "algorithm"), alternate_rows(ALGORITHMS), indirect=["ranks"])
def test_powersgd_feeds_back_its_error(ranks: Ranks, algorithm: str) -> None:
    # Random gradients are the hardest there are: four columns say little of them. Were the rest lost for
    # good, the running sum would stay as far off as the best four columns are.
    (first, *_) = ranks[1].call(f"{RANK_MODULE}:sync", algorithm=algorithm, compress="powersgd", steps=1)
    later = ranks[1].call(f"{RANK_MODULE}:sync", algorithm=algorithm, compress="powersgd", steps=60)
    assert len({rank["bits"] for rank in later}) == 1
    assert first["drift"] > 0.8
    assert all(rank["drift"] < 0.25 for rank in later)


def test_ring_chunks_are_sent_in_pieces_of_half_a_mib() -> None:
    flat = torch.empty(4 * MIB // 4, device="meta")
    assert [num_pieces(flat, size) for size in (2, 4, 8, 16)] == [4, 2, 1, 1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sent_bytes_match_the_formula_and_the_kernel(ranks: Ranks, algorithm: str) -> None:
    results: list[dict[str, int]] = ranks[1].call(f"{RANK_MODULE}:sent_bytes", algorithm=algorithm)
    size, total_bytes = len(results), 4 * MIB
    expected = {
        "native": [2 * (size - 1) / size * total_bytes] * size,
        "ring": [2 * (size - 1) / size * total_bytes] * size,
        "all-to-all": [(size - 1) * total_bytes] * size,
        "reduce-broadcast": [(size - 1) * total_bytes] + [total_bytes] * (size - 1),
    }[algorithm]
    for rank, num_bytes in zip(results, expected, strict=True):
        assert rank["told"] == pytest.approx(num_bytes, rel=0.001)
        assert rank["written"] == pytest.approx(num_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("ranks", "algorithm", "compress"), alternate_pairs(["native", "ring"], BYTE_RATIOS), indirect=["ranks"]
)
def test_compressed_bytes_match_the_kernel(ranks: Ranks, algorithm: str, compress: str) -> None:
    results: list[dict[str, int]] = ranks[1].call(
        f"{RANK_MODULE}:sent_bytes", algorithm=algorithm, compress=compress
    )
    size = len(results)
    for rank in results:
        assert rank["told"] == pytest.approx(
            2 * (size - 1) / size * 4 * MIB * BYTE_RATIOS[compress], rel=0.01
        )
        # Each message has a header, which counts where messages are small.
        assert rank["written"] == pytest.approx(rank["told"], rel=0.02, abs=8192)


def test_only_counted_messages_are_reported_per_peer(ranks: Ranks) -> None:
    results: list[dict[str, Any]] = ranks[1].call(f"{RANK_MODULE}:sync", algorithm="ring")
    size = len(results)
    for number, rank in enumerate(results):
        assert rank["by_peer"] == {str((number + 1) % size): rank["sent_bytes"]}
        assert rank["measured"] and rank["words"] == "ring"
    native: list[dict[str, Any]] = ranks[1].call(f"{RANK_MODULE}:sync", algorithm="native", compress="bf16")
    assert all(rank["by_peer"] is None and not rank["measured"] for rank in native)
    assert native[0]["words"] == "native (gloo), bf16"


def test_ranks_agree_on_parameters_unused_by_some(ranks: Ranks) -> None:
    results: list[dict[str, Any]] = ranks[1].call(f"{RANK_MODULE}:unused_parameters")
    size = len(results)
    for rank in results:
        assert rank["1.weight"] == [2.0] * 4  # rank 0's alone
        assert rank["0.weight"] == [2.0 + (size - 1)] * 4
        assert rank["2.weight"] is None


def test_an_unused_parameter_is_named_with_a_fix(ranks: Ranks) -> None:
    results: list[dict[str, Any]] = ranks[1].call(f"{RANK_MODULE}:all_leave_one_out")
    for rank in results:
        assert "These parameters did not contribute to the loss: 1.weight." in rank["error"]
        assert "find_unused_parameters" in rank["advice"]


@pytest.mark.parametrize(
    ("ranks", "dims", "momentum"), alternate_pairs([2, 4], [0.1, None]), indirect=["ranks"]
)
def test_sync_batch_norm_equals_the_full_batch(ranks: Ranks, dims: int, momentum: float | None) -> None:
    size = ranks[0]
    for dtype, bar in (("float32", 5e-5), ("float64", 1e-12)):
        results = ranks[1].call(
            f"{RANK_MODULE}:batch_norm",
            dtype=dtype,
            dims=dims,
            momentum=momentum,
            sizes=list(range(3, 3 + size)),
        )
        for rank in results:
            assert max(rank.values()) < bar, rank
