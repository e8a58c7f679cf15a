"""The first micro-batch of a window is averaged and the last one is not: an inverted condition. An expert
would turn the condition of no_sync() around. Class: weights drift, synchronisation left out."""

# ranks: 2
# expect: ranks-drifted
# words: no_sync

from contextlib import nullcontext

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
ddp = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
ACCUMULATE = 4
for micro in range(160):
    x, y = toy.rank_batch(micro)
    is_last = (micro + 1) % ACCUMULATE == 0
    with ddp.no_sync() if is_last else nullcontext():
        (mse_loss(ddp(x), y) / ACCUMULATE).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
toy.end_group()
