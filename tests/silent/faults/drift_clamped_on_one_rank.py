"""The weights of a critic are clipped to a box on one rank only, where a flag was left in. An expert would
clip on every rank. Class: weights drift, weights changed on one rank."""

# ranks: 2
# expect: ranks-drifted
# words: outside of optimizer.step|clamp

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
critic = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for step in range(80):
    x, y = toy.rank_batch(step)
    loss = torch.nn.functional.mse_loss(critic(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if toy.RANK == 1 and step % 8 == 5:
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)
toy.end_group()
