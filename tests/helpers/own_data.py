"""Data sets as a person writes them, for configurations that name this file."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor


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
