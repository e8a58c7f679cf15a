"""Tiny data, models and process groups, so that the scripts of this package are short."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))

torch.set_num_threads(1)
torch.manual_seed(0)


def init_group() -> None:
    """Create a gloo group of all ranks."""
    dist.init_process_group("gloo")


def end_group() -> None:
    """Wait for all ranks, then destroy their group."""
    dist.barrier()
    dist.destroy_process_group()


def regression_data(num: int = 256, width: int = 8, seed: int = 1) -> TensorDataset:
    """Return inputs with targets that a small network can learn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, width, generator=generator)
    return TensorDataset(x, (x[:, :2].prod(1, keepdim=True) + x.sum(1, keepdim=True)) / 3)


def class_data(num: int = 256, width: int = 8, classes: int = 4, seed: int = 1) -> TensorDataset:
    """Return clusters, one per class, in mixed order."""
    generator = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(classes, width, generator=generator)
    y = torch.randint(classes, (num,), generator=generator)
    return TensorDataset(centers[y] + torch.randn(num, width, generator=generator), y)


def token_data(num: int = 128, length: int = 12, words: int = 20, seed: int = 1) -> torch.Tensor:
    """Return sequences in which each token follows from the one before it."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(words, (num, 1), generator=generator)
    return (start + 3 * torch.arange(length)) % words


def rank_batch(step: int, size: int = 16, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's regression batch for a step."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    x = torch.randn(size, width, generator=generator)
    return x, x.sum(1, keepdim=True) / 3


def mlp(width: int = 8, out: int = 1, hidden: int = 32, dropout: float = 0.0) -> nn.Sequential:
    """Return a network of two layers, with dropout between them where it is above 0."""
    layers: list[nn.Module] = [nn.Linear(width, hidden), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden, out))


def norm_net(width: int = 8, out: int = 1, hidden: int = 32) -> nn.Sequential:
    """Return a network with a batch norm."""
    return nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))


def batches(num: int, data: TensorDataset | None = None, size: int = 16) -> Iterator[Any]:
    """Yield `num` shuffled batches, over as many passes as this takes."""
    loader = DataLoader(regression_data() if data is None else data, size, shuffle=True)
    done = 0
    while True:
        for batch in loader:
            yield batch
            done += 1
            if done == num:
                return
