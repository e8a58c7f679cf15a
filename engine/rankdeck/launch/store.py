"""Host the store where the ranks rendezvous (MASTER_ADDR, MASTER_PORT).

Each attempt has a new store: otherwise restarted ranks would find the keys of the previous attempt.

The supervisor listens on the store's socket, and a client that connects before the store runs waits in the
socket's queue. A configuration's store is hosted by the supervisor, or by the coordinator's supervisor in a
multi-host run. A script's store is hosted by the script's own torch in a helper process. With several ranks
the helper starts at once, because it takes as long as the ranks to import torch. With one rank it starts at
the first connection, because few single-rank scripts connect.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.config.script import ScriptTable
from rankdeck.diagnose.exceptions import read_last_lines
from rankdeck.launch.layout import Layout
from rankdeck.launch.torchrun import MASTER_ADDR

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_STORE_TIMEOUT = timedelta(seconds=60)
_GOODBYE_TIMEOUT = timedelta(seconds=5)
"""Timeout of a node's last connection to the coordinator, during which no signal is handled."""
_CLOSE_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.05
_DONE_KEY = "rankdeck/hosts-done"

# Needs only the standard library and the script's torch (2.4 or later). It removes the current folder, which
# `-c` adds to sys.path, and the store then owns the descriptor. Before torch 2.8 a libuv store takes no
# socket.
_STORE_SCRIPT = """
import sys
sys.path[:1] = []
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[4]):
    os._exit(1)
from datetime import timedelta
import torch
from torch.distributed import TCPStore
host, port, handle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
given = dict(is_master=True, wait_for_workers=False, timeout=timedelta(seconds=600))
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    given["use_libuv"] = False
store = TCPStore(host, port, master_listen_fd=handle, **given)
while True:
    signal.pause()
"""


def _has_waiting_client(listener: socket.socket | None) -> bool:
    """Check whether a client is waiting in the socket's queue."""
    return listener is not None and listener.fileno() >= 0 and bool(select.select([listener], [], [], 0)[0])


class RankStore:
    """The store of a configuration's ranks, on loopback or, in a multi-host run, on the coordinator.

    `handle` is the descriptor of the coordinator's listening socket; None on a node. torch is imported when
    the first rank connects or, if `is_eager` is True, at the first call of `serve`.
    """

    def __init__(self, layout: Layout, handle: int | None, *, is_eager: bool) -> None:
        self._layout = layout
        self._is_eager = is_eager
        self._store: TCPStore | None = None
        self._listener: socket.socket | None = None
        if layout.is_single_host:
            self._listener = socket.create_server((MASTER_ADDR, 0), backlog=512)
        elif handle is not None:
            self._listener = socket.socket(fileno=handle)
        self.address: tuple[str, int] = (
            layout.store if self._listener is None else self._listener.getsockname()
        )

    def serve(self) -> Problem | None:
        """Start the store if it is needed; called repeatedly while ranks run. Always returns None."""
        if self._store is None and (self._is_eager or _has_waiting_client(self._listener)):
            self._is_eager = False
            self._start()
        return None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _start(self) -> None:
        """Start the store, which then accepts the waiting clients. Do nothing on a node, which hosts no
        store."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if self._listener is None or self._store is not None:
            return
        address, port = self.address
        handle = self._listener.detach()  # the store's from here on: a stop may come while it is made
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
            # Without a given socket, TCPStore listens on every address.
            master_listen_fd=handle,
        )

    def wait_for_others(self, heed_stop: Callable[[], None]) -> None:
        """Report that this host's ranks are done and, on the coordinator, wait until no host needs the store.

        The coordinator waits for up to 30 s and meanwhile calls `heed_stop`, which raises an exception after
        a stop request; a node does not wait.
        """
        if self._layout.is_single_host:
            return
        with contextlib.suppress(RuntimeError):  # the coordinator has ended
            store = self._store or self._client()
            store.add(_DONE_KEY, 1)
            until_s = time.monotonic() + _CLOSE_TIMEOUT_S
            while self._store is not None and time.monotonic() < until_s:
                heed_stop()
                if store.add(_DONE_KEY, 0) >= len(self._layout.hosts):
                    return
                time.sleep(_POLL_INTERVAL_S)

    def _client(self) -> TCPStore:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(*self.address, is_master=False, wait_for_workers=False, timeout=_GOODBYE_TIMEOUT)


class ScriptStore:
    """The store of one attempt of a script, on a free port by default.

    `environment` contains the ranks' environment variables; `log` is the file for the helper's output.

    Raises:
        MachineError: the port that the user chose is in use.
    """

    def __init__(self, script: ScriptTable, environment: Mapping[str, str], log: Path) -> None:
        try:
            self._listener = socket.create_server((MASTER_ADDR, script.master_port or 0), backlog=1024)
        except OSError as error:
            raise MachineError(
                phrase(
                    "Port {port} on {host} cannot be used: {why}.",
                    port=script.master_port,
                    host=MASTER_ADDR,
                    why=error.strerror,
                ),
                code="port",
                advice=phrase("Leave --master-port out to use a free port."),
            ) from None
        self._script, self._environment, self._log = script, environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int = self._listener.getsockname()[1]

    def start(self) -> None:
        """Start the helper process. If that fails, connecting clients wait until `serve` tries again."""
        python, handle = self._script.python, self._listener.fileno()
        with open(self._log, "ab") as log:
            try:
                self._process = subprocess.Popen(
                    [python, "-c", _STORE_SCRIPT, MASTER_ADDR, str(self.port), str(handle), str(os.getpid())],
                    cwd=self._script.folder,
                    # The store needs no GPU, and must not take memory on one.
                    env={**self._environment, "CUDA_VISIBLE_DEVICES": ""},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[handle],
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{python}: {error.strerror}\n".encode())

    def serve(self) -> Problem | None:
        """Start the helper once a rank connects; called repeatedly while ranks run.

        If the helper has ended and a rank connects, close the socket, so that no rank waits, and return the
        problem.
        """
        if self._process is None:
            if _has_waiting_client(self._listener):
                self.start()
            return None
        if self._process.poll() is None or not _has_waiting_client(self._listener):
            return None
        self._listener.close()
        last = read_last_lines(self._log)
        message = phrase("The script's torch could not host the store on port {port}.", port=self.port)
        if last:
            message = phrase(
                "The script's torch could not host the store on port {port}: {line}",
                port=self.port,
                line=last[-1],
            )
        return Problem(
            "no-store",
            message,
            advice=phrase(
                "init_process_group needs this store. Check that torch is installed for the "
                "script's interpreter."
            ),
            severity="warning",
            last_lines=last,
        )

    def close(self) -> None:
        self._listener.close()
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        try:
            if self._log.stat().st_size == 0:
                self._log.unlink()
        except OSError:
            pass
