"""Two ranks with fully_shard on CPUs. Kinds: the optimizer created after sharding, accumulation without
synchronisation until the last micro-batch, mixed precision."""

# ranks: 2
# args: --kind plain
# args: --kind accumulated
# args: --kind mixed

import argparse

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
toy.init_group()
mesh = init_device_mesh("cpu", (toy.WORLD,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if kind == "mixed" else MixedPrecisionPolicy()
model = toy.mlp(hidden=64, dropout=0.1)
for layer in (model[0], model[3]):
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
EVERY = 4 if kind == "accumulated" else 1
for micro in range(80):
    x, y = toy.rank_batch(micro)
    is_last = micro % EVERY == EVERY - 1
    model.set_requires_gradient_sync(is_last)
    loss = torch.nn.functional.mse_loss(model(x).float(), y) / EVERY
    loss.backward()
    if is_last:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
toy.end_group()
