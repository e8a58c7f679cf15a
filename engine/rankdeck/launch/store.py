"""The store that ranks of a script meet at (MASTER_ADDR, MASTER_PORT), hosted by the script's own torch.

The supervisor listens on the port, on loopback only, and hands the socket to a helper process of the script's
interpreter: a client that comes before that waits in the socket's queue. With several ranks the helper starts
at once, since importing torch takes as long there as in the ranks; with one only when somebody connects,
because few scripts of one rank do. Each attempt has a new store, as restarts of torchrun do not find the keys
of the attempt before either.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.exceptions import read_last_lines
from rankdeck.launch.torchrun import MASTER_ADDR

# Standard library and that torch, of 2.4 or later. The folder of `-c` is none of its business, and the
# descriptor is the store's from then on. Before torch 2.8 a store on libuv takes no socket.
_HOST = """
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


class ScriptStore:
    """One attempt's store. `port` is a free one where none is given.

    Raises:
        MachineError: the given port is in use.
    """

    def __init__(self, port: int | None, log: Path) -> None:
        try:
            self._listener = socket.create_server((MASTER_ADDR, port or 0), backlog=1024)
        except OSError as error:
            raise MachineError(
                phrase(
                    "Port {port} of {host} cannot be used: {why}.",
                    port=port,
                    host=MASTER_ADDR,
                    why=error.strerror,
                ),
                code="port",
                advice=phrase("Leave --master-port out: a free port is found then."),
            ) from None
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int = self._listener.getsockname()[1]

    def begin(self, python: str, environment: Mapping[str, str], folder: str) -> None:
        """Start the helper; without one, whoever connects waits."""
        handle = self._listener.fileno()
        with open(self._log, "ab") as log:
            try:
                self._process = subprocess.Popen(
                    [python, "-c", _HOST, MASTER_ADDR, str(self.port), str(handle), str(os.getpid())],
                    cwd=folder,
                    env={**environment, "CUDA_VISIBLE_DEVICES": ""},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[handle],
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{python}: {error.strerror}\n".encode())

    @property
    def has_begun(self) -> bool:
        return self._process is not None

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody waits to be let in, where nobody lets them."""
        if self._listener.fileno() < 0:
            return False
        return bool(select.select([self._listener], [], [], 0)[0])

    def problem(self) -> Problem | None:
        """What to tell once the helper has ended and a rank asks for its store; nobody waits any longer."""
        ended = self._process is None or self._process.poll() is not None
        if not ended or not self.is_asked_for:
            return None
        self._listener.close()
        last = read_last_lines(self._log)
        message = phrase("The script's torch could not host the store at port {port}.", port=self.port)
        if last:
            message = phrase(
                "The script's torch could not host the store at port {port}: {line}",
                port=self.port,
                line=last[-1],
            )
        return Problem(
            "no-store",
            message,
            advice=phrase("init_process_group cannot work without it. Does the interpreter have torch?"),
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
