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
    ALONE,
    AWAY,
    CLOSED,
    LEFT,
    MAX_LINE_BYTES,
    SILENT,
    Gathering,
    Membership,
    Word,
)
from tests.helpers.waiting import wait_until

_LOOPBACK = "127.0.0.1"


class Head:
    """The head's guard as far as it listens."""

    def __init__(self, num_others: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.heard: list[tuple[str, Word]] = []
        self.gone: list[tuple[str, str]] = []
        self.others: list[Other] = []
        server = socket.create_server((_LOOPBACK, 0), backlog=64)
        self.port = server.getsockname()[1]
        self.meeting = Gathering(
            self.selector,
            server,
            "secret",
            num_others,
            lambda name, word: self.heard.append((name, word)),
            lambda name, how: self.gone.append((name, how)),
            "head",
        )

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data(key.fileobj)
        self.meeting.look(time.monotonic())

    def until(self, condition: Callable[[], object], *others: Other) -> None:
        def turned() -> object:
            self.turn()
            for other in others:
                other.turn()
            return condition()

        wait_until(turned, every_s=0.001)

    def end(self) -> None:
        self.meeting.close()
        for other in self.others:
            other.end.close()
            other.selector.close()
        self.selector.close()


class Other:
    """Another guard."""

    def __init__(self, head: Head, name: str, secret: str = "secret") -> None:
        head.others.append(self)
        self.selector = selectors.DefaultSelector()
        self.heard: list[Word] = []
        self.gone: list[str] = []
        self.end = Membership(
            self.selector,
            (_LOOPBACK, head.port),
            {"name": name, "secret": secret, "ranks": 2},
            self.heard.append,
            self.gone.append,
        )

    def turn(self) -> None:
        for key, _ in self.selector.select(0):
            key.data(key.fileobj)
        self.end.look(time.monotonic())


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head(2)
    yield made
    with mock.patch.object(peers, "_LEAVE_S", 0.01):  # both ends are this thread's: none would answer
        made.end()


def test_all_hear_of_each_other_and_what_is_said(head: Head) -> None:
    one, two = Other(head, "box1"), Other(head, "box2")
    head.until(lambda: head.meeting.is_complete, one, two)
    assert {name: host["ranks"] for name, host in head.meeting.hosts.items()} == {"box1": 2, "box2": 2}
    assert all(host["address"] == _LOOPBACK and not host["secret"] for host in head.meeting.hosts.values())
    head.meeting.tell({"word": "begin", "hosts": ["a" * 10_000]})
    one.end.say({"word": "failed", "code": 1})
    head.until(lambda: one.heard and two.heard and head.heard, one, two)
    assert one.heard == two.heard == [{"word": "begin", "hosts": ["a" * 10_000]}]
    assert head.heard == [("box1", {"word": "failed", "code": 1})]
    piece = "손실".encode().decode("latin-1") * 2600
    one.end.say({"word": "events", "data": piece})
    head.until(lambda: len(head.heard) == 2, one, two)
    assert head.heard[1] == ("box1", {"word": "events", "data": piece}) and not head.gone
    late = Other(head, "box3")
    head.until(lambda: late.heard and late.gone, one, two, late)
    assert late.heard[0]["word"] == "refused" and not head.gone
    two.end.close()
    head.until(lambda: head.gone, one)
    assert head.gone == [("box2", LEFT)]
    late = Other(head, "box3")
    head.until(lambda: late.gone, one, late)
    assert set(head.meeting.hosts) == {"box1", "box2"}, "whoever goes leaves no place for another one"


def test_of_a_name_with_several_addresses_the_one_that_answers_is_taken(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a host whose name has an address of IPv6 first, and whose guard listens on IPv4."""
    addresses = {"box0": ["127.0.0.9", _LOOPBACK], "gone": ["127.0.0.9"]}

    def resolved(name: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (one, port)) for one in addresses[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with selectors.DefaultSelector() as selector:
        hello: Word = {"name": "box1", "secret": "secret", "ranks": 1}
        end = Membership(selector, ("box0", head.port), hello, print, print)
        head.until(lambda: "box1" in head.meeting.hosts)
        end.close()
        with pytest.raises(ConnectionRefusedError):
            Membership(selector, ("gone", head.port), hello, print, print)


def test_one_that_goes_before_all_are_there_may_come_again(head: Head) -> None:
    first = Other(head, "box1")
    head.until(lambda: head.meeting.hosts, first)
    first.end.close()
    head.until(lambda: head.gone)
    assert not head.meeting.hosts
    again, two = Other(head, "box1"), Other(head, "box2")
    head.until(lambda: head.meeting.is_complete, again, two)


@pytest.mark.parametrize("name", ["box1", "head"])
def test_one_of_a_name_that_is_there_is_refused(head: Head, name: str) -> None:
    one = Other(head, "box1")
    head.until(lambda: head.meeting.hosts, one)
    same = Other(head, name)
    head.until(lambda: same.gone, one, same)
    assert same.heard == [{"word": "refused", "name": name}] and list(head.meeting.hosts) == ["box1"]


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
def test_who_does_not_know_the_secret_is_shown_the_door(head: Head, sent: bytes) -> None:
    with socket.create_connection((_LOOPBACK, head.port)) as stranger:
        stranger.sendall(sent)
        stranger.setblocking(False)

        def is_closed() -> bool:
            try:
                return stranger.recv(4096) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        head.until(is_closed)
    assert not head.meeting.hosts and not head.gone


def test_strangers_who_only_hold_the_line_keep_nobody_away(head: Head) -> None:
    lines = [socket.create_connection((_LOOPBACK, head.port)) for _ in range(60)]
    one, two = Other(head, "box1"), Other(head, "box2")
    head.until(lambda: head.meeting.is_complete, one, two)
    for line in lines:
        line.close()
    head.until(lambda: True, one, two)
    assert not head.gone


def test_a_line_without_an_end_ends_the_connection(head: Head) -> None:
    one = Other(head, "box1")
    head.until(lambda: head.meeting.hosts, one)
    one.end._peer._waiting += b"x" * (MAX_LINE_BYTES + 1)
    head.until(lambda: head.gone, one)
    assert head.gone == [("box1", CLOSED)]


_FAR = """
import selectors, sys, time
from rankdeck.launch.peers import Membership
selector = selectors.DefaultSelector()
end = Membership(selector, ("127.0.0.1", int(sys.argv[1])), {"name": "far", "secret": "secret"}, print, print)
while True:
    for key, _ in selector.select(0.1):
        key.data(key.fileobj)
    end.look(time.monotonic())
"""


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, CLOSED), (signal.SIGSTOP, SILENT)])
def test_who_is_killed_has_closed_and_who_is_stopped_is_silent(
    head: Head, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    monkeypatch.setattr(peers, "LAPSE_S", 1.5)
    near = Other(head, "near")
    far = subprocess.Popen([sys.executable, "-c", _FAR, str(head.port)])
    try:
        head.until(lambda: head.meeting.is_complete, near)
        os.kill(far.pid, number)
        began_s = time.monotonic()
        head.until(lambda: head.gone, near)
        assert head.gone == [("far", how)] and not near.gone
        assert (time.monotonic() - began_s > 1.0) == (how == SILENT)
    finally:
        far.kill()
        far.wait()


def test_where_nobody_is_heard_it_is_this_host_that_is_cut_off(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LAPSE_S", 1.5)
    one, two = Other(head, "box1"), Other(head, "box2")
    head.until(lambda: head.meeting.is_complete, one, two)
    head.until(lambda: len(head.gone) == 2)
    assert sorted(how for _, how in head.gone) == [ALONE, SILENT], "the last one has nobody beside it"
    assert head.gone[0][1] == ALONE


def test_who_was_suspended_itself_blames_nobody_for_it(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LAPSE_S", 0.6)
    one = Other(head, "box1")
    head.until(lambda: head.meeting.hosts, one)
    time.sleep(0.8)  # neither of them looked
    head.meeting.look(time.monotonic())
    one.end.look(time.monotonic())
    assert not head.gone and not one.gone
    began_s = time.monotonic()
    head.until(lambda: head.gone)
    assert head.gone == [("box1", SILENT)] and time.monotonic() - began_s > 0.5


def test_whom_the_others_took_for_gone_meanwhile_says_so_of_itself(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LAPSE_S", 0.6)
    one, two = Other(head, "box1"), Other(head, "box2")
    head.until(lambda: head.meeting.is_complete, one, two)
    one.end._peer.close()
    time.sleep(0.8)
    head.until(lambda: head.gone, two)
    assert head.gone == [("box1", AWAY)]
    time.sleep(0.7)
    head.until(lambda: True, two)
    two.end._peer.close()
    head.until(lambda: len(head.gone) == 2)
    assert head.gone[1] == ("box2", AWAY), "it was away again"


def test_one_that_is_stopped_and_let_go_on_blames_itself(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LAPSE_S", 1.5)
    near = Other(head, "near")
    code = f"from rankdeck.launch import peers\npeers.LAPSE_S = 1.5\n{_FAR}"
    command = [sys.executable, "-uc", code, str(head.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
        try:
            head.until(lambda: head.meeting.is_complete, near)
            os.kill(far.pid, signal.SIGSTOP)
            head.until(lambda: head.gone, near)
            os.kill(far.pid, signal.SIGCONT)
            assert far.stdout is not None and far.stdout.readline() == f"{AWAY}\n"
        finally:
            far.kill()
