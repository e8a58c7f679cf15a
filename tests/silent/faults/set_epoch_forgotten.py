"""A DistributedSampler without set_epoch gives the same order in every epoch. An expert would call it before
each epoch. Class: samples, order."""

# ranks: 2
# expect: set-epoch-forgotten
# words: set_epoch

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

toy.init_group()
dataset = toy.regression_data()
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset), drop_last=True)
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
toy.end_group()
