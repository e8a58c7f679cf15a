"""Rank processes: forked early, released late, ended by session.

The supervisor forks all ranks while it has one thread and has touched no GPU, right after it has imported
torch: a rank then begins in 0.1 s instead of 2. Each waits at a pipe for its orders (environment, logs),
which are known only after the data is prepared and the rendezvous is held. Where forking is not safe (GPUs, a
second thread) the same process replaces itself with a fresh interpreter instead. Read rank_start.py next.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rankdeck.base.heartbeat import die_with_parent
from rankdeck.launch import rank_start
from rankdeck.launch.processes import is_suspended, signal_sessions
from rankdeck.torch_compat.processes import cuda_was_touched

GRACE_S = 3.0
"""From TERM to KILL."""
_POLL_S = 0.01


class RankProcess:
    """One rank. `exit_code` is None while it lives, negative when a signal ended it.

    `ended_at` is when we began to end it (Unix seconds): its exit tells nothing then. None where it ended by
    itself.
    """

    def __init__(self, rank: int, worker: str, *, fresh: bool) -> None:
        self.rank = rank
        self.exit_code: int | None = None
        self.ended_at: float | None = None
        self.was_suspended = False
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

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    @property
    def is_suspended(self) -> bool:
        """Whether a signal (SIGSTOP) has suspended it."""
        return self.exit_code is None and is_suspended(self.pid)

    def send(self, number: int) -> None:
        """Signal the rank alone."""
        if self.poll() is None:
            os.kill(self.pid, number)


def can_fork_preloaded() -> bool:
    """Whether this process has one thread, so that what it has imported may be forked."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def end_ranks(
    ranks: Sequence[RankProcess], grace_s: float, is_saving: Callable[[], bool] = lambda: False
) -> None:
    """TERM to the session of every rank that lives, `grace_s` seconds, then KILL to all that is left of every
    session: data loading processes have the rank's session, whatever group they are in.

    `is_saving`: whether a checkpoint is being written, which is waited for.
    """
    alive = [rank for rank in ranks if rank.poll() is None]
    for rank in alive:
        rank.ended_at = rank.ended_at or time.time()
        rank.was_suspended = rank.was_suspended or rank.is_suspended
    if alive and grace_s > 0:
        signal_sessions({rank.pid for rank in alive}, signal.SIGTERM)
        # A suspended process acts on TERM only once it goes on.
        signal_sessions({rank.pid for rank in alive}, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while any(rank.poll() is None for rank in alive) and (time.monotonic() < deadline or is_saving()):
            time.sleep(_POLL_S)
    signal_sessions({rank.pid for rank in ranks}, signal.SIGKILL)
    deadline = time.monotonic() + 1.0
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


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
