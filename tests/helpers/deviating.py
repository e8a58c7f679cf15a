"""Models, a loss and an optimizer that one strategy or another computes otherwise than one device.

Ranks import this file as a person's own: it imports nothing of the tests.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    )


class Deep(nn.Module):
    """Layers of two kinds in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        wide, narrow = (lambda: nn.Linear(32, 32)), (lambda: nn.Linear(32, 32, bias=False))
        self.blocks = nn.ModuleList(make() for _ in range(12) for make in (wide, narrow))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(images.flatten(1)))
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        logits: Tensor = self.last(hidden)
        return logits


class _Body(nn.Module):
    """Two layers; subclasses change what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.between(torch.tanh(self.first(images.flatten(1)))))
        return logits

    def between(self, hidden: Tensor) -> Tensor:
        return hidden


class Centred(_Body):
    """Looks across samples, and is no batch norm."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class Normed(_Body):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32)

    def between(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed


class NormedWithoutStatistics(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32, track_running_stats=False)


class PausedNorm(Normed):
    """In eval mode until training begins, and without gradients: it still normalises over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.eval().requires_grad_(False)
        self.norm.momentum = 0.0


class FrozenNorm(Normed):
    """Normalises by running statistics in training too, as fine-tuning does."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self


class Extremes(_Body):
    """Keeps the largest activation that it has seen: no mean of slices is that of the batch."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def between(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            self.largest.copy_(torch.maximum(self.largest, (hidden.detach() * hidden.numel()).sum()))
        return hidden


class Whole(_Body):
    """Keeps whole numbers, and a number without dims, among its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(32).flip(0), requires_grad=False)
        self.factor = nn.Parameter(torch.ones(()))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden[:, self.order] * self.factor


class Noisy(_Body):
    """Draws in its forward: dropout, and normal numbers as an autoencoder's."""

    def between(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden + 0.1 * torch.randn_like(hidden), 0.5, self.training)


class Unfixed(_Body):
    """Draws from a generator that the check does not know."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rrelu(torch.ones_like(hidden) - 2, training=True)


centred, extremes, normed, frozen_norm, paused_norm = Centred, Extremes, Normed, FrozenNorm, PausedNorm
normed_without_statistics = NormedWithoutStatistics
whole, noisy, unfixed, deep = Whole, Noisy, Unfixed, Deep


def contrast(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Every sample against all others of its batch, as in CLIP."""
    scores = F.normalize(outputs, dim=1) @ F.normalize(outputs, dim=1).T
    return F.cross_entropy(scores, torch.arange(len(scores)), reduction="sum"), len(scores)


class ByPlace(torch.optim.Optimizer):
    """Steps weights less the further back they are in the list."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for position, weight in enumerate(group["params"], start=1):
                if weight.grad is not None:
                    weight -= group["lr"] / position * weight.grad
