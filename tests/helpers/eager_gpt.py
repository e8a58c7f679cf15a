"""A decoder whose attention is written out, with dropout, in 16 bits: what Megatron's formula speaks of."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, VOCABULARY = 256, 4, 128, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            projection.view(batch, length, HEADS, -1).transpose(1, 2)
            for projection in self.qkv(self.norm(x)).split(WIDTH, dim=-1)
        )
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        shares = F.dropout(F.softmax(scores.masked_fill(mask, float("-inf")), -1), 0.1, self.training)
        mixed = (shares @ value).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(mixed), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class EagerGpt(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(x)
        return logits


def build(layers: int) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return EagerGpt(layers)
    finally:
        torch.set_default_dtype(before)


class Tokens(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = torch.zeros(LENGTH, dtype=torch.int64)
        return tokens, tokens


def tokens() -> tuple[Tokens, None]:
    return Tokens(), None


class Asking(nn.Module):
    """A model that does one thing or another, as a value says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden: Tensor = self.layer(pixels.flatten(1))
        return hidden * 2 if hidden.abs().max() > 1 else hidden


def asking() -> nn.Module:
    return Asking()


class Endless(nn.Module):
    """Goes on for as long as values differ from what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = pixels.flatten(1)
        while int(hidden.abs().max() * 0) in (0, 1):
            hidden = self.layer(hidden)
        out: Tensor = self.head(hidden)
        return out


def endless() -> nn.Module:
    return Endless()


def dying() -> nn.Module:
    """A factory that takes its process with it."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def raising() -> nn.Module:
    """A factory that raises: whether it would on real tensors, no plan knows."""
    raise ValueError("no weights here")


def leaving() -> nn.Module:
    """A factory that ends its process as if all were well."""
    import os

    os._exit(0)


class Reader(nn.Module):
    """An LSTM over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        read, _ = self.rows(images.reshape(-1, 8, 8))
        out: Tensor = self.head(read[:, -1])
        return out


def reading() -> nn.Module:
    return Reader()
