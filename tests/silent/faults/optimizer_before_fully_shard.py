"""The optimizer is created before fully_shard, which replaces parameters by sharded ones. An expert would
swap the two lines. Class: optimizer of other weights, FSDP2."""

# ranks: 2
# expect: optimizer-without-gradients
# words: fully_shard

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.silent import toy

toy.init_group()
mesh = init_device_mesh("cpu", (toy.WORLD,))
model = toy.mlp(hidden=64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for step in range(50):
    x, y = toy.rank_batch(step)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
toy.end_group()
