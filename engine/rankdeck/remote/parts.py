"""The parts of one run of several hosts, each started on its host through one pipe.

    all pipes come about  ->  the configuration and its code go to all  ->  the first host begins, and listens
    ->  the others join it  ->  from there on the run needs none of these pipes

What one host cannot do ends what the others have begun. The way to the first host is where ssh reached it,
or, where that is this one, whence ssh came to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from rankdeck.base.errors import ConfigError, MachineError, Problem, RankdeckError
from rankdeck.base.parsing import json_of
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.config.over_hosts import JOIN, NAME
from rankdeck.remote import snapshot, ssh, wire
from rankdeck.remote.link import Link

_TURN_S = 0.02
_MOST_SAID_BYTES = 1 << 20
_ASKED = 0
_END_S = 10.0


class Begun(msgspec.Struct):
    """What `train --detach --json` says of a host's part; `place` is where others join it."""

    run: str = ""
    path: str = ""
    place: str = ""
    problems: list[Problem] = []


@dataclass
class _Host:
    name: str
    link: Link
    folder: str | None = None
    """Of the configuration there."""
    code: int | None = None
    said: bytearray = field(default_factory=bytearray)


class Parts:
    """Of a run of the hosts that the configuration names. A context manager; `say` gets what they say."""

    def __init__(self, config: RunConfig, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._archive = snapshot.pack(config)
        self._hosts: list[_Host] = []

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            try:
                host.link.close()
            except RankdeckError:
                pass

    def begin(self, argv: Sequence[str]) -> tuple[str, Begun]:
        """Start all parts, with these arguments of `train`; the first host, and what it says of the run.

        Raises:
            MachineError, ConfigError: one cannot be reached, or its part cannot be begun.
        """
        self._connect()
        self._send_archive()
        head, *others = self._hosts
        asked = [*argv, "--detach", "--json"]
        self._command([head], [*asked, "--listen", self._address(head, others)], {})
        begun = self._answer(head)
        try:
            self._command(others, asked, {JOIN: begun.place})
            for host in others:
                self._answer(host)
        except BaseException:
            self._end(head, begun.path)
            raise
        return head.name, begun

    def _connect(self) -> None:
        for name in self._config.hosts.use:
            self._hosts.append(_Host(name, self._link(name)))
        self._poll_until(lambda: all(host.link.is_up for host in self._hosts), self._hosts)

    def _link(self, name: str) -> Link:
        return Link(name, lambda message, body: self._take(name, message, body))

    def _send_archive(self) -> None:
        for host in self._hosts:
            for start in range(0, len(self._archive), wire.MAX_BODY_BYTES):
                body = self._archive[start : start + wire.MAX_BODY_BYTES]
                last = start + len(body) == len(self._archive)
                host.link.send(wire.Put(number=_ASKED, last=last), body)
        self._poll_until(lambda: all(host.folder is not None for host in self._hosts), self._hosts)

    def _address(self, head: _Host, others: Sequence[_Host]) -> str:
        """Of the first host, for the others."""
        if self._config.hosts.address is not None:
            return self._config.hosts.address
        if not ssh.is_here(head.name):
            return head.link.address
        callers = [host.link.caller for host in others if not ssh.is_here(host.name)]
        return callers[0] if callers else "127.0.0.1"

    def _command(self, hosts: Sequence[_Host], argv: Sequence[str], environment: Mapping[str, str]) -> None:
        for host in hosts:
            host.code = None
            host.said.clear()
            own = {**environment, NAME: host.name}
            words = ["train", f"{host.folder}/{snapshot.CONFIG}", *argv]
            host.link.send(wire.Command(number=_ASKED, argv=words, environment=own))
        self._poll_until(lambda: all(host.code is not None for host in hosts), hosts)

    def _answer(self, host: _Host) -> Begun:
        """Raises: MachineError, its part could not be begun."""
        try:
            begun = msgspec.convert(json_of(bytes(host.said)), Begun)
        except (ValueError, msgspec.ValidationError):
            begun = Begun()
        if host.code == 0 and begun.path:
            return begun
        problem = begun.problems[0] if begun.problems else None
        why = problem.message if problem else phrase("it ended with {code}", code=host.code)
        kind = ConfigError if host.code == 2 else MachineError
        raise kind(
            phrase("{host}: {reason}", host=host.name, reason=why),
            code=problem.code if problem else "part",
            path=problem.path if problem else None,
            advice=problem.advice if problem else None,
        )

    def _end(self, head: _Host, path: str) -> None:
        """What has begun there."""
        head.code = None
        try:
            head.link.send(wire.Command(number=_ASKED, argv=["stop", path, "--now"]))
            until_s = time.monotonic() + _END_S
            self._poll_until(lambda: head.code is not None or time.monotonic() > until_s, [head])
        except RankdeckError:
            pass  # its guard ends by itself: not all hosts come

    def _poll_until(self, is_done: Callable[[], bool], hosts: Sequence[_Host]) -> None:
        """Raises: MachineError, there is no connection to one of them, or it broke."""
        was_up = {host.name for host in self._hosts if host.link.is_up}
        while not is_done():
            for host in self._hosts:
                host.link.poll(_TURN_S / len(self._hosts))
                if host.name in was_up and not host.link.is_up and host in hosts:
                    raise MachineError(
                        phrase("The connection to {host} broke.", host=host.name),
                        code="connection-lost",
                        advice=phrase("See whether this works: ssh {host} true", host=host.name),
                    )

    def _take(self, name: str, message: wire.ToNear, body: bytes) -> None:
        host = next(host for host in self._hosts if host.name == name)
        match message:
            case wire.Unpacked():
                host.folder = message.path
            case wire.Output():
                if message.stream == 1:
                    host.said += body[: _MOST_SAID_BYTES - len(host.said)]
                else:
                    self._say(f"{name}: {body.decode(errors='replace').strip()}")
            case wire.Ended():
                host.code = message.code
            case wire.Refused():
                raise MachineError(
                    phrase("{host}: {reason}", host=name, reason=message.message),
                    code=message.code,
                    advice=message.advice or None,
                )
            case _:
                raise wire.WireError("nobody asked for it")
