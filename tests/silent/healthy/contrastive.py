"""Two ranks share their embeddings. Kinds: all_gather with the own rows put back, all_gather with
gradients, a momentum encoder for the keys."""

# ranks: 2
# args: --kind gathered
# args: --kind autograd
# args: --kind momentum

import argparse
import copy

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
toy.init_group()
net = toy.mlp(8, 16)
momentum = copy.deepcopy(net).requires_grad_(False)
ddp = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)


def gather(rows):
    if kind == "autograd":
        return torch.cat(torch.distributed.nn.all_gather(rows))
    everyone = [torch.empty_like(rows) for _ in range(toy.WORLD)]
    dist.all_gather(everyone, rows.detach().contiguous())
    if kind == "gathered":
        everyone[toy.RANK] = rows
    return torch.cat(everyone)


for step in range(70):
    x, _ = toy.rank_batch(step)
    queries = normalize(ddp(x + 0.1 * torch.randn_like(x)), dim=1)
    keys = momentum(x) if kind == "momentum" else net(x + 0.1 * torch.randn_like(x)).detach()
    logits = queries @ gather(normalize(keys, dim=1)).T / 0.2
    loss = cross_entropy(logits, torch.arange(len(x)) + toy.RANK * len(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(momentum.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 0.05)
toy.end_group()
