"""Start each part of a multi-host run on its host, through one pipe per host.

    connect to all hosts  ->  send configuration and code to all  ->  start the coordinator, which listens
    ->  start the nodes, which join it  ->  from then on the run does not need these pipes

If one host fails, the parts already started on other hosts are stopped. Nodes connect to the coordinator at
the address where ssh reached it. If the coordinator is the local host, they use the address from which ssh
reached the nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from rankdeck.base.errors import ConfigError, MachineError, RunNotFoundError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.config.multi_host import HOST_NAME_ENV, JOIN_ENV
from rankdeck.remote import snapshot, ssh
from rankdeck.remote.hosts import CommandResult, RemoteCommand, RemoteHost, RemoteHosts

_STOP_TIMEOUT_S = 10.0


def launch_on_hosts(
    config: RunConfig, runs: Path | None, report: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """Start a run on the configured hosts; return the coordinator's name and the result of its command.

    `runs` is the folder of runs on the local host, or on every host if the run does not use the local one.
    `report(host, text)` is called with messages about the progress.

    Raises:
        MachineError, ConfigError: a host cannot be reached, or its part cannot be started.
    """
    archive = snapshot.pack(config)
    with RemoteHosts(config.hosts.use, report) as hosts:
        hosts.connect()
        hosts.raise_errors()
        for host in hosts.all:
            host.send_archive(archive)
        hosts.poll_until(lambda: all(host.error or host.folder for host in hosts.all))
        hosts.raise_errors()
        into = [] if runs is None else ["--runs", str(runs)]
        # `runs` names a folder of this host, or of every host if this one has no part in the run.
        has_it = {host.name for host in hosts.all if ssh.is_local_host(host.name)} or {*config.hosts.use}

        def command(host: RemoteHost, run: str) -> list[str]:
            return ["train", f"{host.folder}/{snapshot.CONFIG_NAME}", *(into if host.name in has_it else [])]

        return _launch(hosts, config.hosts.address, command)


def relaunch_on_hosts(
    run: str, names: Sequence[str], argv: Sequence[str], report: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """Start a run's next attempt on the hosts `names` with `rankdeck resume`, to which `argv` is passed.

    `run` is the run's name on the first host, the coordinator.
    """
    more = [*argv, "--set", f"hosts.use={json.dumps(list(names))}"]
    with RemoteHosts(names, report) as hosts:
        hosts.connect()
        hosts.raise_errors()
        return _launch(hosts, None, lambda host, run_name: ["resume", run_name or run, *more])


def _launch(
    hosts: RemoteHosts, address: str | None, command: Callable[[RemoteHost, str], Sequence[str]]
) -> tuple[str, CommandResult]:
    """Start the coordinator's part of a run, then the parts of the other hosts.

    `command(host, run)` returns the command for a host; `run` is the run's name on the coordinator, empty
    until it is known.
    """
    coordinator, *others = hosts.all
    detached = ["--detach", "--json"]
    listen = ["--listen", address or find_coordinator_address(coordinator, others)]
    first = coordinator.start_command(
        [*command(coordinator, ""), *detached, *listen], {HOST_NAME_ENV: coordinator.name}
    )
    try:
        result = _wait_for_results(hosts, [first])
        commands = [
            host.start_command(
                [*command(host, result.run), *detached], {JOIN_ENV: result.place, HOST_NAME_ENV: host.name}
            )
            for host in others
        ]
        _wait_for_results(hosts, commands, f"{coordinator.name}:{result.path}")
    except BaseException:
        # Also after Ctrl-C: a run that has started on some hosts only would wait there for the others.
        _stop(hosts, first)
        raise
    return coordinator.name, result


def _stop(hosts: RemoteHosts, first: RemoteCommand) -> None:
    """Wait until `first`, the coordinator's command, has printed the run's path; then stop that run."""
    coordinator = first.host
    hosts.poll_until(lambda: first.exit_code is not None or coordinator.error is not None, _STOP_TIMEOUT_S)
    path, stopped = first.result().path, first
    if path:
        stopped = coordinator.start_command(["stop", path, "--now"])
        hosts.poll_until(
            lambda: stopped.exit_code is not None or coordinator.error is not None, _STOP_TIMEOUT_S
        )
    if stopped.exit_code is None or (path and stopped.exit_code):
        coordinator.report(
            phrase("a run may still be active; list runs: rankdeck --host {host} runs", host=coordinator.name)
        )


def find_coordinator_address(coordinator: RemoteHost, others: Sequence[RemoteHost]) -> str:
    """Return the address at which the nodes reach the coordinator."""
    if not ssh.is_local_host(coordinator.name):
        return coordinator.link.address
    client_addresses = [host.link.client_address for host in others if not ssh.is_local_host(host.name)]
    return client_addresses[0] if client_addresses else "127.0.0.1"


def _wait_for_results(
    hosts: RemoteHosts, commands: Sequence[RemoteCommand], run_location: str = ""
) -> CommandResult:
    """Wait until all commands have ended and return the result of the last one in `commands`.

    `run_location` is the path of the coordinator's part of the run ("host:path"), for the advice in an error.

    Raises:
        MachineError, ConfigError: a part could not be started.
    """
    hosts.poll_until(lambda: all(ran.exit_code is not None or ran.host.error for ran in commands))
    hosts.raise_errors(ran.host for ran in commands)
    result = CommandResult()
    for ran in commands:
        result = ran.result()
        if ran.exit_code != 0 or not result.path:
            raise _launch_error(ran, result, run_location)
    return result


def _launch_error(ran: RemoteCommand, result: CommandResult, run_location: str) -> MachineError | ConfigError:
    kind = ConfigError if ran.exit_code == ConfigError.exit_code else MachineError
    if not result.problems:
        return kind(phrase("{host}: {reason}", host=ran.host.name, reason=ran.failure_text()), code="part")
    problem = result.problems[0]
    is_gone = bool(run_location) and problem.code == RunNotFoundError.code
    return kind(
        phrase("{host}: {reason}", host=ran.host.name, reason=problem.message),
        code=problem.code,
        path=problem.path,
        advice=_copy_advice(ran.host, run_location) if is_gone else problem.advice,
    )


def _copy_advice(host: RemoteHost, run_location: str) -> str:
    """Return the advice to copy the coordinator's part of a run to a host whose own part is missing.

    All parts have the same checkpoints. The folder of runs is assumed to have the same path on both hosts.
    """
    coordinator, _, path = run_location.partition(":")
    source, folder = (
        path if ssh.is_local_host(coordinator) else run_location,
        f"{PurePosixPath(path).parent}/",
    )
    there = folder if ssh.is_local_host(host.name) else f"{host.name}:{folder}"
    return phrase(
        "The run's folder is missing on that host. Before you resume again, copy it there: scp -3 -r "
        "{source} {there}",
        source=source,
        there=there,
    )
