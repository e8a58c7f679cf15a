"""A rank as the supervisor's child: polled, signalled, ended with all of its session. forked_ranks.py and
script_ranks.py have the two kinds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from rankdeck.launch.processes import is_suspended, signal_sessions
from rankdeck.launch.streams import StreamRelay, wait_for_relays

GRACE_S = 3.0
"""From TERM to KILL."""
_POLL_INTERVAL_S = 0.01


class RankProcess:
    """One rank, which leads a session. `exit_code` is None while it lives, negative when a signal ended it.

    `terminated_at` is when we began to end it (Unix seconds): its exit tells nothing then. None where it
    ended by itself. What it writes is in its logs, or on the way there by `relays`.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.exit_code: int | None = None
        self.terminated_at: float | None = None
        self.was_suspended = False
        self.relays: Sequence[StreamRelay] = ()

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

    def send_signal(self, number: int) -> None:
        """Signal the rank alone."""
        if self.poll() is None:
            os.kill(self.pid, number)


def terminate_ranks(
    ranks: Sequence[RankProcess], grace_s: float, is_saving: Callable[[], bool] = lambda: False
) -> None:
    """TERM to the session of every rank that lives, `grace_s` seconds, then KILL to all that is left of every
    session: data loading processes have the rank's session, whatever group they are in.

    `is_saving`: whether a checkpoint is being written, which is waited for.
    """
    alive = [rank for rank in ranks if rank.poll() is None]
    for rank in alive:
        rank.terminated_at = rank.terminated_at or time.time()
        rank.was_suspended = rank.was_suspended or rank.is_suspended
    if alive and grace_s > 0:
        signal_sessions({rank.pid for rank in alive}, signal.SIGTERM)
        # A suspended process acts on TERM only once it goes on.
        signal_sessions({rank.pid for rank in alive}, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while any(rank.poll() is None for rank in alive) and (time.monotonic() < deadline or is_saving()):
            time.sleep(_POLL_INTERVAL_S)
    signal_sessions({rank.pid for rank in ranks}, signal.SIGKILL)
    deadline = time.monotonic() + 1.0
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)


def drain_streams(
    ranks: Sequence[RankProcess],
    timeout_s: float,
    *,
    waits_for_reader: bool = True,
    is_cancelled: Callable[[], bool],
) -> None:
    """Wait until what these have written has arrived, as `streams.finish` does."""
    begun = [relay for rank in ranks for relay in rank.relays if relay.ident is not None]
    wait_for_relays(begun, timeout_s, waits_for_reader=waits_for_reader, is_cancelled=is_cancelled)
