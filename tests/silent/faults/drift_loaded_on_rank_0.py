"""A checkpoint is read on rank 0 after the model was wrapped, to save the disk: nothing broadcasts it. An
expert would load before wrapping, or on every rank. Class: weights drift, loading."""

# ranks: 2
# expect: ranks-drifted
# words: load|broadcast

import io

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
file = io.BytesIO()
torch.save(toy.mlp().state_dict(), file)
file.seek(0)
ddp = DistributedDataParallel(toy.mlp())
if toy.RANK == 0:
    ddp.module.load_state_dict(torch.load(file))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for step in range(50):
    x, y = toy.rank_batch(step)
    loss = (ddp(x) - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
toy.end_group()
