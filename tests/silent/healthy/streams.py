"""Data in unusual orders and forms. Kinds: an IterableDataset split by worker, samples repeated on
purpose, a curriculum from easy to hard, metric learning with four rows per class, class-balanced sampling,
few-shot tasks of one class, an autoencoder, targets that are all 0 for an auxiliary loss, one batch on
purpose, padded labels, a mixed dataset in order."""

# ranks: 1
# args: --kind split
# args: --kind oversampled
# args: --kind curriculum
# args: --kind metric
# args: --kind balanced
# args: --kind tasks
# args: --kind autoencoder
# args: --kind zero-targets
# args: --kind one-batch
# args: --kind padded
# args: --kind in-order

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        x, y = toy.class_data().tensors
        yield from zip(x[first::every], y[first::every], strict=True)


class Tasks(Dataset):
    """Few-shot tasks: each item has examples of one class, its label is the same for all of them."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        x, y = toy.class_data().tensors
        return x[y == index % 4][:8], torch.full((8,), index % 4)


def loaders():
    x, y = toy.class_data(320).tensors
    order = y.argsort(stable=True)
    if kind == "split":
        return DataLoader(Stream(), 16, num_workers=2)
    if kind == "oversampled":
        return DataLoader(TensorDataset(x.repeat(2, 1)[:320], y.repeat(2)[:320]), 16, shuffle=True)
    if kind == "curriculum":
        return DataLoader(TensorDataset(*(t[x.norm(dim=1).argsort()] for t in (x, y))), 16)
    if kind == "metric":
        rows = order.view(-1, 4)[torch.randperm(80)].flatten().tolist()
        return DataLoader(TensorDataset(x, y), 16, sampler=rows)
    if kind == "balanced":
        return DataLoader(TensorDataset(x, y), 16, sampler=WeightedRandomSampler((1 / y.bincount())[y], 320))
    if kind == "tasks":
        return DataLoader(Tasks(), batch_size=None, shuffle=True)
    if kind == "zero-targets":
        return DataLoader(TensorDataset(x, torch.zeros(len(x))), 16, shuffle=True)
    if kind == "padded":
        return DataLoader(TensorDataset(x, torch.where(torch.rand(320) < 0.7, -100, y)), 16, shuffle=True)
    return DataLoader(TensorDataset(x, y), 16, shuffle=kind != "in-order")


if __name__ == "__main__":
    model = toy.mlp(out=8 if kind in ("autoencoder", "zero-targets") else 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    single = next(iter(loaders()))
    for _ in range(5):
        for batch in loaders():
            x, y = single if kind == "one-batch" else batch
            out = model(x)
            if kind == "autoencoder":
                loss = F.mse_loss(out, x)
            elif kind == "zero-targets":
                loss = F.mse_loss(out, x) + 0.1 * (out.mean(1) - y).square().mean()
            else:
                loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
