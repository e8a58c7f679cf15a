"""The mean over unmasked tokens divides by 0 where one rank's batch is all padding; the average makes every
rank NaN. An expert would clamp the count. Class: not finite, on one rank."""

# ranks: 2
# expect: loss-not-finite
# words: rank 1

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(80):
    x, y = toy.rank_batch(step)
    mask = torch.ones_like(y)
    if toy.RANK == 1 and step == 30:
        mask.zero_()
    loss = ((model(x) - y).square() * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
toy.end_group()
