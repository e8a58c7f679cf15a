"""The process group of all ranks. Read worker.py before."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rankdeck.base import files
from rankdeck.base.heartbeat import STACKS_ENV
from rankdeck.base.parsing import parse_json
from rankdeck.profiling.spans import newest_microbatch
from rankdeck.torch_compat.collectives import recorded_collectives, set_timeouts
from rankdeck.training.rank_consensus import MultiHostConsensus, RankConsensus

_WATCHED_TIMEOUT_S = 86_400.0


def join_process_group(device: torch.device, world_size: int, timeout_s: float | None) -> None:
    """One rank that has nobody to meet makes a group with itself.

    `timeout_s` is None for ranks that are watched: who watches them knows why they wait, and ends them sooner
    than a group could, or not at all.
    """
    alone = world_size == 1
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=datetime.timedelta(seconds=_WATCHED_TIMEOUT_S if timeout_s is None else timeout_s),
        store=HashStore() if alone else None,
        rank=0 if alone else -1,
        world_size=1 if alone else -1,
        device_id=device if device.type == "cuda" else None,
    )
    if not alone:
        register_stack_signal()


def extend_group_timeouts() -> None:
    """Groups that strategies have made for watched ranks wait as long as the group of all."""
    set_timeouts(_WATCHED_TIMEOUT_S)


def is_multi_host_run(world_size: int) -> bool:
    """Whether other ranks are on other hosts."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size


def make_consensus(folder: Path, rank: int, world_size: int) -> RankConsensus:
    """How all ranks do the same at the same step: through a folder, where they are on one host."""
    if not is_multi_host_run(world_size):
        return RankConsensus(folder, rank, lead_steps=0 if world_size == 1 else 1)
    group = dist.new_group(backend="gloo")

    def meet(values: list[int]) -> list[int]:
        told = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
        found: list[int] = told.tolist()
        return found

    return MultiHostConsensus(folder, rank, meet)


# The collectives that this rank has come to, and the microbatch that it has begun last, written down beside
# its stacks when somebody asks for those, and when it has lost the other ranks.
#
# The signal that makes faulthandler write stacks also wakes a thread here: the main one may be blocked
# inside a collective.


def register_stack_signal() -> None:
    """From now on SIGUSR1 has them written anew, in a rank whose start has registered the signal."""
    if not os.environ.get(STACKS_ENV):
        return
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_serve_signals, args=(read_end,), name="calls", daemon=True).start()


def write_recorded_collectives() -> None:
    """Now. Nothing is said where it cannot be done."""
    stacks = os.environ.get(STACKS_ENV)
    if not stacks:
        return
    with contextlib.suppress(OSError, ValueError):
        told = {**parse_json(recorded_collectives()), "microbatch": newest_microbatch()}
        files.replace_file(Path(stacks).with_suffix(".calls"), json.dumps(told))


def _serve_signals(read_end: int) -> None:
    while numbers := os.read(read_end, 64):
        if signal.SIGUSR1 in numbers:
            write_recorded_collectives()
