"""A process that has imported everything once and forks sets of ranks from it: a new set costs a fork.

    python -m tests.zoo.nursery SOCKET

Each message on the socket is the path of a store, with a socket for each rank of the set; the answer is the
pid of a process that has them as its children, in a group of their own. Read tests/helpers/rank_main.py.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers import rank_main
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.ranks import RankSet

_MAX_RANKS = 8
_PRELOADED_MODULES = (
    "tests.zoo.inside",
    "tests.zoo.data",
    "tests.zoo.losses",
    "tests.zoo.models",
    "tests.zoo.optimizers",
)


class ForkServer:
    """The one process. Close it after all of its sets. What ranks write to stderr is in `log`."""

    def __init__(self, log: Path) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("ab") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.zoo.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=written,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PRODUCT_AND_TESTS},
                pass_fds=[theirs.fileno()],
            )

    def fork(self, store: Path, sockets: list[int]) -> int:
        """The pid of a set that is being started."""
        socket.send_fds(self._socket, [str(store).encode()], sockets)
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the process that forks ranks is gone")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class _ForkedProcess:
    """What a set asks of the process that started it: it is no child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def has_ended(self, timeout: float | None = 0.0) -> bool:
        return bool(select.select([self._pidfd], [], [], timeout)[0])

    def wait(self, timeout: float | None = None) -> None:
        if not self.has_ended(timeout):
            raise subprocess.TimeoutExpired("ranks", timeout or 0.0)
        os.close(self._pidfd)


class ForkedRanks(RankSet):
    """A set of a nursery's."""

    def __init__(self, world_size: int, folder: Path, nursery: ForkServer) -> None:
        self._fork_server = nursery
        super().__init__(world_size, folder)

    def _start(self) -> None:
        self._num_starts += 1
        pairs = [socket.socketpair() for _ in range(self._world_size)]
        self._ranks = [ours.makefile("rw") for ours, _ in pairs]
        self._ears = [ours.fileno() for ours, _ in pairs]
        store = self._folder / f"store-{self._num_starts}"
        pid = self._fork_server.fork(store, [theirs.fileno() for _, theirs in pairs])
        self._starter = _ForkedProcess(pid)  # type: ignore[assignment]
        for pair in pairs:
            for end in pair:
                end.close()
        self._answers()
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        """Nobody waits for the group's leader: once it has ended, its pid may be another's."""
        starter: Any = self._starter
        if not starter.has_ended():
            with contextlib.suppress(ProcessLookupError):
                super()._signal(number)


def _serve(number: int) -> None:
    with socket.socket(fileno=number) as connection:
        while True:
            message, sockets, _, _ = socket.recv_fds(connection, 4096, _MAX_RANKS)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                connection.close()
                _become_starter(message.decode(), sockets)
            with contextlib.suppress(ProcessLookupError):
                os.setpgid(pid, pid)  # before anyone signals the group
            for handle in sockets:
                os.close(handle)
            connection.send(str(pid).encode())


def _become_starter(store: str, sockets: list[int]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = ["rank_main", store, *map(str, sockets)]
    try:
        rank_main.main()
    finally:
        os._exit(0)


if __name__ == "__main__":
    for name in _PRELOADED_MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for starters
    _serve(int(sys.argv[1]))
