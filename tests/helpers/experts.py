"""Mixtures of experts as people write them: which expert computes a row is known only with values.

Digits (B, 1, 8, 8) -> logits (B, 10).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 64


class Experts(nn.Module):
    def __init__(self, routing: str, num_experts: int = 4) -> None:
        super().__init__()
        self.routing = routing
        self.gate = nn.Linear(WIDTH, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return x + (self._by_place if self.routing == "where" else self._by_mask)(x, shares, chosen)

    def _by_place(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            out.index_add_(0, rows, expert(x[rows]) * shares[rows, slots, None])
        return out

    def _by_mask(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """Which also leaves out experts that nobody chose."""
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).any(-1)
            if mine.any():
                share = (shares * (chosen == index)).sum(-1)
                out[mine] = expert(x[mine]) * share[mine].unsqueeze(-1)
        return out


class Distinct(nn.Module):
    """Works out what is the same only once: how many there are is known only with values."""

    def __init__(self) -> None:
        super().__init__()
        self.of_shade, self.head = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        shades, inverse = torch.unique(pixels.flatten(1), return_inverse=True)
        hidden = self.of_shade(shades.unsqueeze(1)).relu()
        logits: Tensor = self.head(hidden[inverse].mean(1))
        return logits


def distinct() -> nn.Module:
    return Distinct()


def experts(routing: str) -> nn.Module:
    layers = [Experts(routing) for _ in range(2)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 10))
