"""Ranks of a person's own script: started as torchrun starts them, ended by session, signalled as a terminal
would.

Each leads a session of its own, dies with the supervisor, and has what it writes relayed (streams.py). Ranks
are started while the supervisor has one thread. Read children.py before and script_supervisor.py next.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence

from rankdeck.base.errors import MachineError
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import phrase
from rankdeck.launch.children import Child
from rankdeck.launch.processes import signal_sessions
from rankdeck.launch.streams import RankStreams

_TO_GROUP = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH}
"""What a terminal sends to everything in its foreground; `kill` sends the rest to the process alone."""


class ScriptRank(Child):
    """One rank of a script.

    Raises: MachineError: it cannot be started.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        streams: RankStreams,
    ) -> None:
        super().__init__(rank)
        self.streams = streams
        supervisor = os.getpid()

        def before_exec() -> None:
            die_with_parent(supervisor)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if streams.terminal is not None:
                fcntl.ioctl(streams.terminal, termios.TIOCSCTTY, 0)

        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except OSError as error:
            raise MachineError(
                phrase(
                    "{program} could not be started: {why}.",
                    program=error.filename or command[0],
                    why=error.strerror,
                ),
                code="cannot-start",
                advice=phrase("Check that it exists and may be executed."),
            ) from None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        if self.exit_code is None:
            self.exit_code = self._process.poll()
        return self.exit_code

    def pass_on(self, number: int) -> None:
        """A signal that somebody sent to the command."""
        if self.poll() is not None:
            return
        if number in (signal.SIGTSTP, signal.SIGSTOP):
            # No shell could continue a rank: its group is an orphan, where SIGTSTP does nothing.
            signal_sessions({self.pid}, signal.SIGSTOP)
        elif number == signal.SIGCONT:
            signal_sessions({self.pid}, signal.SIGCONT)
        elif number == signal.SIGWINCH:
            self.streams.resize()
        elif number in _TO_GROUP:
            self._send_to_foreground(number)
        else:
            self.send(number)

    def _send_to_foreground(self, number: int) -> None:
        try:
            os.killpg(self.streams.foreground() or self.pid, number)
        except OSError:
            self.send(number)


def script_status(exit_code: int) -> int:
    """What a shell would tell: 128 + n for signal n."""
    return 128 - exit_code if exit_code < 0 else exit_code
