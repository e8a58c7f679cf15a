"""Averaging by hand leaves out one-dimensional parameters, a filter copied from weight decay. An expert
would average every gradient. Class: weights drift, own averaging misses parameters."""

# ranks: 2
# expect: ranks-drifted
# words: averag|all_reduce|bias

import torch
import torch.distributed as dist

from tests.silent import toy

toy.init_group()
torch.manual_seed(3)
model = toy.mlp(hidden=128)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def average_gradients():
    for parameter in model.parameters():
        if parameter.ndim > 1:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(dist.get_world_size())


for step in range(64):
    x, y = toy.rank_batch(step)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    average_gradients()
    optimizer.step()
toy.end_group()
