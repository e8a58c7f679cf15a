"""Rank processes: forked early, released late, ended by session.

The supervisor forks all ranks while it has one thread and has touched no GPU, right after it has imported
torch: a rank then begins in 0.1 s instead of 2. Each waits at a pipe for its orders (environment, logs),
which are known only after the data is prepared and the rendezvous is held. Where forking is not safe (GPUs, a
second thread) the same process replaces itself with a fresh interpreter instead. Read children.py and
rank_start.py next.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from rankdeck.base.heartbeat import die_with_parent
from rankdeck.launch import rank_start
from rankdeck.launch.children import Child
from rankdeck.torch_compat.processes import cuda_was_touched


class RankProcess(Child):
    """One rank of a configuration, forked early."""

    def __init__(self, rank: int, worker: str, *, fresh: bool) -> None:
        super().__init__(rank)
        read_end, self._orders = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _wait_and_run(read_end, supervisor, worker, fresh=fresh)
            finally:
                os._exit(1)
        os.close(read_end)

    def release(self, environment: Mapping[str, str], out: Path, err: Path) -> None:
        """Send the rank its orders; it begins at once."""
        orders = {"environment": dict(environment), "out": str(out), "err": str(err)}
        data = json.dumps(orders).encode()
        try:
            while data:
                data = data[os.write(self._orders, data) :]
        except BrokenPipeError:
            pass  # it was killed while it waited: the next poll sees that
        os.close(self._orders)
        self._orders = -1


def can_fork_preloaded() -> bool:
    """Whether this process has one thread, so that what it has imported may be forked."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def _wait_and_run(orders_end: int, supervisor: int, worker: str, *, fresh: bool) -> NoReturn:
    die_with_parent(supervisor)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(orders_end)
    with open(orders_end, "rb") as pipe:
        data = pipe.read()
    if not data:
        os._exit(1)
    orders = json.loads(data)
    for path, handle in ((orders["out"], 1), (orders["err"], 2)):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, handle)
        os.close(log)
    if fresh or cuda_was_touched():
        environment = {**os.environ, **orders["environment"]}
        command = [sys.executable, "-u", "-P", "-m", rank_start.__name__, worker]
        os.execve(sys.executable, command, environment)
    os.environ.update(orders["environment"])
    rank_start.run(worker)


def _close_all_but(kept: int) -> None:
    """The supervisor's own files and pipes are none of a rank's business."""
    for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle != kept:
            try:
                os.close(handle)
            except OSError:
                pass
