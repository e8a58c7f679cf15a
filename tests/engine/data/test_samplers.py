"""The same samples per step for every number of ranks; every held-out sample once."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch

from rankdeck.data.base import SampleKey
from rankdeck.data.samplers import EpochLayout, HeldoutBatchSampler, TrainBatchSampler, epoch_order


def samples_per_microstep(num_ranks: int, accumulate: int = 1, **more: Any) -> list[list[int]]:
    """Per part of a step, the samples of all ranks one after the other."""
    args = {"seed": 3, "steps": 7, **more}
    ranks = [
        sample_indices(
            TrainBatchSampler(30, 12, accumulate=accumulate, shard_index=rank, shard_count=num_ranks, **args)
        )
        for rank in range(num_ranks)
    ]
    return [list(chain.from_iterable(microbatches)) for microbatches in zip(*ranks, strict=True)]


def sample_indices(batches: TrainBatchSampler | HeldoutBatchSampler) -> list[list[int]]:
    return [[draw.sample for draw in draws] for draws in batches]


@pytest.mark.parametrize(
    ("num_ranks", "accumulate"), [(2, 1), (3, 1), (4, 1), (1, 3), (2, 3), (4, 3), (12, 1), (2, 6)]
)
def test_the_union_over_ranks_does_not_depend_on_their_number(num_ranks: int, accumulate: int) -> None:
    microsteps = samples_per_microstep(num_ranks, accumulate)
    batches = [
        list(chain.from_iterable(microsteps[i : i + accumulate]))
        for i in range(0, len(microsteps), accumulate)
    ]
    assert batches == samples_per_microstep(1)


def test_an_epoch_sees_each_sample_at_most_once_and_drops_its_tail() -> None:
    steps = samples_per_microstep(1)
    first, second = steps[0] + steps[1], steps[2] + steps[3]
    assert len(set(first)) == len(set(second)) == 24
    assert first != second
    assert first == epoch_order(30, seed=3, epoch=0)[:24].tolist()
    assert second == epoch_order(30, seed=3, epoch=1)[:24].tolist()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_without_shuffling_epochs_have_the_order_of_the_dataset(num_ranks: int) -> None:
    steps = samples_per_microstep(num_ranks, keep_order=True, steps=4)
    assert steps == [[*range(12)], [*range(12, 24)]] * 2
    (late,) = sample_indices(TrainBatchSampler(30, 12, seed=3, steps=4, start_step=3, keep_order=True))
    assert late == steps[3]


@pytest.mark.parametrize("keep_last", [False, True])
def test_a_late_start_continues_an_earlier_run(keep_last: bool) -> None:
    late = TrainBatchSampler(30, 12, accumulate=2, seed=3, steps=7, start_step=5, keep_last=keep_last)
    sampler = TrainBatchSampler(30, 12, accumulate=2, seed=3, steps=7, keep_last=keep_last)
    assert list(late) == list(sampler)[10:]
    assert len(late) == 4


@pytest.mark.parametrize(("num_ranks", "accumulate"), [(1, 1), (2, 1), (4, 1), (1, 3), (2, 3)])
def test_a_kept_tail_has_the_same_microsteps_on_any_ranks(num_ranks: int, accumulate: int) -> None:
    """Two whole steps an epoch, and one of 6."""
    microsteps = samples_per_microstep(num_ranks, accumulate, steps=6, keep_last=True)
    assert microsteps == samples_per_microstep(1, accumulate, steps=6, keep_last=True)
    assert [len(microstep) for microstep in microsteps[2 * accumulate : 3 * accumulate]] == [
        6 // accumulate
    ] * accumulate
    indices = [*chain.from_iterable(microsteps)]
    assert indices == [index for epoch in range(2) for index in epoch_order(30, 3, epoch).tolist()]


def test_a_rank_without_samples_of_a_kept_tail_reads_one() -> None:
    """2 samples a part, for four ranks."""
    args: dict[str, Any] = {"accumulate": 3, "keep_last": True, "steps": 3, "seed": 3}
    order = epoch_order(30, 3, 0).tolist()
    tails = [
        sample_indices(TrainBatchSampler(30, 12, shard_index=r, shard_count=4, **args))[6:] for r in range(4)
    ]
    assert tails[0] == [[order[24]], [order[26]], [order[28]]]
    assert tails[1] == [[order[25]], [order[27]], [order[29]]]
    assert tails[2] == tails[3] == [[order[29]]] * 3


def test_an_epoch_counts_its_steps_and_dropped_samples() -> None:
    dropped, with_tail = EpochLayout(70, 20), EpochLayout(70, 20, keep_last=True)
    assert (dropped.steps, dropped.num_dropped, with_tail.steps, with_tail.num_dropped) == (3, 10, 4, 0)
    assert [with_tail.step_samples(step) for step in range(5)] == [20, 20, 20, 10, 20]
    assert [dropped.step_samples(step) for step in range(4)] == [20] * 4
    assert (EpochLayout(60, 20, keep_last=True).steps, EpochLayout(60, 20).num_dropped) == (3, 0)


def test_index_tensors_equal_index_lists() -> None:
    args = {"accumulate": 2, "shard_index": 1, "shard_count": 3, "seed": 3, "steps": 7, "start_step": 3}
    rows = [samples.tolist() for samples in TrainBatchSampler(30, 12, **args).index_tensors()]  # type: ignore[arg-type]
    assert rows == sample_indices(TrainBatchSampler(30, 12, **args))  # type: ignore[arg-type]
    assert len(rows) == 8


def test_the_seed_changes_the_order_and_no_global_state() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert samples_per_microstep(1) != samples_per_microstep(1, seed=4)
    assert torch.equal(before, torch.get_rng_state())


def test_sample_keys_have_seed_and_epoch() -> None:
    draws = list(TrainBatchSampler(30, 12, seed=3, steps=3))
    assert draws[2][0] == SampleKey(seed=3, epoch=1, sample=samples_per_microstep(1)[2][0])


@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 23, 24])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_heldout_sample_counts_once_in_equal_batches(num_samples: int, num_ranks: int) -> None:
    counted: list[Any] = []
    for rank in range(num_ranks):
        batches = HeldoutBatchSampler(num_samples, 8, shard_index=rank, shard_count=num_ranks)
        valid = batches.valid_counts()
        assert len(batches) == len(valid) == -(-num_samples // 8)
        for indices, num_valid in zip(sample_indices(batches), valid, strict=True):
            assert len(indices) == max(num_valid, 1) and num_valid <= 8 // num_ranks
            counted += indices[:num_valid]
    assert sorted(counted) == list(range(num_samples))
