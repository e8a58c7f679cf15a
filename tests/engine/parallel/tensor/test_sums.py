"""What split layers send, counted in real ranks, and a norm over gradients that lie in parts."""

from __future__ import annotations

import functools
import sys

import pytest

from tests.helpers.ranks import RankSet

Ranks = tuple[int, RankSet]
RANK_MODULE = "tests.helpers.split_ranks"
LAYERS, BATCH, CONTEXT, WIDTH, VOCABULARY = 3, 64, 32, 64, 64
STREAM_BYTES = BATCH * CONTEXT * WIDTH * 4
LOGIT_BYTES = BATCH * CONTEXT * VOCABULARY * 4


@functools.cache
def count_collectives(ranks: Ranks, *, sequence_parallel: bool) -> list[tuple[dict[str, int], int, int]]:
    """Per rank: calls by kind, bytes by formula, bytes written."""
    return ranks[1].call(
        f"{RANK_MODULE}:collectives_of_a_step",
        layers=LAYERS,
        batch=BATCH,
        sequence_parallel=sequence_parallel,
    )


def test_a_block_reduces_twice_in_forward_and_in_backward(ranks: Ranks) -> None:
    num_ranks, _ = ranks
    for calls, sent_bytes, _ in count_collectives(ranks, sequence_parallel=False):
        # Beside the blocks: the embedding's sum in forward, the output layer's in backward, and its logits.
        assert calls == {"all-reduce": 4 * LAYERS + 2, "all-gather": 1}
        share = (num_ranks - 1) / num_ranks
        assert sent_bytes == pytest.approx(share * (2 * STREAM_BYTES * (4 * LAYERS + 2) + LOGIT_BYTES))


@pytest.mark.skipif(sys.platform != "linux", reason="bytes written are read from /proc")
def test_the_byte_formula_matches_gloo(ranks: Ranks) -> None:
    for _, sent_bytes, written_bytes in count_collectives(ranks, sequence_parallel=False):
        assert written_bytes == pytest.approx(sent_bytes, rel=0.02)


def test_sequence_parallel_splits_each_all_reduce_in_two(ranks: Ranks) -> None:
    for calls, _, _ in count_collectives(ranks, sequence_parallel=True):
        assert calls["reduce-scatter"] == 4 * LAYERS
        # Sums outside of the blocks stay: the embedding's and the output layer's.
        assert calls["all-reduce"] == 2


def test_the_gradient_norm_counts_every_element_once(ranks: Ranks) -> None:
    unclipped = ranks[1].call(f"{RANK_MODULE}:norm_of_parts", max_norm=1e9)
    for norm, expected, _ in unclipped:
        assert norm == pytest.approx(expected, rel=1e-6)
    norm, _, values = unclipped[0]
    assert all(other == values for _, _, other in unclipped)
    for _, _, halves in ranks[1].call(f"{RANK_MODULE}:norm_of_parts", max_norm=norm / 2):
        assert halves == pytest.approx([value / 2 for value in values], rel=1e-5)
