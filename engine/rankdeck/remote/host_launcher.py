"""The parts of one run of several hosts, each started on its host through one pipe.

    all pipes come about  ->  the configuration and its code go to all  ->  the first host begins, and listens
    ->  the others join it  ->  from there on the run needs none of these pipes

What one host cannot do ends what the others have begun. The way to the first host is where ssh reached it,
or, where that is this one, whence ssh came to the others.
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
    config: RunConfig, runs: Path | None, say: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """Start a run on the hosts that the configuration names: the first host, and what it says of the run.
    `runs` is where the run goes, on this host alone where it is one of them. `say(host, words)` gets what
    happens there.

    Raises:
        MachineError, ConfigError: one cannot be reached, or its part cannot be begun.
    """
    archive = snapshot.pack(config)
    with RemoteHosts(config.hosts.use, say) as hosts:
        hosts.connect()
        hosts.raise_errors()
        for host in hosts.all:
            host.send_archive(archive)
        hosts.poll_until(lambda: all(host.error or host.folder for host in hosts.all))
        hosts.raise_errors()
        into = [] if runs is None else ["--runs", str(runs)]
        has_it = {host.name for host in hosts.all if ssh.is_local_host(host.name)} or {*config.hosts.use}

        def command(host: RemoteHost, run: str) -> list[str]:
            return ["train", f"{host.folder}/{snapshot.CONFIG_NAME}", *(into if host.name in has_it else [])]

        return _launch(hosts, config.hosts.address, command)


def relaunch_on_hosts(
    run: str, names: Sequence[str], argv: Sequence[str], say: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """The next attempt of a run on these hosts; the first of them had it, and knows it by this name."""
    more = [*argv, "--set", f"hosts.use={json.dumps(list(names))}"]
    with RemoteHosts(names, say) as hosts:
        hosts.connect()
        hosts.raise_errors()
        return _launch(hosts, None, lambda host, known: ["resume", known or run, *more])


def _launch(
    hosts: RemoteHosts, address: str | None, command: Callable[[RemoteHost, str], Sequence[str]]
) -> tuple[str, CommandResult]:
    """`command(host, run)`: what begins a host's part; `run` is what the first one calls it, once known."""
    head, *others = hosts.all
    detached = ["--detach", "--json"]
    listen = ["--listen", address or find_coordinator_address(head, others)]
    first = head.start_command([*command(head, ""), *detached, *listen], {HOST_NAME_ENV: head.name})
    try:
        begun = _wait_for_results(hosts, [first])
        asked = [
            host.start_command(
                [*command(host, begun.run), *detached], {JOIN_ENV: begun.place, HOST_NAME_ENV: host.name}
            )
            for host in others
        ]
        _wait_for_results(hosts, asked, f"{head.name}:{begun.path}")
    except BaseException:
        _stop(hosts, first)
        raise
    return head.name, begun


def _stop(hosts: RemoteHosts, first: RemoteCommand) -> None:
    """What is only beginning can be stopped once it has said where it is."""
    head = first.host
    hosts.poll_until(lambda: first.exit_code is not None or head.error is not None, _STOP_TIMEOUT_S)
    path, stopped = first.result().path, first
    if path:
        stopped = head.start_command(["stop", path, "--now"])
        hosts.poll_until(lambda: stopped.exit_code is not None or head.error is not None, _STOP_TIMEOUT_S)
    if stopped.exit_code is None or (path and stopped.exit_code):
        head.say(phrase("a run may go on here: rankdeck --host {host} runs", host=head.name))


def find_coordinator_address(head: RemoteHost, others: Sequence[RemoteHost]) -> str:
    """Of the first host, for the others."""
    if not ssh.is_local_host(head.name):
        return head.link.address
    callers = [host.link.client_address for host in others if not ssh.is_local_host(host.name)]
    return callers[0] if callers else "127.0.0.1"


def _wait_for_results(hosts: RemoteHosts, asked: Sequence[RemoteCommand], whole: str = "") -> CommandResult:
    """What the last one says, once all have; `whole`: where the first host's part is. Raises: MachineError, a
    part could not be begun."""
    hosts.poll_until(lambda: all(ran.exit_code is not None or ran.host.error for ran in asked))
    hosts.raise_errors(ran.host for ran in asked)
    begun = CommandResult()
    for ran in asked:
        begun = ran.result()
        if ran.exit_code != 0 or not begun.path:
            raise _launch_error(ran, begun, whole)
    return begun


def _launch_error(ran: RemoteCommand, begun: CommandResult, whole: str) -> MachineError | ConfigError:
    kind = ConfigError if ran.exit_code == ConfigError.exit_code else MachineError
    if not begun.problems:
        return kind(phrase("{host}: {reason}", host=ran.host.name, reason=ran.failure_text()), code="part")
    problem = begun.problems[0]
    is_gone = bool(whole) and problem.code == RunNotFoundError.code
    return kind(
        phrase("{host}: {reason}", host=ran.host.name, reason=problem.message),
        code=problem.code,
        path=problem.path,
        advice=_copy_advice(ran.host, whole) if is_gone else problem.advice,
    )


def _copy_advice(host: RemoteHost, whole: str) -> str:
    """What helps where a host's part of a run is gone: what it saved, the first host has too. Its folder of
    runs is taken to be called as there."""
    head, _, path = whole.partition(":")
    source, folder = path if ssh.is_local_host(head) else whole, f"{PurePosixPath(path).parent}/"
    there = folder if ssh.is_local_host(host.name) else f"{host.name}:{folder}"
    return phrase(
        "Its part of the run is gone. Copy it there, then resume again: scp -3 -r {source} {there}",
        source=source,
        there=there,
    )
