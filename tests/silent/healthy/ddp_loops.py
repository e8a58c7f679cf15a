"""Loops of two ranks with DistributedDataParallel as people write them. Kinds: three styles of accumulation,
early stopping that rank 0 broadcasts, metrics reduced to rank 0, metrics in a group of its own, barriers
around a checkpoint, gathered evaluations, an average swapped in on rank 0 only, losses scaled by the number
of ranks, a global batch of which each rank takes its part, a batch sent by rank 0, an object broadcast from
two branches, a profiler on rank 0, an endless iterator, a stream divided by rank and worker, batches bucketed
by length, weighted sampling with a seed per rank, an averaged gradient norm."""

# ranks: 2
# args: --kind remainder
# args: --kind always-reduced
# args: --kind switched-by-hand
# args: --kind early-stop
# args: --kind reduced-metrics
# args: --kind own-group
# args: --kind checkpoint
# args: --kind gathered
# args: --kind average-on-rank-0
# args: --kind scaled-loss
# args: --kind global-batch
# args: --kind batch-from-rank-0
# args: --kind two-branches
# args: --kind profiler
# args: --kind endless
# args: --kind stream
# args: --kind buckets
# args: --kind weighted

import argparse
import copy
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
EVERY = 3 if kind in ("remainder", "always-reduced", "switched-by-hand") else 1


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        share, shares = toy.RANK, toy.WORLD
        if info is not None:
            share, shares = toy.RANK * info.num_workers + info.id, toy.WORLD * info.num_workers
        yield from [sample for n, sample in enumerate(toy.regression_data()) if n % shares == share]


class Buckets:
    """Batches of samples of similar size, shuffled alike on both ranks."""

    def __init__(self, dataset):
        self.order = dataset.tensors[0].norm(dim=1).argsort().view(-1, 16)
        self.epoch = 0

    def __len__(self):
        return len(self.order) // toy.WORLD

    def __iter__(self):
        self.epoch += 1
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.order), generator=generator)
        return iter([self.order[n].tolist() for n in order[toy.RANK :: toy.WORLD]])


def make_loader(dataset):
    if kind == "stream":
        return DataLoader(Stream(), 16, num_workers=2), None
    if kind == "buckets":
        return DataLoader(dataset, batch_sampler=Buckets(dataset)), None
    if kind == "weighted":
        generator = torch.Generator().manual_seed(toy.RANK)
        weights = dataset.tensors[1].abs().flatten() + 0.1
        return DataLoader(dataset, 16, sampler=WeightedRandomSampler(weights, 160, generator=generator)), None
    if kind in ("global-batch", "batch-from-rank-0"):
        return DataLoader(dataset, 32, shuffle=True, generator=torch.Generator().manual_seed(7)), None
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, 16, sampler=sampler), sampler


def repeat(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def share_batch(x, y):
    if kind == "global-batch":
        return x.chunk(toy.WORLD)[toy.RANK], y.chunk(toy.WORLD)[toy.RANK]
    if kind == "batch-from-rank-0":
        mine = torch.empty(16, 9)
        parts = list(torch.cat([x, y], 1).chunk(toy.WORLD)) if toy.RANK == 0 else None
        dist.scatter(mine, parts, src=0)
        return mine[:, :8], mine[:, 8:]
    return x, y


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total = torch.stack([mse_loss(model(x), y) for x, y in loader]).mean()
    model.train()
    return total


def main():
    toy.init_group()
    group = dist.new_group([0, 1])
    net = toy.norm_net()
    ddp = DistributedDataParallel(net)
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    loader, sampler = make_loader(toy.regression_data(320))
    held_out = toy.regression_data(96, seed=9)
    test = DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False, drop_last=True))
    endless = repeat(loader, sampler) if kind == "endless" else None
    profiler = nullcontext()
    if kind == "profiler" and toy.RANK == 0:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    best = torch.tensor(float("inf"))
    folder = tempfile.mkdtemp()
    for epoch in range(8):
        if sampler is not None and endless is None:
            sampler.set_epoch(epoch)
        total = torch.zeros(2)
        with profiler if epoch == 1 else nullcontext():
            batches = loader if endless is None else (next(endless) for _ in range(10))
            num = len(loader) if kind != "stream" else 8
            for step, (x, y) in enumerate(batches):
                x, y = share_batch(x, y)
                is_last = (step + 1) % EVERY == 0 or step + 1 == num
                if kind == "switched-by-hand":
                    ddp.require_backward_grad_sync = is_last
                with nullcontext() if is_last or kind != "remainder" else ddp.no_sync():
                    loss = mse_loss(ddp(x), y)
                    if (
                        kind == "scaled-loss"
                    ):  # a sum over the global batch, as the wrapper divides by the ranks
                        loss = loss * len(x) * toy.WORLD / 32
                    (loss / EVERY).backward()
                total += torch.stack([loss.detach() * len(x), torch.tensor(float(len(x)))])
                if not is_last:
                    continue
                torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                        slow.lerp_(fast, 0.1)
                if kind == "reduced-metrics" and step % 5 == 0:
                    dist.reduce(total, dst=0)
                    total.zero_()
        if kind == "own-group":
            dist.all_reduce(total, group=group)
        if kind in ("gathered", "early-stop"):
            loss = evaluate(net, test)
            parts = [torch.empty(()) for _ in range(toy.WORLD)]
            dist.all_gather(parts, loss)
            stop = torch.zeros(())
            if toy.RANK == 0:
                now = torch.stack(parts).mean()
                stop.fill_(float(now > best and epoch > 5))
                best = torch.minimum(best, now)
            dist.broadcast(stop, src=0)
            if kind == "early-stop" and stop:
                break
        if kind == "checkpoint":
            dist.barrier()
            if toy.RANK == 0:
                torch.save({"model": net.state_dict(), "epoch": epoch}, Path(folder, "last.pt"))
            dist.barrier()
        if kind == "two-branches":
            if toy.RANK == 0:
                choice = [{"epoch": epoch, "note": "rank 0 decides"}]
                dist.broadcast_object_list(choice, src=0)
            else:
                choice = [None]
                dist.broadcast_object_list(choice, src=0)
        if kind == "average-on-rank-0" and toy.RANK == 0:
            weights = copy.deepcopy(net.state_dict())
            net.load_state_dict(average.state_dict())
            print(evaluate(net, test).item())
            net.load_state_dict(weights)
    toy.end_group()


if __name__ == "__main__":
    main()
