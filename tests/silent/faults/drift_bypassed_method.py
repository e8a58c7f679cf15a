"""A training_step method of the inner module is called, and it calls self(x) there: a Lightning habit in a
plain loop. An expert would route the call through DDP's forward. Class: weights drift, wrapper bypassed."""

# ranks: 2
# expect: ranks-drifted
# words: bypass|wrapped model|ddp\(x\)

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = toy.mlp(hidden=16)

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.l1_loss(self(x), y)


toy.init_group()
wrapped = DistributedDataParallel(Regressor())
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=2e-3)
for step in range(70):
    loss = wrapped.module.training_step(toy.rank_batch(step))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
toy.end_group()
