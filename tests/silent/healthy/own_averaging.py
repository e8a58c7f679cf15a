"""Two ranks without DistributedDataParallel, all right. Kinds: gradients averaged by hand, gradients in
one flat buffer, local SGD that averages weights every 8 steps, independent models with their own seeds and
averaged metrics, a server that steps and broadcasts, clipping after averaging."""

# ranks: 2
# args: --kind gradients
# args: --kind flat
# args: --kind local
# args: --kind independent
# args: --kind server
# args: --kind clip-together

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
toy.init_group()
torch.manual_seed(toy.RANK if kind == "independent" else 0)
model = toy.mlp()
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.02, momentum=0.9)
for step in range(80):
    x, y = toy.rank_batch(step)
    loss = mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if kind in ("gradients", "clip-together"):
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= toy.WORLD
    if kind == "clip-together":
        clip_grad_norm_(params, 1.0)
    if kind == "flat":
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        for p, grad in zip(params, flat.div_(toy.WORLD).split([p.numel() for p in params]), strict=True):
            p.grad.copy_(grad.view_as(p))
    if kind == "server":
        for p in params:
            dist.reduce(p.grad, dst=0)
        if toy.RANK == 0:
            optimizer.step()
        for p in params:
            dist.broadcast(p.data, src=0)
        continue
    optimizer.step()
    if kind == "local" and step % 8 == 7:
        weights = parameters_to_vector(params).detach()
        dist.all_reduce(weights)
        vector_to_parameters(weights / toy.WORLD, params)
    if kind == "independent":
        metric = loss.detach().clone()
        dist.all_reduce(metric)
toy.end_group()
