"""Gradients are averaged by hand, but each rank seeds with its number before it builds the model: the ranks
average gradients of different models. An expert would broadcast the weights first. Class: weights drift."""

# ranks: 2
# expect: ranks-drifted
# words: seed|broadcast|initiali[sz]ed

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from tests.silent import toy

toy.init_group()
torch.manual_seed(1234 + toy.RANK)
model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(64):
    x, y = toy.rank_batch(step)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= toy.WORLD
    optimizer.step()
toy.end_group()
