"""Models as a person writes them, for configurations that name this file."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def tiny_conv(width: int = 8) -> nn.Module:
    """Digits (B, 1, 8, 8) -> logits (B, 10), with batch norms in a list of blocks."""
    blocks = [
        nn.Sequential(
            nn.Conv2d(1 if index == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        for index in range(3)
    ]
    return nn.Sequential(nn.Sequential(*blocks), nn.Flatten(), nn.Linear(64 * width, 10))


class Scaled(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10), with a scalar parameter, a buffer, a layer for odd steps.

    In every other forward the middle layer takes no part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.linspace(0, 1, 16), persistent=False)
        self.num_forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1)) + self.shift
        self.num_forwards += self.training
        if self.num_forwards % 2:
            hidden = self.middle(hidden).relu()
        out: Tensor = self.leave(hidden) * self.scale
        return out


def scaled() -> nn.Module:
    return Scaled()
