"""Two ranks with DistributedDataParallel, all right. Kinds: accumulation with no_sync, evaluation on rank
0 while the other waits, join() with uneven inputs, weights loaded on all ranks in the middle, EMA copied
back on all ranks, unused parameters, a compression hook, early stopping decided together, a plateau
scheduler on the averaged loss, a zero-redundancy optimizer, two wrapped models, a frozen layer."""

# ranks: 2
# args: --kind no-sync
# args: --kind rank-0-evaluation
# args: --kind join
# args: --kind loaded
# args: --kind ema
# args: --kind unused
# args: --kind hook
# args: --kind early-stop
# args: --kind plateau
# args: --kind zero
# args: --kind two-models
# args: --kind frozen

import argparse
import contextlib
import copy

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
toy.init_group()
net = torch.nn.ModuleDict({"body": toy.norm_net(), "spare": torch.nn.Linear(4, 4)})
if kind != "unused":
    del net["spare"]
net.forward = lambda x: net["body"](x)
if kind == "frozen":
    next(net.children()).get_submodule("0").requires_grad_(False)
ddp = DistributedDataParallel(net, find_unused_parameters=kind == "unused")
other = DistributedDataParallel(toy.mlp(1, 8)) if kind == "two-models" else None
average = copy.deepcopy(net["body"]).requires_grad_(False)
if kind == "hook":
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(None, fp16_compress_hook)
params = [*ddp.parameters(), *(other.parameters() if other else ())]
if kind == "zero":
    optimizer = ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=2e-3)
elif kind == "join":  # a rank that has joined misses steps, so an optimizer with a state would differ
    optimizer = torch.optim.SGD(params, lr=0.02)
else:
    optimizer = torch.optim.AdamW(params, lr=2e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
dataset = toy.regression_data(320)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 16, sampler=sampler)
EVERY = 2 if kind == "no-sync" else 1


def train_epoch():
    total = torch.zeros(())
    for step, (x, y) in enumerate(loader):
        if kind == "join" and toy.RANK == 1 and step == len(loader) - 1:
            break
        is_last = (step + 1) % EVERY == 0
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            out = ddp(x)
            loss = mse_loss(out, y) + (mse_loss(other(out), x) if other else 0)
            (loss / EVERY).backward()
        total += loss.detach()
        if is_last:
            torch.nn.utils.clip_grad_norm_(params, 5.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), net["body"].parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
    return total


for epoch in range(7):
    sampler.set_epoch(epoch)
    with ddp.join() if kind == "join" else contextlib.nullcontext():
        total = train_epoch()
    if (kind == "loaded" and epoch == 3) or (kind == "ema" and epoch % 2):
        net["body"].load_state_dict(average.state_dict())
    if kind == "rank-0-evaluation":
        if toy.RANK == 0:
            net.eval()
            with torch.no_grad():
                print(sum(mse_loss(net(x), y).item() for x, y in DataLoader(dataset, 64)))
            net.train()
        dist.barrier()
    if kind in ("early-stop", "plateau"):
        dist.all_reduce(total)
        plateau.step(total.item()) if kind == "plateau" else None
        if kind == "early-stop" and epoch == 5:
            break
toy.end_group()
