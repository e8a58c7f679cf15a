"""Guards that hold on to each other: who comes, who goes and how, and what strangers may not do."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from rankdeck.launch import peers
from rankdeck.launch.peers import (
    CLOSED,
    ISOLATED,
    LEFT,
    MAX_LINE_BYTES,
    SILENT,
    SUSPENDED,
    CoordinatorClient,
    CoordinatorServer,
    GuardMessage,
)
from tests.helpers.waiting import wait_until

_LOOPBACK = "127.0.0.1"


class FakeCoordinator:
    """The head's guard as far as it listens."""

    def __init__(self, num_others: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: list[tuple[str, GuardMessage]] = []
        self.lost: list[tuple[str, str]] = []
        self.nodes: list[FakeNode] = []
        server = socket.create_server((_LOOPBACK, 0), backlog=64)
        self.port = server.getsockname()[1]
        self.server = CoordinatorServer(
            self.selector,
            server,
            "secret",
            num_others,
            lambda name, word: self.received.append((name, word)),
            lambda name, how: self.lost.append((name, how)),
            "head",
        )

    def poll(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data(key.fileobj)
        self.server.poll(time.monotonic())

    def poll_until(self, condition: Callable[[], object], *others: FakeNode) -> None:
        def turned() -> object:
            self.poll()
            for other in others:
                other.poll()
            return condition()

        wait_until(turned, interval_s=0.001)

    def close(self) -> None:
        self.server.close()
        for other in self.nodes:
            other.client.close()
            other.selector.close()
        self.selector.close()


class FakeNode:
    """Another guard."""

    def __init__(self, coordinator: FakeCoordinator, name: str, secret: str = "secret") -> None:
        coordinator.nodes.append(self)
        self.selector = selectors.DefaultSelector()
        self.received: list[GuardMessage] = []
        self.lost: list[str] = []
        self.client = CoordinatorClient(
            self.selector,
            (_LOOPBACK, coordinator.port),
            {"name": name, "secret": secret, "ranks": 2},
            self.received.append,
            self.lost.append,
        )

    def poll(self) -> None:
        for key, _ in self.selector.select(0):
            key.data(key.fileobj)
        self.client.poll(time.monotonic())


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    coordinator = FakeCoordinator(2)
    yield coordinator
    with mock.patch.object(peers, "_LEAVE_TIMEOUT_S", 0.01):  # both ends are this thread's: none would answer
        coordinator.close()


def test_all_guards_receive_messages_of_each_other(coordinator: FakeCoordinator) -> None:
    first, second = FakeNode(coordinator, "box1"), FakeNode(coordinator, "box2")
    coordinator.poll_until(lambda: coordinator.server.is_complete, first, second)
    assert {name: host["ranks"] for name, host in coordinator.server.hosts.items()} == {"box1": 2, "box2": 2}
    assert all(
        host["address"] == _LOOPBACK and not host["secret"] for host in coordinator.server.hosts.values()
    )
    coordinator.server.broadcast({"word": "begin", "hosts": ["a" * 10_000]})
    first.client.send({"word": "failed", "code": 1})
    coordinator.poll_until(lambda: first.received and second.received and coordinator.received, first, second)
    assert first.received == second.received == [{"word": "begin", "hosts": ["a" * 10_000]}]
    assert coordinator.received == [("box1", {"word": "failed", "code": 1})]
    piece = "손실".encode().decode("latin-1") * 2600
    first.client.send({"word": "events", "data": piece})
    coordinator.poll_until(lambda: len(coordinator.received) == 2, first, second)
    assert coordinator.received[1] == ("box1", {"word": "events", "data": piece}) and not coordinator.lost
    late = FakeNode(coordinator, "box3")
    coordinator.poll_until(lambda: late.received and late.lost, first, second, late)
    assert late.received[0]["word"] == "refused" and not coordinator.lost
    second.client.close()
    coordinator.poll_until(lambda: coordinator.lost, first)
    assert coordinator.lost == [("box2", LEFT)]
    late = FakeNode(coordinator, "box3")
    coordinator.poll_until(lambda: late.lost, first, late)
    assert set(coordinator.server.hosts) == {"box1", "box2"}, "whoever goes leaves no place for another one"


def test_a_client_connects_to_the_address_that_answers(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a host whose name has an address of IPv6 first, and whose guard listens on IPv4."""
    addresses = {"box0": ["127.0.0.9", _LOOPBACK], "gone": ["127.0.0.9"]}

    def resolved(name: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with selectors.DefaultSelector() as selector:
        hello: GuardMessage = {"name": "box1", "secret": "secret", "ranks": 1}
        end = CoordinatorClient(selector, ("box0", coordinator.port), hello, print, print)
        coordinator.poll_until(lambda: "box1" in coordinator.server.hosts)
        end.close()
        with pytest.raises(ConnectionRefusedError):
            CoordinatorClient(selector, ("gone", coordinator.port), hello, print, print)


def test_a_host_that_left_early_may_join_again(coordinator: FakeCoordinator) -> None:
    first = FakeNode(coordinator, "box1")
    coordinator.poll_until(lambda: coordinator.server.hosts, first)
    first.client.close()
    coordinator.poll_until(lambda: coordinator.lost)
    assert not coordinator.server.hosts
    again, two = FakeNode(coordinator, "box1"), FakeNode(coordinator, "box2")
    coordinator.poll_until(lambda: coordinator.server.is_complete, again, two)


@pytest.mark.parametrize("name", ["box1", "head"])
def test_a_second_host_with_the_same_name_is_refused(coordinator: FakeCoordinator, name: str) -> None:
    node = FakeNode(coordinator, "box1")
    coordinator.poll_until(lambda: coordinator.server.hosts, node)
    same = FakeNode(coordinator, name)
    coordinator.poll_until(lambda: same.lost, node, same)
    assert same.received == [{"word": "refused", "name": name}] and list(coordinator.server.hosts) == ["box1"]


@pytest.mark.parametrize(
    "sent",
    [
        b'{"name": "box1", "secret": "other"}\n',
        b'{"name": "box1"}\n',
        b'{"name": "box1", "secret": "secre"}\n',
        b'{"name": "box1", "secret": "secrets"}\n',
        b'{"name": "box1", "secret": ""}\n',
        b'{"name": "box1", "secret": 7}\n',
        b"nonsense\n",
        b"[" * 5000 + b"\n",
        b"[]\n",
        b"x" * 9000,
        b'{"name": "", "secret": "secret"}\n',
    ],
)
def test_a_connection_without_the_secret_is_closed(coordinator: FakeCoordinator, sent: bytes) -> None:
    with socket.create_connection((_LOOPBACK, coordinator.port)) as stranger:
        stranger.sendall(sent)
        stranger.setblocking(False)

        def is_closed() -> bool:
            try:
                return stranger.recv(4096) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        coordinator.poll_until(is_closed)
    assert not coordinator.server.hosts and not coordinator.lost


def test_idle_unauthenticated_connections_do_not_block_hosts(coordinator: FakeCoordinator) -> None:
    lines = [socket.create_connection((_LOOPBACK, coordinator.port)) for _ in range(60)]
    first, second = FakeNode(coordinator, "box1"), FakeNode(coordinator, "box2")
    coordinator.poll_until(lambda: coordinator.server.is_complete, first, second)
    for line in lines:
        line.close()
    coordinator.poll_until(lambda: True, first, second)
    assert not coordinator.lost


def test_a_line_without_an_end_closes_the_connection(coordinator: FakeCoordinator) -> None:
    node = FakeNode(coordinator, "box1")
    coordinator.poll_until(lambda: coordinator.server.hosts, node)
    node.client._peer._pending += b"x" * (MAX_LINE_BYTES + 1)
    coordinator.poll_until(lambda: coordinator.lost, node)
    assert coordinator.lost == [("box1", CLOSED)]


_NODE_CODE = """
import selectors, sys, time
from rankdeck.launch.peers import CoordinatorClient
selector = selectors.DefaultSelector()
end = CoordinatorClient(
    selector, ("127.0.0.1", int(sys.argv[1])), {"name": "far", "secret": "secret"}, print, print
)
while True:
    for key, _ in selector.select(0.1):
        key.data(key.fileobj)
    end.poll(time.monotonic())
"""


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, CLOSED), (signal.SIGSTOP, SILENT)])
def test_a_killed_guard_is_closed_and_a_stopped_one_is_silent(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    monkeypatch.setattr(peers, "HEARTBEAT_TIMEOUT_S", 1.5)
    near = FakeNode(coordinator, "near")
    far = subprocess.Popen([sys.executable, "-c", _NODE_CODE, str(coordinator.port)])
    try:
        coordinator.poll_until(lambda: coordinator.server.is_complete, near)
        os.kill(far.pid, number)
        began_s = time.monotonic()
        coordinator.poll_until(lambda: coordinator.lost, near)
        assert coordinator.lost == [("far", how)] and not near.lost
        assert (time.monotonic() - began_s > 1.0) == (how == SILENT)
    finally:
        far.kill()
        far.wait()


def test_silence_of_all_hosts_means_this_host_is_isolated(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "HEARTBEAT_TIMEOUT_S", 1.5)
    first, second = FakeNode(coordinator, "box1"), FakeNode(coordinator, "box2")
    coordinator.poll_until(lambda: coordinator.server.is_complete, first, second)
    coordinator.poll_until(lambda: len(coordinator.lost) == 2)
    assert sorted(how for _, how in coordinator.lost) == [ISOLATED, SILENT], (
        "the last one has nobody beside it"
    )
    assert coordinator.lost[0][1] == ISOLATED


def test_a_suspended_coordinator_does_not_blame_others(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "HEARTBEAT_TIMEOUT_S", 0.6)
    node = FakeNode(coordinator, "box1")
    coordinator.poll_until(lambda: coordinator.server.hosts, node)
    time.sleep(0.8)  # neither of them looked
    coordinator.server.poll(time.monotonic())
    node.client.poll(time.monotonic())
    assert not coordinator.lost and not node.lost
    began_s = time.monotonic()
    coordinator.poll_until(lambda: coordinator.lost)
    assert coordinator.lost == [("box1", SILENT)] and time.monotonic() - began_s > 0.5


def test_a_node_dropped_while_suspended_reports_its_suspension(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "HEARTBEAT_TIMEOUT_S", 0.6)
    first, second = FakeNode(coordinator, "box1"), FakeNode(coordinator, "box2")
    coordinator.poll_until(lambda: coordinator.server.is_complete, first, second)
    first.client._peer.close()
    time.sleep(0.8)
    coordinator.poll_until(lambda: coordinator.lost, second)
    assert coordinator.lost == [("box1", SUSPENDED)]
    time.sleep(0.7)
    coordinator.poll_until(lambda: True, second)
    second.client._peer.close()
    coordinator.poll_until(lambda: len(coordinator.lost) == 2)
    assert coordinator.lost[1] == ("box2", SUSPENDED), "it was away again"


def test_a_stopped_and_continued_node_reports_its_suspension(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "HEARTBEAT_TIMEOUT_S", 1.5)
    near = FakeNode(coordinator, "near")
    code = f"from rankdeck.launch import peers\npeers.HEARTBEAT_TIMEOUT_S = 1.5\n{_NODE_CODE}"
    command = [sys.executable, "-uc", code, str(coordinator.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
        try:
            coordinator.poll_until(lambda: coordinator.server.is_complete, near)
            os.kill(far.pid, signal.SIGSTOP)
            coordinator.poll_until(lambda: coordinator.lost, near)
            os.kill(far.pid, signal.SIGCONT)
            assert far.stdout is not None and far.stdout.readline() == f"{SUSPENDED}\n"
        finally:
            far.kill()
