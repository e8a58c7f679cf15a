"""Trainings that differ in how they go through their data, each in a forked child: scene i is rank i."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


class OwnOrder(DistributedSampler):  # type: ignore[type-arg]
    """Another order in each pass by a way of its own."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(torch.randperm(len(self.dataset)).tolist())  # type: ignore[arg-type]


def data() -> Dataset[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(32, 16, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    )


def sampler(rank: int = 0, *, shuffle: bool = True) -> DistributedSampler:  # type: ignore[type-arg]
    return DistributedSampler(data(), 2, rank, shuffle=shuffle)


def train(loader: DataLoader, norm: nn.Module, *, announces_epochs: bool = False, passes: int = 3) -> None:  # type: ignore[type-arg]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), norm, nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(passes):
        if announces_epochs:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            sum(1 for _ in loader)  # an evaluation is no pass


def train_on_bags() -> None:
    """Train on one set of samples per batch."""
    bags = TensorDataset(torch.randn(16, 8, 16), torch.randint(0, 4, (16,)))
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bag, y in DataLoader(bags, 1):
        optimizer.zero_grad()
        F.cross_entropy(model(bag[0]).mean(0, keepdim=True), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


SCENES = [
    lambda: train(DataLoader(data(), 4, sampler=sampler()), nn.BatchNorm1d(8)),
    lambda: train(DataLoader(data(), 4, sampler=sampler(1)), nn.LayerNorm(8), announces_epochs=True),
    lambda: train(
        DataLoader(data(), 4, sampler=sampler(), num_workers=1, persistent_workers=True),
        nn.BatchNorm1d(8).eval(),
    ),
    lambda: train(DataLoader(data(), 4, sampler=sampler(shuffle=False)), nn.Identity()),
    lambda: train(DataLoader(data(), 4, sampler=OwnOrder(data(), 2, 0)), nn.Identity()),
    lambda: train(DataLoader(data(), 4), nn.Identity()),
    lambda: train(DataLoader(data(), 4), nn.Identity(), passes=1),
    lambda: train(DataLoader(TensorDataset(torch.zeros(32, 16), torch.zeros(32).long()), 4), nn.Identity()),
    train_on_bags,
]


def main() -> int:
    import torch._dynamo  # noqa: F401  # Each optimizer's first step would import it, in each child.

    gc.freeze()  # What a child goes over for garbage it copies.
    status = 0
    for rank, scene in enumerate(SCENES):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = str(rank)
            try:
                scene()  # type: ignore[no-untyped-call]
            except Exception:
                traceback.print_exc()
                status = 9
            atexit._run_exitfuncs()
            os._exit(status)
        status = max(status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return status


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
