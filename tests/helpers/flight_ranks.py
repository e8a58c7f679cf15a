"""What a rank of a persistent set does in tests of torch's flight recorder; called by RankSet.call."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rankdeck.base.heartbeat import STACKS_ENV
from rankdeck.torch_compat.collectives import set_timeouts
from rankdeck.training import process_group


def flight_record_of_late_rank(folder: str) -> str:
    """What rank 0 writes while rank 1 comes late to the second of its collectives."""
    rank = dist.get_rank()
    written = Path(folder, f"{rank}.calls")
    os.environ[STACKS_ENV] = str(written.with_suffix(".stacks"))
    earlier = signal.signal(signal.SIGUSR1, lambda *_: None)
    process_group.register_stack_signal()
    try:
        dist.all_reduce(torch.ones(3))
        if rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            os.kill(os.getpid(), signal.SIGUSR1)
            while not all(Path(folder, f"{other}.calls").exists() for other in (0, 1)):
                time.sleep(0.01)
        dist.barrier()
        return written.read_text()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, earlier)
        del os.environ[STACKS_ENV]


def timeouts_after(seconds: float) -> list[float]:
    """Of a group that was made without one, before and after all are set."""
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    timeouts_s = [backend.options._timeout.total_seconds()]
    set_timeouts(seconds)
    timeouts_s.append(backend.options._timeout.total_seconds())
    set_timeouts(timeouts_s[0])
    return timeouts_s
