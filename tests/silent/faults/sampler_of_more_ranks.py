"""num_replicas counts two nodes although one is used: half of the samples belong to ranks that do not
exist. An expert would leave it to the process group. Class: samples, left out."""

# ranks: 2
# expect: samples-left-out
# words: num_replicas|share|ranks

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

NODES = 2
toy.init_group()
dataset = toy.class_data(512)
sampler = DistributedSampler(dataset, num_replicas=NODES * toy.WORLD, rank=toy.RANK)
ddp = DistributedDataParallel(toy.mlp(out=4))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
for epoch in range(6):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
toy.end_group()
