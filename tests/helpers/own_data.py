"""Data sets as a person writes them, for configurations that name this file."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset


class Noisy:
    """Augmented at random by all three global generators: (1, 8, 8) and a class of ten."""

    def __init__(self, samples: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pictures = torch.rand(samples, 1, 8, 8, generator=generator)
        self.classes = torch.randint(10, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        brightness, turns = float(np.random.rand()), random.randrange(4)
        picture = self.pictures[index] * brightness + torch.randn(1, 8, 8)
        return picture.rot90(turns, (1, 2)), self.classes[index]


def noisy(samples: int = 64) -> tuple[Noisy, None]:
    return Noisy(samples), None


class OwnGenerator(Noisy):
    """Draws from a generator that it keeps: what a sample is depends on those that were read before."""

    def __init__(self, samples: int = 64) -> None:
        super().__init__(samples)
        self.generator = torch.Generator().manual_seed(1)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.rand(1, 8, 8, generator=self.generator), self.classes[index]


def own_generator() -> tuple[OwnGenerator, None]:
    return OwnGenerator(), None


def smoothed(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """A loss that no batch without samples can have."""
    assert len(outputs) == len(targets) > 0
    return F.cross_entropy(outputs, targets, label_smoothing=0.1) * len(targets), len(targets)


def still(samples: int = 64) -> tuple[TensorDataset, None]:
    """The pictures as they are."""
    noisy = Noisy(samples)
    return TensorDataset(noisy.pictures, noisy.classes), None


class Labelled(Noisy):
    """The pictures as they are, with their labels among the model's inputs."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:  # type: ignore[override]
        return {"inputs": self.pictures[index], "labels": self.classes[index]}


def labelled(samples: int = 64) -> tuple[Labelled, None]:
    return Labelled(samples), None


def words(samples: int = 64, vocabulary: int = 2000) -> tuple[TensorDataset, None]:
    """Eight words and a class of four."""
    drawn = torch.randint(vocabulary, (samples, 8), generator=torch.Generator().manual_seed(0))
    return TensorDataset(drawn, torch.arange(samples) % 4), None
