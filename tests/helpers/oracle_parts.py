"""A model, data and an optimizer as a person writes them, which a run and the oracle (oracle.py) both use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, CLASSES, NUM_TRAIN, NUM_HELDOUT = 12, 5, 50, 29
READ: list[int] = []
"""The training samples that this process has read, in order."""
SEEN: list[Tensor] = []
"""What went into the last layer of `dropping` in this process, forward by forward."""


def with_norm() -> nn.Module:
    """Batch norm and dropout-free: train and eval mode differ, and nothing is random."""
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, CLASSES))


def plain() -> nn.Module:
    """A sample's output depends on no other sample."""
    layers = (nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, CLASSES))
    return nn.Sequential(*layers)


class _Noting(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        SEEN.append(inputs.detach().clone())
        return super().forward(inputs)


def dropping(dropout: float) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.Dropout(dropout), _Noting(64, CLASSES))


def tensors(masked: float, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (N, 12) and targets (N,), a share of them masked, the first ones more often."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, WIDTH, generator=generator)
    targets = inputs[:, :CLASSES].argmax(1)
    share = torch.linspace(min(1.0, 2 * masked), 0, num_samples)
    targets[torch.rand(num_samples, generator=generator) < share] = -100
    return inputs, targets


class _Rows:
    is_random = False  # what may be random is read a second time, to see whether it is

    def __init__(self, inputs: Tensor, targets: Tensor, *, noted: bool) -> None:
        self._inputs, self._targets, self._noted = inputs, targets, noted

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self._noted:
            READ.append(index)
        return self._inputs[index], self._targets[index]


def rows(masked: float = 0.0) -> tuple[_Rows, _Rows]:
    """As many samples as neither batches nor devices divide."""
    return (
        _Rows(*tensors(masked, NUM_TRAIN, seed=1), noted=True),
        _Rows(*tensors(masked, NUM_HELDOUT, seed=2), noted=False),
    )


def alike() -> tuple[_Rows, None]:
    """One sample again and again."""
    inputs, targets = tensors(0.0, 1, seed=1)
    return _Rows(inputs.expand(32, -1), targets.expand(32), noted=False), None


class TwoRates(torch.optim.SGD):
    """Biases learn twice as fast, in a group of their own."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, **options: Any) -> None:
        every = list(parameters)
        weights, biases = ([p for p in every if (p.ndim > 1) == wide] for wide in (True, False))
        super().__init__([{"params": weights}, {"params": biases, "lr": 2 * lr}], lr=lr, **options)
