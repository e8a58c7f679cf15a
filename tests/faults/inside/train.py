"""A script as people write them, on one process or under DDP."""

import os
from pathlib import Path

import acts
import torch
import torch.distributed as dist
from mine import Optimizer, data, loss, model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(net, heldout):
    net.eval()
    with torch.no_grad():
        for pictures, labels in heldout:
            loss(net(pictures), labels)
    net.train()


def save(net, rank):
    state = net.state_dict()
    if rank == 0:
        torch.save(state, "weights.part")
        Path("weights.part").replace("weights.pt")


def main():
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), acts.RANK
    if world > 1:
        dist.init_process_group("gloo")
    net = model()
    if world > 1:
        net = DistributedDataParallel(net)
    optimizer = Optimizer(net.parameters(), lr=0.01)
    train, heldout = data()
    sampler = DistributedSampler(train, world, rank) if world > 1 else None
    loader = DataLoader(train, 8, sampler=sampler, num_workers=acts.PLAN["workers"])
    steps = acts.PLAN["steps"]
    if acts.PLAN["act"] == "fewer batches" and rank in acts.PLAN["ranks"]:
        steps -= 20
    while acts.steps < steps:
        for pictures, labels in loader:
            value, count = loss(net(pictures), labels)
            optimizer.zero_grad()
            (value / count).backward()
            optimizer.step()
            if acts.steps % 20 == 0:
                evaluate(net.module if world > 1 else net, DataLoader(heldout, 8))
                save(net.module if world > 1 else net, rank)
            if acts.steps >= steps:
                break
    if world > 1:
        if acts.PLAN["act"] != "fewer batches":
            dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    acts.point("exit")
