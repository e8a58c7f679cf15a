"""The encoder is frozen after DDP was created with find_unused_parameters off and a static bucket list. An
expert would freeze before wrapping. Class: frozen after wrapping."""

# ranks: 2
# expect: frozen-after-wrapping
# words: before wrapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
ddp = DistributedDataParallel(model, find_unused_parameters=True)
for parameter in model[0].parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
for step in range(50):
    x, y = toy.rank_batch(step)
    optimizer.zero_grad()
    nn.functional.mse_loss(ddp(x), y).backward()
    optimizer.step()
toy.end_group()
