"""Who asks a run's guard for something: control.sock in the run's directory, one JSON line and its answer.

    {"command": "stop", "now": false}    {"command": "checkpoint"}    {"command": "signal", "number": 2}
    ->    {"ok": true}

For the run's owner only. Standard library only, as all of the guard. control.py is the other end.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

MAX_LINE_BYTES = 65536
_NSIG = 65
_MAX_CONNECTIONS = 64
"""Whoever calls while so many are connected takes the place of the first of them."""
_NO_FD_PAUSE_S = 0.05


class ControlServer:
    """Serves the socket of `run` from the guard's own selector; `stop` gets whether it has to be now, and
    `signal` the number of a signal for the ranks of a script (None where the run has no script)."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        run: str,
        stop: Callable[[bool], None],
        signal: Callable[[int], None] | None = None,
    ) -> None:
        self._selector = selector
        self._run = run
        self._stop = stop
        self._signal = signal
        self._connections: list[socket.socket] = []

    def listen(self, folder: str) -> None:
        """Begin, in the run's directory as it is called now. Where no socket can be, nobody calls."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        Path(folder, "control.sock").unlink(missing_ok=True)  # of an attempt whose guard was killed
        try:
            # A socket's path may have 107 bytes, and a run's path often has more.
            server.bind(f"/proc/self/fd/{handle}/control.sock")
            server.listen(8)
        except OSError:
            server.close()
            return
        finally:
            os.umask(mask)
            os.close(handle)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, lambda _: self._on_connection(server))

    def _on_connection(self, server: socket.socket) -> None:
        try:
            caller, _ = server.accept()
        except OSError:
            if self._connections:
                self._drop(self._connections[0])  # perhaps it has what is missing: a file descriptor
            else:
                time.sleep(_NO_FD_PAUSE_S)
            return
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
            caller.close()
            return
        caller.setblocking(False)
        if len(self._connections) == _MAX_CONNECTIONS:
            self._drop(self._connections[0])
        self._connections.append(caller)
        received = bytearray()
        self._selector.register(caller, selectors.EVENT_READ, lambda _: self._on_data(caller, received))

    def _on_data(self, caller: socket.socket, received: bytearray) -> None:
        """Answer every whole line; a caller that goes away or rambles is dropped."""
        try:
            chunk = caller.recv(4096)
            received += chunk
            while b"\n" in received:
                line, _, rest = bytes(received).partition(b"\n")
                received[:] = rest
                caller.sendall(json.dumps(self._answer(line)).encode() + b"\n")
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk or len(received) > MAX_LINE_BYTES:
            self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        if caller in self._connections:
            self._connections.remove(caller)
            self._selector.unregister(caller)
            caller.close()

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = json.loads(line)
            command = request["command"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"ok": False, "error": 'a line is JSON like {"command": "stop", "now": false}'}
        if command == "stop":
            self._stop(bool(request.get("now")))
        elif command == "checkpoint":
            return self._request_checkpoint()
        elif command == "signal":
            return self._signal_ranks(request.get("number"))
        else:
            return {"ok": False, "error": f"unknown command {command!r}; there are: stop, checkpoint, signal"}
        return {"ok": True}

    def _signal_ranks(self, number: object) -> dict[str, object]:
        if self._signal is None:
            return {"ok": False, "error": "only a script's ranks are signalled"}
        if not isinstance(number, int) or not 0 < number < _NSIG:
            return {"ok": False, "error": f"{number!r} is no signal"}
        self._signal(number)
        return {"ok": True}

    def _request_checkpoint(self) -> dict[str, object]:
        """Rank 0 looks for this file between two steps."""
        if self._signal is not None:
            return {"ok": False, "error": "a script saves its own checkpoints"}
        try:
            Path(self._run, "requests").mkdir(exist_ok=True)
            Path(self._run, "requests", "save.request").touch()
        except OSError as error:
            return {"ok": False, "error": error.strerror}
        return {"ok": True}
