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
from rankdeck.config.over_hosts import JOIN, NAME
from rankdeck.remote import snapshot, ssh
from rankdeck.remote.hosts import CommandResult, Host, Hosts, Ran

_END_S = 10.0


def begin_parts(
    config: RunConfig, runs: Path | None, say: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """Start a run on the hosts that the configuration names: the first host, and what it says of the run.
    `runs` is where the run goes, on this host alone where it is one of them. `say(host, words)` gets what
    happens there.

    Raises:
        MachineError, ConfigError: one cannot be reached, or its part cannot be begun.
    """
    archive = snapshot.pack(config)
    with Hosts(config.hosts.use, say) as hosts:
        hosts.connect()
        hosts.check()
        for host in hosts.all:
            host.send(archive)
        hosts.poll_until(lambda: all(host.error or host.folder for host in hosts.all))
        hosts.check()
        into = [] if runs is None else ["--runs", str(runs)]
        has_it = {host.name for host in hosts.all if ssh.is_here(host.name)} or {*config.hosts.use}

        def command(host: Host, run: str) -> list[str]:
            return ["train", f"{host.folder}/{snapshot.CONFIG}", *(into if host.name in has_it else [])]

        return _begin(hosts, config.hosts.address, command)


def begin_parts_again(
    run: str, names: Sequence[str], argv: Sequence[str], say: Callable[[str, str], None]
) -> tuple[str, CommandResult]:
    """The next attempt of a run on these hosts; the first of them had it, and knows it by this name."""
    more = [*argv, "--set", f"hosts.use={json.dumps(list(names))}"]
    with Hosts(names, say) as hosts:
        hosts.connect()
        hosts.check()
        return _begin(hosts, None, lambda host, known: ["resume", known or run, *more])


def _begin(
    hosts: Hosts, address: str | None, command: Callable[[Host, str], Sequence[str]]
) -> tuple[str, CommandResult]:
    """`command(host, run)`: what begins a host's part; `run` is what the first one calls it, once known."""
    head, *others = hosts.all
    detached = ["--detach", "--json"]
    listen = ["--listen", address or address_of(head, others)]
    first = head.begin([*command(head, ""), *detached, *listen], {NAME: head.name})
    try:
        begun = _answer(hosts, [first])
        asked = [
            host.begin([*command(host, begun.run), *detached], {JOIN: begun.place, NAME: host.name})
            for host in others
        ]
        _answer(hosts, asked, f"{head.name}:{begun.path}")
    except BaseException:
        _stop(hosts, first)
        raise
    return head.name, begun


def _stop(hosts: Hosts, first: Ran) -> None:
    """What is only beginning can be stopped once it has said where it is."""
    head = first.host
    hosts.poll_until(lambda: first.code is not None or head.error is not None, _END_S)
    path, stopped = first.result().path, first
    if path:
        stopped = head.begin(["stop", path, "--now"])
        hosts.poll_until(lambda: stopped.code is not None or head.error is not None, _END_S)
    if stopped.code is None or (path and stopped.code):
        head.say(phrase("a run may go on here: rankdeck --host {host} runs", host=head.name))


def address_of(head: Host, others: Sequence[Host]) -> str:
    """Of the first host, for the others."""
    if not ssh.is_here(head.name):
        return head.link.address
    callers = [host.link.caller for host in others if not ssh.is_here(host.name)]
    return callers[0] if callers else "127.0.0.1"


def _answer(hosts: Hosts, asked: Sequence[Ran], whole: str = "") -> CommandResult:
    """What the last one says, once all have; `whole`: where the first host's part is. Raises: MachineError, a
    part could not be begun."""
    hosts.poll_until(lambda: all(ran.code is not None or ran.host.error for ran in asked))
    hosts.check(ran.host for ran in asked)
    begun = CommandResult()
    for ran in asked:
        begun = ran.result()
        if ran.code != 0 or not begun.path:
            raise _why_not(ran, begun, whole)
    return begun


def _why_not(ran: Ran, begun: CommandResult, whole: str) -> MachineError | ConfigError:
    kind = ConfigError if ran.code == ConfigError.exit_code else MachineError
    if not begun.problems:
        return kind(phrase("{host}: {reason}", host=ran.host.name, reason=ran.reason()), code="part")
    problem = begun.problems[0]
    is_gone = bool(whole) and problem.code == RunNotFoundError.code
    return kind(
        phrase("{host}: {reason}", host=ran.host.name, reason=problem.message),
        code=problem.code,
        path=problem.path,
        advice=_copy_it(ran.host, whole) if is_gone else problem.advice,
    )


def _copy_it(host: Host, whole: str) -> str:
    """What helps where a host's part of a run is gone: what it saved, the first host has too. Its folder of
    runs is taken to be called as there."""
    head, _, path = whole.partition(":")
    source, folder = path if ssh.is_here(head) else whole, f"{PurePosixPath(path).parent}/"
    there = folder if ssh.is_here(host.name) else f"{host.name}:{folder}"
    return phrase(
        "Its part of the run is gone. Copy it there, then resume again: scp -3 -r {source} {there}",
        source=source,
        there=there,
    )
