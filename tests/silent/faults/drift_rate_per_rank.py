"""A linear scaling rule multiplies the rate by rank + 1 instead of the number of ranks. An expert would
scale by the world size. Class: weights drift, different learning rates."""

# ranks: 2
# expect: ranks-drifted
# words: learning rate

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
base_rate = 0.01
model = DistributedDataParallel(toy.norm_net(), broadcast_buffers=False)
sgd = torch.optim.SGD(model.parameters(), lr=base_rate * (toy.RANK + 1), momentum=0.9, nesterov=True)
for step in range(50):
    x, y = toy.rank_batch(step)
    sgd.zero_grad()
    torch.nn.functional.huber_loss(model(x), y).backward()
    sgd.step()
toy.end_group()
