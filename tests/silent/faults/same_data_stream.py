"""An IterableDataset yields the whole stream on every rank. An expert would skip to every n-th sample, by
rank and worker. Class: samples, the same on all ranks, streaming."""

# ranks: 2
# expect: same-data-on-all-ranks
# words: sampl|rank

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from tests.silent import toy


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*toy.regression_data(400).tensors, strict=True)


toy.init_group()
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(2):
    for x, y in DataLoader(Stream(), batch_size=10):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
toy.end_group()
