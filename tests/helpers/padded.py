"""A person's own data whose batches are padded to their longest sample, and a model for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankdeck.config import RunConfig
from rankdeck.planner.fake_pass import PassRequest, fake_pass


class Padded:
    """Tokens and their classes; what was filled up does not count."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.read_batch([index])
        return inputs[0], targets[0]

    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        longest = max(self.lengths[index] for index in indices)
        inputs = torch.zeros(len(indices), longest, dtype=torch.int64)
        targets = torch.full_like(inputs, -100)
        for row, index in enumerate(indices):
            inputs[row, : self.lengths[index]] = index % 50
            targets[row, : self.lengths[index]] = index % 7
        return inputs, targets


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


def with_long(short: int = 16, long: int = 64, every: int = 96) -> list[int]:
    """One sample of `every` is long, the others short."""
    return [long if index % every == every - 1 else short for index in range(192)]


def mostly_short(short: int = 16) -> tuple[Padded, None]:
    return Padded(with_long(short)), None


def often_long() -> tuple[Padded, None]:
    """So that every rank meets a long one in twelve steps."""
    return Padded(with_long(every=4)), None


def of_all_lengths() -> tuple[Padded, Padded]:
    """Held-out samples too; hardly two batches are alike."""
    return Padded([8 + index * 37 % 61 for index in range(192)]), Padded([80 - index for index in range(20)])


def pictures() -> tuple[Pictures, None]:
    return Pictures(with_long()), None


def stacked() -> tuple[Stacked, None]:
    return Stacked(), None


def broken() -> tuple[Padded, None]:
    raise OSError("no such luck")


def model() -> nn.Module:
    hidden = nn.Sequential(nn.Linear(256, 256), nn.GELU())
    return nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 256), nn.GELU(), *hidden, nn.Linear(256, 50))


def most_bytes(config: RunConfig) -> int:
    """What `single` holds at its peak where every sample has the shape of the first."""
    return fake_pass(PassRequest(config, 1)).devices[0].peak_bytes
