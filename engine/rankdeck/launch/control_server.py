"""Serve requests to a run's guard at control.sock in the run's directory. A request and its answer are one
JSON line each.

    {"command": "stop", "now": false}    {"command": "checkpoint"}    {"command": "signal", "number": 2}
    ->    {"ok": true}

Only the run's owner may connect. Standard library only, like the whole guard. control.py is the client.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

MAX_LINE_BYTES = 65536
_NSIG = 65
_MAX_CONNECTIONS = 64
"""Maximum number of open connections; a further connection replaces the oldest."""
_NO_FD_PAUSE_S = 0.05


class ControlServer:
    """Server of the control socket of `run`, driven by the guard's own selector.

    `stop` is called with the request's flag `now` (stop at once), `signal` with the number of a signal for a
    script's ranks; `signal` is None if the run does not run a script.
    """

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
        """Open the socket in `folder`, the run's current directory. If this fails, the run receives no
        requests."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # bind creates the socket with the umask's mode: only the owner may connect.
        mask = os.umask(0o177)
        Path(folder, "control.sock").unlink(missing_ok=True)  # left by a guard that was killed
        try:
            # A socket's path has at most 107 bytes, and a run's path is often longer.
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
                self._drop(self._connections[0])  # frees a file descriptor, which may be what is missing
            else:
                # Without a free descriptor the socket stays readable: do not spin.
                time.sleep(_NO_FD_PAUSE_S)
            return
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # The credentials are (pid, uid, gid); root may connect too.
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
        """Answer every complete line, and drop a client that disconnects or sends too long a line."""
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
        # json raises RecursionError for a deeply nested line, and no request may end the guard.
        except (ValueError, TypeError, KeyError, RecursionError):
            return {
                "ok": False,
                "error": 'a request is a line of JSON, such as {"command": "stop", "now": false}',
            }
        _log.info("request: %s", request)
        if command == "stop":
            self._stop(bool(request.get("now")))
        elif command == "checkpoint":
            return self._request_checkpoint()
        elif command == "signal":
            return self._signal_ranks(request.get("number"))
        else:
            return {"ok": False, "error": f"unknown command {command!r}; available: stop, checkpoint, signal"}
        return {"ok": True}

    def _signal_ranks(self, number: object) -> dict[str, object]:
        if self._signal is None:
            return {"ok": False, "error": "signals can be sent only to a script's ranks"}
        if not isinstance(number, int) or not 0 < number < _NSIG:
            return {"ok": False, "error": f"{number!r} is not a signal"}
        self._signal(number)
        return {"ok": True}

    def _request_checkpoint(self) -> dict[str, object]:
        """Create the request file for which rank 0 polls between steps; return the answer to the client."""
        if self._signal is not None:
            return {"ok": False, "error": "a script saves its own checkpoints"}
        try:
            Path(self._run, "requests").mkdir(exist_ok=True)
            Path(self._run, "requests", "save.request").touch()
        except OSError as error:
            return {"ok": False, "error": error.strerror}
        return {"ok": True}
