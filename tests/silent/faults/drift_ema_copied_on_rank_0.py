"""Every 20 steps rank 0 takes over its moving average, the other rank does not. An expert would copy it on
every rank, or broadcast it. Class: weights drift, weights changed on one rank."""

# ranks: 2
# expect: ranks-drifted
# words: load_state_dict|rank 0 only|EMA

import copy

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
net = toy.mlp()
average = copy.deepcopy(net).requires_grad_(False)
ddp = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(ddp.parameters(), 2e-3)
for step in range(80):
    x, y = toy.rank_batch(step)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(ddp(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
    if step % 20 == 19 and toy.RANK == 0:
        net.load_state_dict(average.state_dict())
toy.end_group()
