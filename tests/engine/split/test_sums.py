"""What split layers send, counted in real ranks, and a norm over gradients that lie in parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.helpers.ranks import RankSet

LAYERS, BATCH, CONTEXT, WIDTH, VOCABULARY = 3, 64, 32, 64, 64
STREAM_BYTES = BATCH * CONTEXT * WIDTH * 4
LOGIT_BYTES = BATCH * CONTEXT * VOCABULARY * 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankSet]:
    made = RankSet(2, tmp_path_factory.mktemp("sums"))
    yield made
    made.close()


def counted(ranks: RankSet, *, sequence_parallel: bool) -> tuple[dict[str, int], int, int]:
    found = ranks.call(
        "tests.helpers.split_ranks:collectives_of_a_step",
        layers=LAYERS,
        batch=BATCH,
        sequence_parallel=sequence_parallel,
    )
    calls, sent_bytes, written_bytes = found[0]
    return calls, sent_bytes, written_bytes


def test_a_block_sums_twice_in_forward_and_twice_in_backward(ranks: RankSet) -> None:
    calls, sent_bytes, _ = counted(ranks, sequence_parallel=False)
    # Beside the blocks: the embedding's sum in forward, the output layer's in backward, and its logits.
    assert calls == {"all_reduce": 4 * LAYERS + 2, "all_gather_into_tensor": 1}
    share = 2 * (2 - 1) / 2
    assert sent_bytes == pytest.approx(share * STREAM_BYTES * (4 * LAYERS + 2) + LOGIT_BYTES / 2)


@pytest.mark.skipif(sys.platform != "linux", reason="bytes written are read from /proc")
def test_the_formula_is_what_gloo_writes(ranks: RankSet) -> None:
    _, sent_bytes, written_bytes = counted(ranks, sequence_parallel=False)
    assert written_bytes == pytest.approx(sent_bytes, rel=0.02)


def test_a_cut_sequence_sends_in_two_halves(ranks: RankSet) -> None:
    calls, _, _ = counted(ranks, sequence_parallel=True)
    assert calls["reduce_scatter_tensor"] == 4 * LAYERS
    # Sums outside of the blocks stay: the embedding's and the output layer's.
    assert calls["all_reduce"] == 2


def test_one_norm_counts_every_number_once_wherever_it_lives(ranks: RankSet) -> None:
    for norm, expected, _ in ranks.call("tests.helpers.split_ranks:norm_of_parts", max_norm=1e9):
        assert norm == pytest.approx(expected, rel=1e-6)
    (norm, _, whole), (_, _, other) = ranks.call("tests.helpers.split_ranks:norm_of_parts", max_norm=1e9)
    clipped = ranks.call("tests.helpers.split_ranks:norm_of_parts", max_norm=norm / 2)
    assert whole == other
    for _, _, halves in clipped:
        assert halves == pytest.approx([value / 2 for value in whole], rel=1e-5)
