"""Connections between the guards of a multi-host run, with heartbeats that detect lost hosts.

The coordinator's guard listens on one address and a free port while the run lasts. Each node's guard
connects, sends the run's secret and information about its host, and gets the layout once the last node has
joined. From then on both sides send at least a heartbeat every half second. A host that is silent for five
seconds is considered lost even if its connection is still open, as it is after a cable is unplugged. torch's
own store is not used, as it would block its clients. Messages are JSON lines; heartbeats are empty lines.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import json
import logging
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 0.5
HEARTBEAT_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 65_536
_MAX_HELLO_BYTES = 32_768
_MAX_PENDING_BYTES = 1 << 23
_LEAVE_TIMEOUT_S = 2.0
_SEGMENT_BYTES = 536
"""TCP segment size that every network can carry (RFC 9293). If a network drops large packets, the guards can
still communicate and report what the ranks are waiting for."""
_MAX_UNAUTHENTICATED = 32
"""Maximum number of connections that have not sent the secret; a further connection replaces the oldest."""
SILENT, CLOSED, LEFT, ISOLATED, SUSPENDED, INTERFACE_DOWN = (
    "silent",
    "closed",
    "left",
    "alone",
    "away",
    "unplugged",
)
"""Reasons for the loss of a host: it was silent, its connection closed, it reported that it was done, all
other hosts were silent, this host was suspended for too long, or this host's interface is down."""
GuardMessage = dict[str, Any]


class Peer:
    """A connection to another guard. `on_word` is called with this peer and each message, `on_gone` once with
    this peer and the reason for the loss of the connection."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        end: socket.socket,
        on_word: Callable[[Peer, GuardMessage], None],
        on_gone: Callable[[Peer, str], None],
    ) -> None:
        self.name = ""
        self.address: str = end.getpeername()[0]
        self.max_bytes = _MAX_HELLO_BYTES
        self._selector, self._socket = selector, end
        self._on_message, self._on_lost = on_word, on_gone
        self._received, self._pending = bytearray(), bytearray()
        self._received_s = self._sent_s = time.monotonic()
        self._is_closed = False
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # without a delay for small messages
        selector.register(end, selectors.EVENT_READ, lambda _: self._on_bytes())

    @property
    def is_behind(self) -> bool:
        """Whether data is waiting to be sent."""
        return bool(self._pending) and not self._is_closed

    def send(self, word: GuardMessage) -> None:
        """Send a message; it is dropped if the connection is closed."""
        if self._is_closed:
            return
        # Without ASCII escapes, a chunk of a file stays within the line limit whatever its bytes are.
        self._pending += json.dumps(word, ensure_ascii=False).encode(errors="replace") + b"\n"
        self._flush()

    def poll(self, now_s: float) -> None:
        """Send a heartbeat if due, and close the connection if the peer has been silent too long."""
        if now_s - self._sent_s >= HEARTBEAT_INTERVAL_S:
            self._sent_s = now_s
            self._pending += b"\n"
        self._flush()
        if now_s - self._received_s > HEARTBEAT_TIMEOUT_S:
            self.close(SILENT)

    def is_responsive(self, now_s: float) -> bool:
        """Check whether the time since the peer's last data is well below the timeout."""
        return now_s - self._received_s < HEARTBEAT_TIMEOUT_S - 2 * HEARTBEAT_INTERVAL_S

    def reset_timeout(self, now_s: float) -> None:
        """Restart the peer's timeout, because this process was suspended and could not receive."""
        self._received_s = now_s

    def _flush(self) -> None:
        if self._is_closed or not self._pending:
            return
        try:
            del self._pending[: self._socket.send(self._pending)]
        except BlockingIOError:
            if len(self._pending) > _MAX_PENDING_BYTES:
                self.close(SILENT)
        except OSError:
            self.close(CLOSED)

    def _on_bytes(self) -> None:
        try:
            chunk = self._socket.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close(CLOSED)
            return
        self._received_s = time.monotonic()
        self._received += chunk
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        if max(map(len, (*lines, rest))) > self.max_bytes:
            self.close(CLOSED)
        for line in filter(None, lines):
            if self._is_closed:
                return
            try:
                word = json.loads(line)
            except (ValueError, RecursionError):
                word = None
            if not isinstance(word, dict):
                self.close(CLOSED)
                return
            if word.get("word") == LEFT:
                self.close(LEFT)
            else:
                self._on_message(self, word)

    def close(self, how: str = "") -> None:
        """Close the connection. Unless the reason `how` is empty, call `on_gone` with it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._selector.unregister(self._socket)
        self._socket.close()
        if how:
            self._on_lost(self, how)

    def leave(self) -> None:
        """Tell the peer that this host is done, and close the connection."""
        # Read until the peer closes: if data is still unread here, the kernel discards data in flight to it.
        if self._is_closed:
            return
        self._is_closed = True
        self._selector.unregister(self._socket)
        self._pending += json.dumps({"word": LEFT}).encode() + b"\n"
        until_s = time.monotonic() + _LEAVE_TIMEOUT_S
        try:
            self._socket.settimeout(_LEAVE_TIMEOUT_S)
            self._socket.sendall(self._pending)
            self._socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < until_s and self._socket.recv(MAX_LINE_BYTES):
                pass
        except OSError:
            pass
        self._socket.close()


class _SuspensionTracker:
    """Detector of suspensions of this process: just after a suspension, its peers only seem to be silent."""

    def __init__(self) -> None:
        self._checked_s = time.monotonic()
        self._resumed_s = -HEARTBEAT_TIMEOUT_S

    def was_suspended(self, now_s: float) -> bool:
        """Check whether this process has probably been suspended since the last check. If so, the silence
        of its peers proves nothing."""
        away_s, self._checked_s = now_s - self._checked_s, now_s
        if away_s > HEARTBEAT_TIMEOUT_S:
            self._resumed_s = now_s
        return away_s > HEARTBEAT_TIMEOUT_S / 2

    def has_resumed(self, now_s: float) -> bool:
        """Check whether this process has recently resumed from a suspension that was longer than its peers'
        timeout."""
        return now_s - self._checked_s > HEARTBEAT_TIMEOUT_S or now_s - self._resumed_s < HEARTBEAT_TIMEOUT_S


class CoordinatorServer:
    """The coordinator's end of all connections. `server` is its listening socket, `name` its host name, and
    `num_others` the number of nodes. `hosts` are the nodes that have joined, in order of arrival.
    `on_word(name, message)` is called for a node's message, `on_gone(name, reason)` when a node is lost."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        server: socket.socket,
        secret: str,
        num_others: int,
        on_word: Callable[[str, GuardMessage], None],
        on_gone: Callable[[str, str], None],
        name: str = "",
    ) -> None:
        self._selector, self._secret, self._num_others = selector, secret, num_others
        self._name = name
        self._on_message, self._on_lost = on_word, on_gone
        self._server = server
        self._address: str = server.getsockname()[0]
        server.setblocking(False)
        self.hosts: dict[str, GuardMessage] = {}
        self._peers: dict[str, Peer] = {}
        self._unauthenticated: list[Peer] = []
        self._was_complete = False
        self._suspension = _SuspensionTracker()
        selector.register(self._server, selectors.EVENT_READ, lambda _: self._on_connection())

    @property
    def num_connected(self) -> int:
        return len(self._peers)

    @property
    def connected_names(self) -> set[str]:
        return set(self._peers)

    @property
    def is_complete(self) -> bool:
        """Whether all nodes have joined; from then on, no other node may join."""
        self._was_complete = self._was_complete or self.num_connected == self._num_others
        return self._was_complete

    def _on_connection(self) -> None:
        try:
            end, _ = self._server.accept()
        except OSError:
            return
        if len(self._unauthenticated) == _MAX_UNAUTHENTICATED:
            self._unauthenticated.pop(0).close()
        try:
            self._unauthenticated.append(Peer(self._selector, end, self._receive, self._disconnect))
        except OSError:
            end.close()  # the client has disconnected already

    def _receive(self, peer: Peer, word: GuardMessage) -> None:
        if peer.name:
            self._on_message(peer.name, word)
            return
        name, secret = word.get("name"), word.get("secret")
        # In constant time, so that the delay reveals nothing of the secret.
        if not isinstance(secret, str) or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            self._unauthenticated.remove(peer)
            peer.close()
            return
        self._unauthenticated.remove(peer)
        taken = isinstance(name, str) and (name in self.hosts or name == self._name)
        if not isinstance(name, str) or not name or taken or self.is_complete:
            peer.send({"word": "refused", "name": name if isinstance(name, str) else ""})
            peer.close()
            return
        peer.name, peer.max_bytes = name, MAX_LINE_BYTES
        self.hosts[name] = {**word, "address": peer.address, "secret": ""}
        self._peers[name] = peer
        _log.info("%s has joined from %s", name, peer.address)

    def _disconnect(self, peer: Peer, how: str) -> None:
        if peer in self._unauthenticated:
            self._unauthenticated.remove(peer)
        elif self._peers.get(peer.name) is peer:
            if not self.is_complete:
                del self.hosts[peer.name]  # it may connect again
            del self._peers[peer.name]
            rest, now_s = self._peers.values(), time.monotonic()
            if how != LEFT and self._suspension.has_resumed(now_s):
                how = SUSPENDED
            elif how == SILENT and is_interface_down(self._address):
                how = INTERFACE_DOWN
            elif how == SILENT and rest and not any(other.is_responsive(now_s) for other in rest):
                how = ISOLATED
            _log.warning("%s is lost: %s", peer.name, how)
            self._on_lost(peer.name, how)

    def send_to(self, name: str, word: GuardMessage) -> None:
        """Send a message to a node; it is dropped if the node is not connected."""
        if name in self._peers:
            self._peers[name].send(word)

    def broadcast(self, word: GuardMessage) -> None:
        """Send a message to all connected nodes."""
        for peer in list(self._peers.values()):
            peer.send(word)

    def poll(self, now_s: float) -> None:
        """Exchange heartbeats; to be called at least every half second."""
        was_away = self._suspension.was_suspended(now_s)
        for peer in [*self._peers.values(), *self._unauthenticated]:
            if was_away:
                peer.reset_timeout(now_s)
            peer.poll(now_s)

    def close(self) -> None:
        self._selector.unregister(self._server)
        self._server.close()
        for peer in [*self._peers.values(), *self._unauthenticated]:
            peer.leave()


def _connect(coordinator_address: tuple[str, int]) -> socket.socket:
    """Connect to the first of the coordinator's addresses that answers. Raises: OSError if none does."""
    # Like socket.create_connection, but both ends use small segments, which must be set before connecting.
    failure = OSError(0, "the host name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        *coordinator_address, type=socket.SOCK_STREAM
    ):
        end = socket.socket(family, kind, protocol)
        try:
            end.settimeout(HEARTBEAT_TIMEOUT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
            end.connect(address)
            return end
        except OSError as error:
            end.close()
            failure = error
    raise failure


class CoordinatorClient:
    """A node's connection to the coordinator. `on_word(message)` is called for each message,
    `on_gone(reason)` when the connection is lost. Raises: OSError if the coordinator cannot be reached."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        coordinator_address: tuple[str, int],
        hello: GuardMessage,
        on_word: Callable[[GuardMessage], None],
        on_gone: Callable[[str], None],
    ) -> None:
        end = _connect(coordinator_address)
        self.address: str = end.getsockname()[0]
        self._suspension, self._on_lost = _SuspensionTracker(), on_gone
        self._peer = Peer(selector, end, lambda _, word: on_word(word), self._disconnect)
        self._peer.max_bytes = MAX_LINE_BYTES
        self._peer.send(hello)

    def _disconnect(self, _: Peer, how: str) -> None:
        if how != LEFT and self._suspension.has_resumed(time.monotonic()):
            how = SUSPENDED
        elif how == SILENT and is_interface_down(self.address):
            how = INTERFACE_DOWN
        self._on_lost(how)

    @property
    def is_behind(self) -> bool:
        return self._peer.is_behind

    def send(self, word: GuardMessage) -> None:
        self._peer.send(word)

    def poll(self, now_s: float) -> None:
        """Exchange heartbeats, as in `CoordinatorServer.poll`."""
        if self._suspension.was_suspended(now_s):
            self._peer.reset_timeout(now_s)
        self._peer.poll(now_s)

    def close(self) -> None:
        self._peer.leave()


_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _RUNNING = 0x1, 0x40
_NAME_BYTES, _REQUEST_BYTES = 16, 40


def is_interface_down(address: str) -> bool:
    """Check whether the interface with this address is down, has no carrier, or no longer exists."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    if ":" in address:
        return False  # these ioctls only know IPv4 addresses
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = name.encode()[: _NAME_BYTES - 1].ljust(_REQUEST_BYTES, b"\0")
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) != address:
                    continue
                flags: int = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
            except OSError:
                continue
            return flags & (_UP | _RUNNING) != _UP | _RUNNING
    return False
