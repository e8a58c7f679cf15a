"""Use several hosts at once: a pipe to each, commands that run in parallel, and their output."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from rankdeck.base.errors import MachineError, Problem, RankdeckError
from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import phrase
from rankdeck.remote import wire
from rankdeck.remote.link import HostLink

_POLL_INTERVAL_S = 0.02
_MAX_OUTPUT_BYTES = 1 << 20


class CommandResult(msgspec.Struct):
    """JSON result of a command that starts a run: the run's location, or the problems if it did not start.

    `place` is the address at which other hosts join the run.
    """

    run: str = ""
    path: str = ""
    place: str = ""
    problems: list[Problem] = []

    @classmethod
    def parse(cls, output: str | bytes) -> CommandResult:
        """Parse a command's output; return an empty result if the output is not a result in JSON."""
        try:
            return msgspec.convert(parse_json(output), cls)
        except (ValueError, msgspec.ValidationError):
            return cls()

    @property
    def attempt(self) -> int:
        """Number of the attempt that the command started; 0 if `place` does not contain a number."""
        number = self.place.rpartition("@")[2]
        return int(number) if number.isdecimal() else 0


class RemoteCommand:
    """A command on a host. `out` and `err` are its output so far; `exit_code` is set once it has ended."""

    def __init__(self, host: RemoteHost, number: int) -> None:
        self.host, self.number = host, number
        self.out, self.err = bytearray(), bytearray()
        self.exit_code: int | None = None

    def result(self) -> CommandResult:
        """Parse the output of a command with --json."""
        return CommandResult.parse(bytes(self.out))

    def failure_text(self) -> str:
        """Return the first line of a failed command's stderr, or a text with its exit code."""
        lines = bytes(self.err).decode(errors="replace").splitlines()
        messages = [line.strip() for line in lines if line.strip()]
        return (
            messages[0][:300]
            if messages
            else phrase("rankdeck exited with status {code}", code=self.exit_code or 0)
        )

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the command, by default SIGTERM."""
        if self.exit_code is None:
            self.host.link.send(wire.Signal(number=self.number, signal=number))


class RemoteHost:
    """One remote host. `folder` is the path of the unpacked code on that host.

    `refusal` is the host's answer to a request that it refused; `error` is the reason why the host is no
    longer used. `on_output` is called with a command's output: the stream (1 or 2) and the bytes.
    """

    def __init__(
        self,
        name: str,
        report: Callable[[str, str], None] = lambda *_: None,
        on_output: Callable[[int, bytes], None] = lambda *_: None,
    ) -> None:
        self.name = name
        self.folder: str | None = None
        self.refusal: wire.Refused | None = None
        self.error: RankdeckError | None = None
        self.report = partial(report, name)
        self._on_output = on_output
        self._commands: list[RemoteCommand] = []
        self.was_up = False
        self.link = HostLink(name, self._handle_message)

    def start_command(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, folder: str = ""
    ) -> RemoteCommand:
        """Start `rankdeck ARGV` on the host, with `folder` as its working directory."""
        ran = RemoteCommand(self, len(self._commands))
        self._commands.append(ran)
        variables = dict(environment or {})
        command = wire.Command(number=ran.number, argv=list(argv), environment=variables, folder=folder)
        self.link.send(command)
        return ran

    def send_archive(self, archive: bytes) -> None:
        for start in range(0, len(archive), wire.MAX_BODY_BYTES):
            body = archive[start : start + wire.MAX_BODY_BYTES]
            self.link.send(wire.Put(number=0, last=start + len(body) == len(archive)), body)

    def poll(self, timeout_s: float) -> None:
        """Process messages for up to `timeout_s`. After an error, which is stored in `error`, this does
        nothing."""
        if self.error is not None:
            return
        try:
            self.link.poll(timeout_s)
        except RankdeckError as error:
            self.error = error
            return
        if (refusal := self.refusal) is not None:
            message = phrase("{host}: {reason}", host=self.name, reason=refusal.message)
            self.error = MachineError(message, code=refusal.code, advice=refusal.advice or None)
        elif self.was_up and not self.link.is_up:
            self.error = MachineError(
                phrase("The connection to {host} was lost.", host=self.name),
                code="connection-lost",
                advice=phrase("Check that this works: ssh {host} true", host=self.name),
            )
        self.was_up = self.link.is_up

    def _handle_message(self, message: wire.ToClient, body: bytes) -> None:
        match message:
            case wire.Unpacked():
                self.folder = message.path
            case wire.Output():
                self._on_output(message.stream, body)
                if message.number < len(self._commands):
                    ran = self._commands[message.number]
                    output = ran.out if message.stream == 1 else ran.err
                    output += body[: _MAX_OUTPUT_BYTES - len(output)]
                if message.stream != 1:
                    self.report(body.decode(errors="replace").strip())
            case wire.Ended() if message.number < len(self._commands):
                self._commands[message.number].exit_code = message.code
            case wire.Refused():
                self.refusal = message
            case _:
                raise wire.WireError(f"unexpected message: {type(message).__name__}")


class RemoteHosts:
    """Context manager for several remote hosts; `all` lists them in the order of `names`. `report(host,
    text)` is called with the commands' stderr.

    Raises:
        ConfigError: a host's name is invalid.
    """

    def __init__(self, names: Iterable[str], report: Callable[[str, str], None]) -> None:
        self.all: list[RemoteHost] = []
        try:
            for name in names:
                self.all.append(RemoteHost(name, report))
        except RankdeckError:
            self.close()
            raise

    def __enter__(self) -> RemoteHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for host in self.all:
            host.link.close()

    @property
    def reachable(self) -> list[RemoteHost]:
        """The hosts that are connected and have no error."""
        return [host for host in self.all if host.error is None and host.link.is_up]

    def connect(self, timeout_s: float | None = None) -> None:
        """Wait until each host is connected or has an error."""
        self.poll_until(lambda: all(host.error or host.link.is_up for host in self.all), timeout_s)

    def poll_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Poll all hosts until `is_done` returns true; return False after `timeout_s`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_done():
            if until_s is not None and time.monotonic() > until_s:
                return False
            # Every link has failed, so no poll below waits: do not spin.
            if not any(host.error is None for host in self.all):
                time.sleep(_POLL_INTERVAL_S)
            for host in self.all:
                host.poll(_POLL_INTERVAL_S / len(self.all))
        return True

    def raise_errors(self, hosts: Iterable[RemoteHost] | None = None) -> None:
        """Raise the error of the first host that has an error; check all hosts if `hosts` is None.

        Raises:
            RankdeckError: a host has an error.
        """
        for host in self.all if hosts is None else hosts:
            if host.error is not None:
                raise host.error
