"""Check how ranks on this machine would find each other: loopback, hostname, configured interface."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from rankdeck.base import files
from rankdeck.base.phrases import COMMA_TEMPLATE, join_phrases, phrase
from rankdeck.doctor.lines import CheckLine, Verdict, make_row

_TIMEOUT_S = 5.0
_SLOW_S = 1.0
_MAX_FILE_BYTES = 4096
_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOOPBACK = "127.0.0.1"
_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_USE_LOOPBACK_COMMAND = f"export {_GLOO}=lo"

Resolver = Callable[[str], list[str]]


def resolve_host(name: str) -> list[str]:
    """Return the addresses to which the system resolves a name, without duplicates.

    Raises:
        OSError: the name cannot be resolved.
    """
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def check_loopback(resolve: Resolver = resolve_host) -> Iterator[CheckLine]:
    evidence: list[str] = []
    firewall = phrase("Bring loopback up (ip link set lo up), and allow its traffic in the firewall.")
    try:
        port = _ping_loopback()
        evidence.append(
            phrase("5 bytes were sent to port {port} of {host} and came back", port=port, host=_LOOPBACK)
        )
    except OSError as error:
        finding = phrase(
            "Processes on this machine cannot connect to each other: {why}.", why=error.strerror or error
        )
        yield make_row("loopback", Verdict.FAILED, finding, _loopback_state(), fix=firewall)
        return
    evidence += [_loopback_state(), _port_range()]
    try:
        there = resolve("localhost")
    except OSError as error:
        there = []
        evidence.append(phrase("localhost: {why}", why=error.strerror or error))
    if any(address == _LOOPBACK for address in there):
        evidence.append(
            phrase("localhost resolves to {addresses}", addresses=join_phrases(there, COMMA_TEMPLATE))
        )
        finding = phrase("Processes on this machine can open ports and connect to them.")
        yield make_row("loopback", Verdict.OK, finding, *evidence)
        return
    if there:
        evidence.append(
            phrase("localhost resolves to {addresses}", addresses=join_phrases(there, COMMA_TEMPLATE))
        )
    finding = phrase("Loopback works, but localhost does not resolve to {host}.", host=_LOOPBACK)
    fix = phrase('Add the line "{line}" to /etc/hosts.', line=f"{_LOOPBACK} localhost")
    yield make_row("loopback", Verdict.WARNING, finding, *evidence, fix=fix)


def _ping_loopback() -> int:
    """Send a few bytes to a port on loopback, receive them back, and return the port.

    Raises:
        OSError: the bytes did not arrive.
    """
    with socket.create_server((_LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        # The kernel completes the connection before `accept`, so a single thread can handle both ends.
        with socket.create_connection((_LOOPBACK, port), _TIMEOUT_S) as near:
            server.settimeout(_TIMEOUT_S)
            far, _ = server.accept()
            with far:
                near.sendall(b"there")
                far.settimeout(_TIMEOUT_S)
                far.sendall(far.recv(5))
                if near.recv(5) != b"there":
                    raise OSError(phrase("the bytes received differ from the bytes sent"))
    return port


def _loopback_state() -> str:
    lo = psutil.net_if_stats().get("lo")
    if lo is None:
        return phrase("there is no interface lo")
    return phrase("interface lo is up") if lo.isup else phrase("interface lo is down")


def _port_range() -> str:
    try:
        first, last = files.read_text(_PORT_RANGE_FILE, _MAX_FILE_BYTES).split()
    except (OSError, ValueError):
        return phrase("the ephemeral port range is unknown")
    return phrase(
        "ephemeral ports: {first} to {last} ({file})", first=first, last=last, file=_PORT_RANGE_FILE
    )


def check_hostname(
    name: str | None = None,
    resolve: Resolver = resolve_host,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[CheckLine]:
    """Check the hostname: gloo binds to the hostname's address unless an interface is set."""
    name = name or socket.gethostname()
    began_s = time.monotonic()
    try:
        addresses, why = resolve(name), ""
    except OSError as error:
        addresses, why = [], str(error.strerror or error)
    seconds = time.monotonic() - began_s
    evidence: list[str] = [
        phrase("{name} resolves to {addresses}", name=name, addresses=join_phrases(addresses, COMMA_TEMPLATE))
        if addresses
        else phrase("{name}: {why}", name=name, why=why or phrase("no address")),
        phrase("getaddrinfo took {seconds:.2f} s", seconds=seconds),
    ]
    foreign = [address for address in addresses if not _is_local_address(address)]
    fix, command = (
        phrase("Add the hostname to /etc/hosts, or let gloo use loopback for runs on one host."),
        _USE_LOOPBACK_COMMAND,
    )
    if not addresses:
        finding = phrase(
            "The hostname {name} does not resolve: gloo may guess an address, hang or fail.", name=name
        )
    elif foreign:
        evidence.append(
            phrase(
                "cannot bind to {addresses}: not an address of this machine",
                addresses=join_phrases(foreign, COMMA_TEMPLATE),
            )
        )
        finding = phrase("The hostname {name} resolves to another machine's address.", name=name)
    elif seconds > _SLOW_S:
        finding = phrase("The hostname {name} takes {seconds:.1f} s to resolve.", name=name, seconds=seconds)
    else:
        finding = phrase("The hostname {name} resolves to this machine.", name=name)
        yield make_row("hostname", Verdict.OK, finding, *evidence)
        return
    # With an interface set, gloo does not resolve the hostname.
    if environment.get(_GLOO):
        evidence.append(
            phrase(
                "{variable}={value}: gloo does not resolve the hostname",
                variable=_GLOO,
                value=environment[_GLOO],
            )
        )
        yield make_row("hostname", Verdict.OK, finding, *evidence)
        return
    # A warning, not a failure: torch falls back to loopback, and the check with two real ranks decides.
    yield make_row("hostname", Verdict.WARNING, finding, *evidence, fix=fix, command=command)


def _is_local_address(address: str) -> bool:
    """Check whether a local socket can be bound to the address; assume that it can if the address is
    link-local.

    Binding to a link-local address would require its scope, the name of the interface.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_link_local:
        return True
    try:
        with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6) as trying:
            trying.bind((address, 0))
    except OSError:
        return False
    return True


def check_interface(environment: Mapping[str, str] = os.environ) -> Iterator[CheckLine]:
    there = {name: facts.isup for name, facts in psutil.net_if_stats().items()}
    up = sorted(name for name, is_up in there.items() if is_up)
    evidence: list[str] = [phrase("interfaces that are up: {names}", names=join_phrases(up, COMMA_TEMPLATE))]
    wrong = []
    # gloo takes an interface's exact name, NCCL a prefix of it.
    for variable, matches in ((_GLOO, str.__eq__), (_NCCL, str.startswith)):
        value = environment.get(variable)
        if value is None:
            continue
        evidence.append(f"{variable}={value}")
        if not _matches_interface(value, up, matches):
            wrong.append(variable)
    if wrong:
        finding = phrase(
            "No interface that is up matches {variables}.", variables=join_phrases(wrong, COMMA_TEMPLATE)
        )
        fix = phrase("Unset the variable, or set it to an interface that is up.")
        yield make_row(
            "interface", Verdict.FAILED, finding, *evidence, fix=fix, command=f"unset {' '.join(wrong)}"
        )
        return
    finding = phrase("The specified interfaces are up.")
    if len(evidence) == 1:
        finding = phrase("No interface is specified; the ranks of a run use loopback.")
    yield make_row("interface", Verdict.OK, finding, *evidence)


def _matches_interface(value: str, up: list[str], matches: Callable[[str, str], bool]) -> bool:
    """Check whether any interface in `up` matches `value`, a list of names separated by commas. A leading ^
    excludes these names; a leading = matches only whole names."""
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    if value.lstrip("^").startswith("="):
        matches = str.__eq__
    named = [name for name in up if any(matches(name, pattern) for pattern in names)]
    # An exclusion fails only if it leaves no interface.
    return len(named) < len(up) if value.startswith("^") else bool(named)
