"""`rankdeck serve` and `meet`: commands that Rankdeck itself, not the user, runs on other hosts over ssh."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase


def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve over the pipe of an ssh connection.")] = False,
) -> int:
    """Serve `rankdeck --host` commands from another host."""
    if not stdio:
        raise ConfigError(
            phrase("rankdeck serve does not listen on a port: other hosts start it over ssh."),
            code="usage",
            advice=phrase("On the other host, use: rankdeck --host NAME devices"),
        )
    from rankdeck.remote.host_server import HostServer

    # Send all other output on stdout to stderr, so that nothing is written between two messages.
    write_end = os.dup(1)
    os.dup2(2, 1)
    HostServer(0, write_end).run()
    return 0


# `rankdeck meet`: one host's part of `doctor --hosts`, which starts it over ssh; users do not.


def meet(
    address: Annotated[str, typer.Option()] = "",
    number: Annotated[int, typer.Option(min=0)] = 0,
    hosts: Annotated[int, typer.Option(min=1)] = 2,
    store: Annotated[str, typer.Option()] = "",
    reach: Annotated[str, typer.Option()] = "",
) -> int:
    """Communicate with the other hosts of `rankdeck doctor --hosts`, and report the result."""
    from rankdeck.doctor import probe_hosts

    if reach:
        probe_hosts.probe_endpoints([_parse_address(text) for text in reach.split(",")])
        return 0
    try:
        probe_hosts.run_host_probe(address, number, hosts, _parse_address(store) if store else None)
    except OSError as error:
        why = error.strerror or error
        raise MachineError(
            phrase("Cannot listen on {address}: {why}.", address=address, why=why), code="address"
        ) from None
    return 0


def _parse_address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isascii() or not port.isdigit():
        raise ConfigError(
            phrase("{place} is not a valid join address.", place=repr(text[:100])), code="place"
        )
    return address, int(port)
