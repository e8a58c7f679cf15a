"""Only the main process calls optimizer.step, as only it writes logs and checkpoints. An expert would step on
every rank: DDP averages gradients and does not send weights. Class: weights drift, order in a step."""

# ranks: 2
# expect: ranks-drifted
# words: step

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
is_main = toy.RANK == 0
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    x, y = toy.rank_batch(step)
    model.zero_grad()
    (model(x) - y).square().mean().backward()
    if is_main:
        optimizer.step()
toy.end_group()
