"""Noise is added to the weights after each step, drawn from a generator that is seeded with the rank. An
expert would use one seed for noise on weights. Class: weights drift, randomness."""

# ranks: 2
# expect: ranks-drifted
# words: outside of optimizer.step|seed|random

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
torch.manual_seed(0)
model = DistributedDataParallel(toy.mlp(hidden=24))
torch.manual_seed(100 + toy.RANK)
langevin = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(60):
    x, y = toy.rank_batch(step)
    langevin.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    langevin.step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=1e-3)
toy.end_group()
