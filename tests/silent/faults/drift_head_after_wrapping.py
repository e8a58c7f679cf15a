"""A new head is put into the module after DDP was created, so the reducer does not know its parameters. An
expert would change the model before wrapping it. Class: weights drift, a part is not averaged."""

# ranks: 2
# expect: ranks-drifted
# words: after (DistributedDataParallel|wrapping)|before wrapping|averag

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
ddp = DistributedDataParallel(toy.mlp(out=10), find_unused_parameters=True)
ddp.module[2] = nn.Linear(32, 4)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
for x, y in toy.batches(60, toy.class_data(seed=20 + toy.RANK)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimizer.step()
toy.end_group()
