"""How ranks of this machine would find each other: this machine as it is, and names that lead astray."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

import psutil
import pytest

from rankdeck.doctor import network
from rankdeck.doctor.lines import CheckLine, Verdict

FOREIGN_ADDRESS = "203.0.113.7"
"""Of a network that is for documentation only."""


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def resolving_to(*addresses: str) -> Callable[[str], list[str]]:
    return lambda name: list(addresses)


def unknown_host(name: str) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_loopback_carries_data() -> None:
    line = single_row(network.check_loopback(resolving_to("127.0.0.1")))
    assert line.verdict is Verdict.OK
    assert "interface lo is up" in line.evidence and any("came back" in text for text in line.evidence)


def test_localhost_with_a_foreign_address_is_a_warning() -> None:
    for resolve in (unknown_host, resolving_to(FOREIGN_ADDRESS)):
        line = single_row(network.check_loopback(resolve))
        assert line.verdict is Verdict.WARNING and "127.0.0.1 localhost" in (line.fix or "")


def test_a_refused_local_connection_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        connect = socket.create_connection
        refused = taken.getsockname()
        monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect(refused, timeout))
        line = single_row(network.check_loopback())
    assert line.verdict is Verdict.FAILED and "Connection refused" in line.finding


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "fe80::1%eth0", "fe80::1"])
def test_a_local_hostname_is_ok(address: str) -> None:
    line = single_row(network.check_hostname("here", resolving_to(address), {}))
    assert line.verdict is Verdict.OK and f"here resolves to {address}" in line.evidence


@pytest.mark.parametrize(
    ("resolve", "finding"),
    [
        (unknown_host, "does not resolve"),
        (resolving_to(FOREIGN_ADDRESS), "resolves to another machine's address"),
        (resolving_to("127.0.0.1", FOREIGN_ADDRESS), "resolves to another machine's address"),
    ],
)
def test_a_wrong_hostname_warns_unless_gloo_has_an_interface(
    resolve: Callable[[str], list[str]], finding: str
) -> None:
    line = single_row(network.check_hostname("here", resolve, {}))
    assert line.verdict is Verdict.WARNING and finding in line.finding
    assert line.command == "export GLOO_SOCKET_IFNAME=lo"
    assert any("getaddrinfo" in text for text in line.evidence)
    line = single_row(network.check_hostname("here", resolve, {"GLOO_SOCKET_IFNAME": "lo"}))
    assert line.verdict is Verdict.OK and finding in line.finding


def test_a_slow_name_server_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_SLOW_S", 0.01)

    def slow(name: str) -> list[str]:
        time.sleep(0.02)
        return ["127.0.0.1"]

    line = single_row(network.check_hostname("here", slow, {}))
    assert line.verdict is Verdict.WARNING and "to resolve" in line.finding


def test_the_hostname_of_this_machine_is_resolved() -> None:
    line = single_row(network.check_hostname())
    assert socket.gethostname() in line.finding


@pytest.mark.parametrize(
    ("environment", "verdict"),
    [
        ({}, Verdict.OK),
        ({"GLOO_SOCKET_IFNAME": "lo"}, Verdict.OK),
        ({"GLOO_SOCKET_IFNAME": "l"}, Verdict.FAILED),
        ({"NCCL_SOCKET_IFNAME": "l"}, Verdict.OK),
        ({"NCCL_SOCKET_IFNAME": "=l"}, Verdict.FAILED),
        ({"NCCL_SOCKET_IFNAME": "=lo"}, Verdict.OK),
        ({"NCCL_SOCKET_IFNAME": "^none"}, Verdict.OK),
        ({"NCCL_SOCKET_IFNAME": f"^{','.join(psutil.net_if_stats())}"}, Verdict.FAILED),
        ({"GLOO_SOCKET_IFNAME": "none7", "NCCL_SOCKET_IFNAME": "none7"}, Verdict.FAILED),
    ],
)
def test_a_named_interface_must_exist(environment: dict[str, str], verdict: Verdict) -> None:
    line = single_row(network.check_interface(environment))
    assert line.verdict is verdict
    assert [f"{name}={value}" in line.evidence for name, value in environment.items()].count(False) == 0
    if verdict is Verdict.FAILED:
        assert line.command == f"unset {' '.join(environment)}"
