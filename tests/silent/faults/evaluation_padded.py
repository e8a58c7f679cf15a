"""DistributedSampler repeats one of 101 held-out samples, and the sums of both ranks are added up.
An expert would give each rank its own part. Class: samples that an evaluation counts twice."""

# ranks: 2
# expect: evaluation-padded
# words: 1 of 101

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held_out = toy.regression_data(101, seed=2)
loader = DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False))
for step in range(60):
    x, y = toy.rank_batch(step)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    if step % 20 == 19:
        total = torch.zeros(2)
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                total += torch.tensor([mse_loss(model.module(x), y, reduction="sum"), len(x)])
        model.train()
        dist.all_reduce(total)
        print("held-out loss", (total[0] / total[1]).item())
toy.end_group()
