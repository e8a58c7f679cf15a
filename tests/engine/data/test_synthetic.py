"""Synthetic samples: fixed, as the model wants them, masked as asked, and possible to learn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankdeck.base.errors import DataError
from rankdeck.config.catalog import IGNORE_INDEX
from rankdeck.data.loader import build_loader
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.data.synthetic import MAX_POOL_BYTES, PATTERN_NUMBERS, InputSpec, Synthetic, input_spec
from rankdeck.models import gpt, mlp

SPECS = [
    InputSpec((12,), classes=5),
    InputSpec((3, 40, 40), torch.float64),
    InputSpec((16,), torch.int64, vocabulary=30),
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_spec_matches_the_loaded_data(spec: InputSpec) -> None:
    source = Synthetic({"samples": 100}, spec)
    card = source.describe()
    train, heldout = source.load()
    assert (len(train), len(heldout)) == (card.train_samples, card.heldout_samples) == (100, 12)
    inputs, target = train[99]
    assert (inputs.shape, inputs.dtype) == (card.input_shape, card.input_dtype)
    assert (target.shape, target.dtype) == (card.target_shape, card.target_dtype)


@pytest.mark.parametrize("spec", SPECS)
def test_samples_are_fixed_and_heldout_samples_differ(spec: InputSpec) -> None:
    torch.manual_seed(0)
    train, heldout = Synthetic({"samples": 64}, spec).load()
    torch.manual_seed(1)
    again, _ = Synthetic({"samples": 64}, spec).load()
    assert torch.equal(train.inputs, again.inputs)
    assert torch.equal(train.targets, again.targets)
    for first, other in ((train.inputs, heldout.inputs), (train.targets, heldout.targets)):
        # What is drawn first tells whether both come from one stream.
        assert not torch.equal(
            first[: len(other)].view(len(other), -1)[:, 0], other.view(len(other), -1)[:, 0]
        )


@pytest.mark.parametrize("spec", SPECS)
def test_the_requested_fraction_of_targets_is_masked(spec: InputSpec) -> None:
    source = Synthetic({"samples": 2000, "masked": 0.25}, spec)
    train, _ = source.load()
    assert source.describe().may_mask
    assert not Synthetic({}, spec).describe().may_mask
    assert abs((train.targets == IGNORE_INDEX).float().mean() - 0.25) < 0.05


def test_a_large_set_repeats_a_bounded_pool() -> None:
    spec = InputSpec((3, 224, 224))
    train, _ = Synthetic({"samples": 10_000}, spec).load()
    assert train.inputs.nbytes <= MAX_POOL_BYTES
    rows = len(train.inputs)
    assert torch.equal(train[rows + 1][0], train[1][0])
    assert torch.equal(train.read_batch([9_999])[0][0], train[9_999][0])


def test_a_long_sample_repeats_the_pattern_of_its_class() -> None:
    train, _ = Synthetic({"samples": 2000, "classes": 2}, InputSpec((2 * PATTERN_NUMBERS,))).load()
    inputs, targets = train.read_batch(range(1000))
    of_class = torch.stack([inputs[targets == index].mean(0) for index in range(2)])
    first, second = of_class.view(2, 2, PATTERN_NUMBERS).unbind(1)
    assert (first - second).abs().max() < 0.15 and first.std() > 0.9
    assert first[:, 0].abs().max() > 0.3


def test_classes_can_be_learned() -> None:
    torch.manual_seed(0)
    train, heldout = Synthetic({"samples": 512}, InputSpec((32,), classes=5)).load()
    model = mlp.build(inputs=32, classes=5, hidden=[32])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in build_loader(train, TrainBatchSampler(512, 32, steps=60)):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert (model(heldout.inputs).argmax(1) == heldout.targets).float().mean() > 0.9


def test_tokens_can_be_learned() -> None:
    torch.manual_seed(0)
    train, _ = Synthetic({"samples": 512}, InputSpec((16,), torch.int64, vocabulary=30)).load()
    model = gpt.build(vocabulary=30, layers=1, heads=2, width=32, context=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for inputs, targets in build_loader(train, TrainBatchSampler(512, 32, steps=60)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.5


def test_the_spec_follows_the_model() -> None:
    assert input_spec("gpt", {"context": 32, "vocabulary": 99}) == InputSpec(
        (32,), torch.int64, vocabulary=99
    )
    assert input_spec("mlp", {}) == InputSpec((64,))
    assert input_spec("resnet", {"stem": "small", "classes": 7}) == InputSpec((3, 32, 32), classes=7)
    with pytest.raises(DataError, match=r"mine.py:make") as caught:
        input_spec("mine.py:make", {})
    assert "factory" in (caught.value.advice or "")
