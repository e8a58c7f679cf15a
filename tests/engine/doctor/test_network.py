"""How ranks of this machine would find each other: this machine as it is, and names that lead astray."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

import psutil
import pytest

from rankdeck.doctor import network
from rankdeck.doctor.lines import CheckLine, Verdict

ELSEWHERE = "203.0.113.7"
"""Of a network that is for documentation only."""


def only(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def leading_to(*addresses: str) -> Callable[[str], list[str]]:
    return lambda name: list(addresses)


def unknown(name: str) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_words_pass_over_loopback() -> None:
    line = only(network.look_at_loopback(leading_to("127.0.0.1")))
    assert line.verdict is Verdict.GOOD
    assert "interface lo is up" in line.evidence and any("and back" in words for words in line.evidence)


def test_localhost_that_leads_elsewhere_is_told() -> None:
    for resolve in (unknown, leading_to(ELSEWHERE)):
        line = only(network.look_at_loopback(resolve))
        assert line.verdict is Verdict.LOOK and "127.0.0.1 localhost" in (line.fix or "")


def test_a_connection_that_is_refused_within_the_machine_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        connect = socket.create_connection
        refused = taken.getsockname()
        monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect(refused, timeout))
        line = only(network.look_at_loopback())
    assert line.verdict is Verdict.BROKEN and "Connection refused" in line.finding


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "fe80::1%eth0", "fe80::1"])
def test_a_hostname_of_this_machine_is_good(address: str) -> None:
    line = only(network.look_at_hostname("here", leading_to(address), {}))
    assert line.verdict is Verdict.GOOD and f"here is {address}" in line.evidence


@pytest.mark.parametrize(
    ("resolve", "words"),
    [
        (unknown, "is not known"),
        (leading_to(ELSEWHERE), "leads to an address of another machine"),
        (leading_to("127.0.0.1", ELSEWHERE), "leads to an address of another machine"),
    ],
)
def test_a_hostname_that_leads_astray_is_told_unless_gloo_does_not_ask_for_it(
    resolve: Callable[[str], list[str]], words: str
) -> None:
    line = only(network.look_at_hostname("here", resolve, {}))
    assert line.verdict is Verdict.LOOK and words in line.finding
    assert line.command == "export GLOO_SOCKET_IFNAME=lo"
    assert any("getaddrinfo" in one for one in line.evidence)
    line = only(network.look_at_hostname("here", resolve, {"GLOO_SOCKET_IFNAME": "lo"}))
    assert line.verdict is Verdict.GOOD and words in line.finding


def test_a_slow_name_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_SLOW_S", 0.01)

    def slow(name: str) -> list[str]:
        time.sleep(0.02)
        return ["127.0.0.1"]

    line = only(network.look_at_hostname("here", slow, {}))
    assert line.verdict is Verdict.LOOK and "to be found" in line.finding


def test_this_machines_own_name_is_looked_up() -> None:
    line = only(network.look_at_hostname())
    assert socket.gethostname() in line.finding


@pytest.mark.parametrize(
    ("environment", "verdict"),
    [
        ({}, Verdict.GOOD),
        ({"GLOO_SOCKET_IFNAME": "lo"}, Verdict.GOOD),
        ({"GLOO_SOCKET_IFNAME": "l"}, Verdict.BROKEN),
        ({"NCCL_SOCKET_IFNAME": "l"}, Verdict.GOOD),
        ({"NCCL_SOCKET_IFNAME": "=l"}, Verdict.BROKEN),
        ({"NCCL_SOCKET_IFNAME": "=lo"}, Verdict.GOOD),
        ({"NCCL_SOCKET_IFNAME": "^none"}, Verdict.GOOD),
        ({"NCCL_SOCKET_IFNAME": f"^{','.join(psutil.net_if_stats())}"}, Verdict.BROKEN),
        ({"GLOO_SOCKET_IFNAME": "none7", "NCCL_SOCKET_IFNAME": "none7"}, Verdict.BROKEN),
    ],
)
def test_an_interface_that_is_named_has_to_be_there(environment: dict[str, str], verdict: Verdict) -> None:
    line = only(network.look_at_interface(environment))
    assert line.verdict is verdict
    assert [f"{name}={value}" in line.evidence for name, value in environment.items()].count(False) == 0
    if verdict is Verdict.BROKEN:
        assert line.command == f"unset {' '.join(environment)}"
