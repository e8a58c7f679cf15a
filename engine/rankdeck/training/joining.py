"""The process group of all ranks. Read worker.py before."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rankdeck.torch_compat.groups import set_timeouts
from rankdeck.training import calls_on_demand
from rankdeck.training.agreement import Agreement, AgreementOfHosts

_WATCHED_S = 86_400.0


def join(device: torch.device, world_size: int, timeout_s: float | None) -> None:
    """One rank that has nobody to meet makes a group with itself.

    `timeout_s` is None for ranks that are watched: who watches them knows why they wait, and ends them sooner
    than a group could, or not at all.
    """
    alone = world_size == 1
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=datetime.timedelta(seconds=_WATCHED_S if timeout_s is None else timeout_s),
        store=HashStore() if alone else None,
        rank=0 if alone else -1,
        world_size=1 if alone else -1,
        device_id=device if device.type == "cuda" else None,
    )
    if not alone:
        calls_on_demand.begin()


def let_wait() -> None:
    """Groups that strategies have made for watched ranks wait as long as the group of all."""
    set_timeouts(_WATCHED_S)


def is_over_hosts(world_size: int) -> bool:
    """Whether other ranks are on other hosts."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size


def agreement_of(folder: Path, rank: int, world_size: int) -> Agreement:
    """How all ranks do the same at the same step: through a folder, where they are on one host."""
    if not is_over_hosts(world_size):
        return Agreement(folder, rank, lead=0 if world_size == 1 else 1)
    group = dist.new_group(backend="gloo")

    def meet(values: list[int]) -> list[int]:
        told = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
        found: list[int] = told.tolist()
        return found

    return AgreementOfHosts(folder, rank, meet)
