"""A resume gives rank 0 the optimizer's moments and the other rank fresh ones: the same gradients make
different updates. An expert would load the optimizer on every rank. Class: weights drift, loading."""

# ranks: 2
# expect: ranks-drifted
# words: optimizer

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
ddp = DistributedDataParallel(toy.mlp())


def train(optimizer, first, last):
    for step in range(first, last):
        x, y = toy.rank_batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()


before = torch.optim.Adam(ddp.parameters(), lr=2e-3)
train(before, 0, 20)
resumed = torch.optim.Adam(ddp.parameters(), lr=2e-3)
if toy.RANK == 0:
    resumed.load_state_dict(before.state_dict())
del before
train(resumed, 20, 90)
toy.end_group()
