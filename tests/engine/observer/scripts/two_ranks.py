"""Two ranks, its own or torchrun's, train with DDP, FSDP and fully_shard; each keeps what it knows itself."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.fsdp as sharding
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model: nn.Module, rank: int, num: int) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 16, generator=generator), torch.randint(0, 4, (64,), generator=generator)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for i in range(num):
        rows = slice(16 * (i + rank) % 64, 16 * (i + rank) % 64 + 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(rank: int, meeting_point: str) -> None:
    torch.set_num_threads(1)
    init_method = "env://" if "RANK" in os.environ else f"file://{meeting_point}"
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    losses = train(DistributedDataParallel(make(), bucket_cap_mb=1), rank, 5)
    flat = sharding.FullyShardedDataParallel(make(), device_id=torch.device("cpu"))
    losses += train(flat, rank, 4)
    sums = [p.double().sum().item() for p in flat.parameters()]
    if hasattr(sharding, "fully_shard"):  # Before torch 2.6 it wants a GPU.
        sharded = make()
        mesh = init_device_mesh("cpu", (2,))
        for module in (sharded[0], sharded[2], sharded):
            sharding.fully_shard(module, mesh=mesh)
        losses += train(sharded, rank, 6)
        sums += [p.to_local().double().sum().item() for p in sharded.parameters()]  # type: ignore[attr-defined]
    with open(f"{meeting_point}.{rank}", "w") as file:
        json.dump({"losses": losses, "sums": sums}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), sys.argv[1])
    else:
        # Ranks that are spawned import torch anew, which tests/e2e/test_scripts.py tries.
        multiprocessing.start_processes(main, (sys.argv[1],), 2, start_method="fork")
