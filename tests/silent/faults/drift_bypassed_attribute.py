"""The loss calls ddp.module, so the reducer never sees a backward pass. An expert would call the wrapper
itself. Class: weights drift, wrapper bypassed."""

# ranks: 2
# expect: ranks-drifted
# words: bypass|wrapped model|ddp\(x\)

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp(out=4))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
data = toy.class_data(seed=5 + toy.RANK)
for x, y in toy.batches(60, data):
    loss = torch.nn.functional.cross_entropy(model.module(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
toy.end_group()
