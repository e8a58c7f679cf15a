"""The loader: the sampler's order, whole batches at once, any number of workers, no trace left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rankdeck.base.errors import DataError, TrainingError
from rankdeck.data.digits import Digits
from rankdeck.data.loader import build_loader
from rankdeck.data.samplers import HeldoutBatchSampler, TrainBatchSampler
from tests.helpers.waiting import wait_until


class Squares:
    """A user's data set: items only."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), index * index


class Sentences:
    """A user's data set of dictionaries for the model."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.full((3,), index), "labels": torch.tensor(index)}


class NeedsEpoch(Squares):
    needs_epoch = True

    def __getitem__(self, index: Any) -> tuple[Tensor, int]:
        seed, epoch, sample = index
        return torch.tensor([seed, epoch]), sample


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_the_samplers_order(workers: int) -> None:
    batches = TrainBatchSampler(20, 6, accumulate=2, seed=1, steps=5)
    loader = build_loader(Squares(), batches, workers=workers)
    got = [(inputs, targets) for inputs, targets in loader]
    loader.close()
    assert len(got) == len(loader) == 10
    for (inputs, targets), draws in zip(got, batches, strict=True):
        assert inputs.flatten().tolist() == [draw.sample for draw in draws]
        assert targets.tolist() == [draw.sample**2 for draw in draws]


def test_read_batch_equals_collated_samples() -> None:
    train, _ = Digits({}).load()
    plain = TensorDataset(train.inputs, train.targets)
    batches = TrainBatchSampler(len(train), 32, steps=3)
    for ours, theirs in zip(build_loader(train, batches), build_loader(plain, batches), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_dicts_are_model_inputs_and_their_labels_targets() -> None:
    ((inputs, targets),) = build_loader(Sentences(), HeldoutBatchSampler(4, 4))
    assert inputs["input_ids"].shape == (4, 3)
    assert targets.tolist() == [0, 1, 2, 3] == inputs["labels"].tolist()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (torch.ones(3), "a Tensor, neither"),
        ((1, 2, 3), "a tuple of length 3, neither"),
        ((None, 1), "cannot be stacked"),
    ],
)
def test_an_unsupported_sample_type_is_refused(sample: Any, message: str) -> None:
    class Odd(Squares):
        def __getitem__(self, index: int) -> Any:
            return sample

    with pytest.raises(DataError, match=message) as raised:
        list(build_loader(Odd(), TrainBatchSampler(20, 5, steps=1)))
    assert raised.value.advice
    assert "read_batch(indices)" in raised.value.advice or "stacked" not in message


def test_a_dataset_that_needs_the_epoch_gets_sample_keys() -> None:
    loader = build_loader(NeedsEpoch(), TrainBatchSampler(20, 20, seed=5, steps=2))
    (_, _), (origin, samples) = loader
    assert origin.unique(dim=0).tolist() == [[5, 1]]
    assert sorted(samples.tolist()) == list(range(20))


def test_closing_mid_epoch_ends_the_workers() -> None:
    before = psutil.Process().children()
    loader = build_loader(Squares(), TrainBatchSampler(20, 5, steps=50), workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = [child for child in psutil.Process().children() if child not in before]
    assert len(workers) == 2
    loader.close()
    loader.close()
    wait_until(
        lambda: not any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers), deadline_s=5
    )


def test_an_error_in_user_data_keeps_its_type() -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            raise KeyError("column")

    with pytest.raises(KeyError, match="column"):
        list(build_loader(Broken(), TrainBatchSampler(20, 5, steps=1)))


def test_an_error_in_a_worker_has_its_message_and_line() -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            raise KeyError("column")

    loader = build_loader(Broken(), TrainBatchSampler(20, 5, steps=1), workers=1)
    try:
        with pytest.raises(TrainingError, match="KeyError: 'column'") as raised:
            list(loader)
    finally:
        loader.close()
    assert Path(__file__).name in raised.value.message
    assert raised.value.problem.last_lines[-1] == "KeyError: 'column'"


def test_read_batch_is_called_once_per_batch() -> None:
    calls = 0
    train, _ = Digits({}).load()

    class Counted:
        def __len__(self) -> int:
            return len(train)

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read one by one")

        def read_batch(self, indices: list[int]) -> Any:
            nonlocal calls
            calls += 1
            return train.read_batch(indices)

    assert len(list(build_loader(Counted(), TrainBatchSampler(len(train), 32, steps=40)))) == calls == 40
