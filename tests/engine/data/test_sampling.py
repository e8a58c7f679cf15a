"""The same samples per step for every number of ranks; every held-out sample once."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch

from rankdeck.data.base import Draw
from rankdeck.data.sampling import Epochs, HeldoutBatches, StepBatches, epoch_order


def steps_of(num_ranks: int, accumulate: int = 1, **more: Any) -> list[list[int]]:
    """Per part of a step, the samples of all ranks one after the other."""
    args = {"seed": 3, "steps": 7, **more}
    ranks = [
        numbers(StepBatches(30, 12, accumulate=accumulate, shard_index=rank, shard_count=num_ranks, **args))
        for rank in range(num_ranks)
    ]
    return [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)]


def numbers(batches: StepBatches | HeldoutBatches) -> list[list[int]]:
    return [[draw.sample for draw in draws] for draws in batches]


@pytest.mark.parametrize(
    ("num_ranks", "accumulate"), [(2, 1), (3, 1), (4, 1), (1, 3), (2, 3), (4, 3), (12, 1), (2, 6)]
)
def test_the_union_over_ranks_is_the_same_for_every_number_of_ranks(num_ranks: int, accumulate: int) -> None:
    parts = steps_of(num_ranks, accumulate)
    whole = [list(chain.from_iterable(parts[i : i + accumulate])) for i in range(0, len(parts), accumulate)]
    assert whole == steps_of(1)


def test_an_epoch_sees_each_sample_at_most_once_and_drops_its_tail() -> None:
    steps = steps_of(1)
    first, second = steps[0] + steps[1], steps[2] + steps[3]
    assert len(set(first)) == len(set(second)) == 24
    assert first != second
    assert first == epoch_order(30, seed=3, epoch=0)[:24].tolist()
    assert second == epoch_order(30, seed=3, epoch=1)[:24].tolist()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_in_order_every_epoch_is_as_the_data_set_has_it(num_ranks: int) -> None:
    steps = steps_of(num_ranks, in_order=True, steps=4)
    assert steps == [[*range(12)], [*range(12, 24)]] * 2
    (late,) = numbers(StepBatches(30, 12, seed=3, steps=4, start_step=3, in_order=True))
    assert late == steps[3]


@pytest.mark.parametrize("keep_last", [False, True])
def test_a_late_start_continues_where_an_early_one_would_be(keep_last: bool) -> None:
    late = StepBatches(30, 12, accumulate=2, seed=3, steps=7, start_step=5, keep_last=keep_last)
    whole = StepBatches(30, 12, accumulate=2, seed=3, steps=7, keep_last=keep_last)
    assert list(late) == list(whole)[10:]
    assert len(late) == 4


@pytest.mark.parametrize(("num_ranks", "accumulate"), [(1, 1), (2, 1), (4, 1), (1, 3), (2, 3)])
def test_a_kept_tail_is_a_shorter_step_of_the_same_parts_for_every_number_of_ranks(
    num_ranks: int, accumulate: int
) -> None:
    """Two whole steps an epoch, and one of 6."""
    parts = steps_of(num_ranks, accumulate, steps=6, keep_last=True)
    assert parts == steps_of(1, accumulate, steps=6, keep_last=True)
    assert [len(part) for part in parts[2 * accumulate : 3 * accumulate]] == [6 // accumulate] * accumulate
    whole = [*chain.from_iterable(parts)]
    assert whole == [index for epoch in range(2) for index in epoch_order(30, 3, epoch).tolist()]


def test_a_rank_without_a_share_of_a_kept_tail_reads_one_sample() -> None:
    """2 samples a part, for four ranks."""
    args: dict[str, Any] = {"accumulate": 3, "keep_last": True, "steps": 3, "seed": 3}
    order = epoch_order(30, 3, 0).tolist()
    tails = [numbers(StepBatches(30, 12, shard_index=r, shard_count=4, **args))[6:] for r in range(4)]
    assert tails[0] == [[order[24]], [order[26]], [order[28]]]
    assert tails[1] == [[order[25]], [order[27]], [order[29]]]
    assert tails[2] == tails[3] == [[order[29]]] * 3


def test_an_epoch_counts_its_steps_and_what_it_leaves_out() -> None:
    dropped, kept = Epochs(70, 20), Epochs(70, 20, keep_last=True)
    assert (dropped.steps, dropped.left_out, kept.steps, kept.left_out) == (3, 10, 4, 0)
    assert [kept.samples_of(step) for step in range(5)] == [20, 20, 20, 10, 20]
    assert [dropped.samples_of(step) for step in range(4)] == [20] * 4
    assert (Epochs(60, 20, keep_last=True).steps, Epochs(60, 20).left_out) == (3, 0)


def test_tensors_hold_what_the_lists_hold() -> None:
    args = {"accumulate": 2, "shard_index": 1, "shard_count": 3, "seed": 3, "steps": 7, "start_step": 3}
    rows = [samples.tolist() for samples in StepBatches(30, 12, **args).tensors()]  # type: ignore[arg-type]
    assert rows == numbers(StepBatches(30, 12, **args))  # type: ignore[arg-type]
    assert len(rows) == 8


def test_another_seed_is_another_order_and_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert steps_of(1) != steps_of(1, seed=4)
    assert torch.equal(before, torch.get_rng_state())


def test_draws_carry_seed_and_epoch() -> None:
    draws = list(StepBatches(30, 12, seed=3, steps=3))
    assert draws[2][0] == Draw(seed=3, epoch=1, sample=steps_of(1)[2][0])


@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 23, 24])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_heldout_sample_counts_exactly_once_in_equally_many_batches(
    num_samples: int, num_ranks: int
) -> None:
    counted: list[Any] = []
    for rank in range(num_ranks):
        batches = HeldoutBatches(num_samples, 8, shard_index=rank, shard_count=num_ranks)
        valid = batches.valid_counts()
        assert len(batches) == len(valid) == -(-num_samples // 8)
        for indices, num_valid in zip(numbers(batches), valid, strict=True):
            assert len(indices) == max(num_valid, 1) and num_valid <= 8 // num_ranks
            counted += indices[:num_valid]
    assert sorted(counted) == list(range(num_samples))
