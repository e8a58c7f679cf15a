"""The sampler is given rank=0 on every rank (the local rank of a node with one device). An expert would pass
the global rank, or none. Class: samples, the same on all ranks."""

# ranks: 2
# expect: same-data-on-all-ranks
# words: sampler|rank

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.silent import toy

toy.init_group()
dataset = toy.class_data()
sampler = DistributedSampler(dataset, num_replicas=toy.WORLD, rank=0)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
ddp = DistributedDataParallel(toy.mlp(out=4))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
toy.end_group()
