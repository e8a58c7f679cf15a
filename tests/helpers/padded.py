"""A person's own data whose batches are padded to their longest sample, and a model for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankdeck.config import RunConfig
from rankdeck.planner.fake_pass import PassRequest, fake_pass


class Padded:
    """Tokens: every 96th sample is long, the others short."""

    def __init__(self, short: int, long: int = 64) -> None:
        self.lengths = [long if index % 96 == 95 else short for index in range(192)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.read_batch([index])
        return inputs[0], targets[0]

    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        longest = max(self.lengths[index] for index in indices)
        inputs, targets = (
            torch.zeros(len(indices), longest, dtype=torch.int64),
            torch.zeros(len(indices), longest),
        )
        for row, index in enumerate(indices):
            inputs[row, : self.lengths[index]] = index % 50
        return inputs, targets.long()


class Pictures(Padded):
    """Three channels of as many columns as the sample is long, and a class."""

    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        longest = max(self.lengths[index] for index in indices)
        return torch.zeros(len(indices), 3, longest), torch.zeros(len(indices), dtype=torch.int64)


class Stacked:
    """Samples of one shape, which the loader stacks."""

    def __len__(self) -> int:
        return 192

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(16, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)


def mostly_short(short: int = 16) -> tuple[Padded, None]:
    return Padded(short), None


def pictures() -> tuple[Pictures, None]:
    return Pictures(16), None


def stacked() -> tuple[Stacked, None]:
    return Stacked(), None


def broken() -> tuple[Padded, None]:
    raise OSError("no such luck")


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 50))


def most_bytes(config: RunConfig) -> int:
    """What `single` holds at its peak where every sample has the shape of the first."""
    return fake_pass(PassRequest(config, 1)).devices[0].peak_bytes
