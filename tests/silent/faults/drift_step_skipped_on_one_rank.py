"""A rank leaves out its step where its own gradient norm is large before averaging (a guard against bad
batches): the others step. An expert would decide on all ranks. Class: weights drift, skipped steps."""

# ranks: 2
# expect: ranks-drifted
# words: skip|step on|number of steps|different steps|outside of optimizer.step

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(80):
    x, y = toy.rank_batch(step)
    y = y * (4 if toy.RANK == 1 and step % 7 == 3 else 1)
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if loss.item() > 2.0:
        continue
    optimizer.step()
toy.end_group()
