"""Join the process group of all ranks. Read worker.py first."""

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

# A day: the supervisor decides how long ranks wait, not the group.
_WATCHED_TIMEOUT_S = 86_400.0


def join_process_group(device: torch.device, world_size: int, timeout_s: float | None) -> None:
    """Create the process group; a single rank needs no other process for this.

    `timeout_s` is None for ranks with a supervisor, which detects why ranks wait and ends them itself.
    """
    alone = world_size == 1
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=datetime.timedelta(seconds=_WATCHED_TIMEOUT_S if timeout_s is None else timeout_s),
        # A single rank needs no address, only a store in memory.
        store=HashStore() if alone else None,
        rank=0 if alone else -1,
        world_size=1 if alone else -1,
        device_id=device if device.type == "cuda" else None,
    )
    if not alone:
        register_stack_signal()


def extend_group_timeouts() -> None:
    """Extend the timeouts of the groups that strategies have created to the main group's timeout; called only
    on ranks with a supervisor."""
    set_timeouts(_WATCHED_TIMEOUT_S)


def is_multi_host_run(world_size: int) -> bool:
    """Check whether the run has ranks on other hosts."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size


def make_consensus(folder: Path, rank: int, world_size: int) -> RankConsensus:
    """Return the rank consensus, which uses a folder if all ranks are on one host, otherwise a collective."""
    if not is_multi_host_run(world_size):
        return RankConsensus(folder, rank, lead_steps=0 if world_size == 1 else 1)
    group = dist.new_group(backend="gloo")

    def meet(values: list[int]) -> list[int]:
        maxima = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(maxima, dist.ReduceOp.MAX, group=group)
        numbers: list[int] = maxima.tolist()
        return numbers

    return MultiHostConsensus(folder, rank, meet)


# Write the collectives that this rank has entered, and its last started microbatch, next to its stacks: when
# the supervisor requests those, and when the rank has lost the other ranks.
#
# The signal that makes faulthandler write stacks also wakes a thread here, because the main thread may be
# blocked in a collective.


def register_stack_signal() -> None:
    """Make SIGUSR1 also rewrite the file of recorded collectives, if the rank dumps stacks on SIGUSR1."""
    if not os.environ.get(STACKS_ENV):
        return
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # set_wakeup_fd requires a non-blocking descriptor.
    os.set_blocking(write_end, False)
    # A full pipe loses no wake-up: bytes in it wake the thread.
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_serve_signals, args=(read_end,), name="calls", daemon=True).start()


def write_recorded_collectives() -> None:
    """Write the recorded collectives now; ignore errors."""
    stacks = os.environ.get(STACKS_ENV)
    if not stacks:
        return
    with contextlib.suppress(OSError, ValueError):
        record = {**parse_json(recorded_collectives()), "microbatch": newest_microbatch()}
        files.replace_file(Path(stacks).with_suffix(".calls"), json.dumps(record))


def _serve_signals(read_end: int) -> None:
    while numbers := os.read(read_end, 64):
        if signal.SIGUSR1 in numbers:
            write_recorded_collectives()
