"""A rank as the supervisor's child: polled, signalled, ended with all of its session."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

from rankdeck.base.errors import MachineError
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import phrase
from rankdeck.launch.processes import is_suspended, signal_sessions
from rankdeck.launch.streams import RankStreams

GRACE_S = 3.0
"""From TERM to KILL."""
_POLL_S = 0.01


class Child:
    """One rank, which leads a session. `exit_code` is None while it lives, negative when a signal ended it.

    `ended_at` is when we began to end it (Unix seconds): its exit tells nothing then. None where it ended by
    itself.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.exit_code: int | None = None
        self.ended_at: float | None = None
        self.was_suspended = False

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    @property
    def is_suspended(self) -> bool:
        """Whether a signal (SIGSTOP) has suspended it."""
        return self.exit_code is None and is_suspended(self.pid)

    def send(self, number: int) -> None:
        """Signal the rank alone."""
        if self.poll() is None:
            os.kill(self.pid, number)


def end_ranks(ranks: Sequence[Child], grace_s: float, is_saving: Callable[[], bool] = lambda: False) -> None:
    """TERM to the session of every rank that lives, `grace_s` seconds, then KILL to all that is left of every
    session: data loading processes have the rank's session, whatever group they are in.

    `is_saving`: whether a checkpoint is being written, which is waited for.
    """
    alive = [rank for rank in ranks if rank.poll() is None]
    for rank in alive:
        rank.ended_at = rank.ended_at or time.time()
        rank.was_suspended = rank.was_suspended or rank.is_suspended
    if alive and grace_s > 0:
        signal_sessions({rank.pid for rank in alive}, signal.SIGTERM)
        # A suspended process acts on TERM only once it goes on.
        signal_sessions({rank.pid for rank in alive}, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while any(rank.poll() is None for rank in alive) and (time.monotonic() < deadline or is_saving()):
            time.sleep(_POLL_S)
    signal_sessions({rank.pid for rank in ranks}, signal.SIGKILL)
    deadline = time.monotonic() + 1.0
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


# Ranks of a person's own script: started as torchrun starts them, ended by session, signalled as a terminal
# would.
#
# Each leads a session of its own, dies with the supervisor, and has what it writes relayed (streams.py).
# Ranks are started while the supervisor has one thread.

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
