"""Options of a run on several hosts, and the instructions that the first host prints for other hosts."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.launch.multi_host_role import MultiHostRole
    from rankdeck.run_dir import RunDir

HostNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="SSH host names, as in box1,box2, or the number of hosts if you run this command on each.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="On the first host, if you run this command on each host: the address to listen on.",
    ),
]
Join = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="On the other hosts: the address printed by the first host."),
]


def parse_host_names(hosts: str | None) -> list[str]:
    """Return the host names in --hosts; empty if --hosts is a number or missing.

    Raises:
        ConfigError: --hosts is set, but contains no name.
    """
    if hosts is None or hosts.strip().isdecimal():
        return []
    if names := [name.strip() for name in hosts.split(",") if name.strip()]:
        return names
    raise ConfigError(
        phrase("The option --hosts {hosts} contains no host name.", hosts=json.dumps(hosts)),
        code="usage",
        advice=phrase("For example: --hosts box1,box2"),
    )


def name_on_coordinator(run: RunDir, coordinator: str) -> str:
    """Return the path or name under which a run of this host can be found on the host `coordinator`.

    This is the path of the original run if the run is a copy, the run's path if this host is the coordinator,
    and the run's name in all other cases.
    """
    from rankdeck.remote.ssh import is_local_host

    origin = run.origin
    if origin is not None:
        return origin.path
    return str(run.path) if is_local_host(coordinator) else run.name


def hosts_override(hosts: str | None) -> list[str]:
    """Return the host names in --hosts as a `--set` override."""
    names = parse_host_names(hosts)
    # A JSON list of strings is also a TOML array.
    return [f"hosts.use={json.dumps(names)}"] if names else []


def multi_host_role(
    config: RunConfig, hosts: str | None, listen: str | None, join: str | None
) -> MultiHostRole | None:
    """Return this host's role in a run on several hosts.

    Return None if this host trains alone, or if the hosts are named: the run is then started on them over
    ssh.

    Raises:
        ConfigError: the number of hosts is missing, or --listen and --join are both set or both missing.
    """
    from rankdeck.config.multi_host import JOIN_ENV
    from rankdeck.launch.multi_host_role import MultiHostRole

    # Unlike the option, the variable is not visible to other users in ps.
    join = join or os.environ.get(JOIN_ENV)
    number = int(hosts) if hosts is not None and not parse_host_names(hosts) else None
    if listen is None and join is None and number is None:
        return None
    number = number or len(config.hosts.use) or None
    if number is None or (listen is None) == (join is None):
        raise ConfigError(
            phrase("A run on several hosts needs the number of hosts, and either --listen or --join."),
            code="usage",
            advice=phrase(
                "On the first host, use --hosts 2 --listen ADDRESS; on every other host, use "
                "--hosts 2 --join with the address that the first host prints. Or start all "
                "hosts over ssh, as in --hosts box1,box2."
            ),
        )
    return (
        MultiHostRole.as_coordinator(number, listen or "")
        if join is None
        else MultiHostRole.as_node(number, join)
    )


def print_join_address(run: RunDir, several: MultiHostRole | None, attempt: int, *, quiet: bool) -> None:
    """Print how other hosts can join this attempt of the run, if `several` is the role of its first host."""
    from rankdeck.config.multi_host import JOIN_ENV

    if several is not None and several.listener is not None and not quiet:
        address = several.join_address(run.name, attempt)
        message = phrase(
            "On every other host: --hosts {n} --join {place} (all users there can see the "
            "address with ps; to hide it, replace --join with {variable}=ADDRESS before the "
            "command)",
            n=several.num_hosts,
            place=address,
            variable=JOIN_ENV,
        )
        console.err().print(message, soft_wrap=True)
