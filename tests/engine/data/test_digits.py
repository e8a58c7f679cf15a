"""Digits: the card is true, the split is even and fixed, and an MLP learns them within seconds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from rankdeck.data.digits import Digits
from rankdeck.data.loader import build_loader
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.models import mlp


def test_the_spec_matches_the_loaded_data() -> None:
    card = Digits({}).describe()
    train, heldout = Digits({}).load()
    assert (len(train), len(heldout)) == (card.train_samples, card.heldout_samples)
    inputs, target = train[0]
    assert (inputs.shape, inputs.dtype) == (card.input_shape, card.input_dtype)
    assert (target.shape, target.dtype) == (card.target_shape, card.target_dtype)
    assert (
        train.targets.unique().tolist() == heldout.targets.unique().tolist() == list(range(card.classes or 0))
    )


def test_samples_are_from_scikit_learn_scaled_to_0_and_1() -> None:
    train, heldout = Digits({}).load()
    pixels = torch.cat([train.inputs, heldout.inputs])
    assert (pixels.min(), pixels.max()) == (0, 1)
    bunch = load_digits()
    assert sorted(pixels.flatten(1).sum(1).mul(16).tolist()) == sorted(bunch.data.sum(1).tolist())


def test_the_split_is_stratified_and_disjoint() -> None:
    train, heldout = Digits({}).load()
    assert set(heldout.targets.bincount().tolist()) <= {34, 35, 36}
    train_inputs = {inputs.numpy().tobytes() for inputs in train.inputs}
    assert not any(inputs.numpy().tobytes() in train_inputs for inputs in heldout.inputs)


def test_an_mlp_reaches_95_percent_of_heldout_digits() -> None:
    torch.manual_seed(0)
    train, heldout = Digits({}).load()
    model = mlp.build(inputs=64, classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for inputs, targets in build_loader(train, TrainBatchSampler(len(train), 32, steps=400)):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    right = (model(heldout.inputs).argmax(1) == heldout.targets).float().mean()
    assert right >= 0.95
