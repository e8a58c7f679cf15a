"""The forward pass of the last micro-batch runs inside no_sync() and only its backward pass outside: DDP
decides in the forward pass. An expert would move the forward pass out as well. Class: weights drift."""

# ranks: 2
# expect: ranks-drifted
# words: no_sync

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp())
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = torch.nn.MSELoss()


def micro_loss(number):
    inputs, targets = toy.rank_batch(number)
    return criterion(model(inputs), targets) / 2


for step in range(60):
    opt.zero_grad(set_to_none=True)
    with model.no_sync():
        micro_loss(2 * step).backward()
        last = micro_loss(2 * step + 1)
    last.backward()
    opt.step()
toy.end_group()
