"""A rank as a child process of the supervisor, which polls it, signals it and ends its whole session.

forked_ranks.py and script_ranks.py implement the two kinds of ranks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from rankdeck.launch.processes import is_suspended, signal_sessions
from rankdeck.launch.streams import StreamRelay, wait_for_relays

GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""
_POLL_INTERVAL_S = 0.01


class RankProcess:
    """One rank, the leader of its session. `exit_code` is None while the rank is alive, and negative if a
    signal ended it.

    `terminated_at` is the time (Unix seconds) at which the supervisor started to terminate the rank; an exit
    code after that time means nothing. `terminated_at` is None if the supervisor did not terminate the rank.
    The rank's output is in its logs, or is still being relayed there by `relays`.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.exit_code: int | None = None
        self.terminated_at: float | None = None
        self.was_suspended = False
        self.relays: Sequence[StreamRelay] = ()

    def poll(self) -> int | None:
        """Return the exit code; None while the rank is alive."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    @property
    def is_suspended(self) -> bool:
        """Whether the rank is suspended by a signal (SIGSTOP)."""
        return self.exit_code is None and is_suspended(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal to the rank's own process only."""
        if self.poll() is None:
            os.kill(self.pid, number)


def terminate_ranks(
    ranks: Sequence[RankProcess], grace_s: float, is_saving: Callable[[], bool] = lambda: False
) -> None:
    """Send TERM to the session of every living rank, wait for up to `grace_s`, then send KILL to all
    remaining processes of all ranks' sessions.

    DataLoader workers are in the rank's session, whatever their process group. While `is_saving` returns
    True, a checkpoint is being written and KILL is delayed until `grace_s` after its end: the rank still has
    to report the save.
    """
    alive = [rank for rank in ranks if rank.poll() is None]
    for rank in alive:
        rank.terminated_at = rank.terminated_at or time.time()
        rank.was_suspended = rank.was_suspended or rank.is_suspended
    if alive and grace_s > 0:
        signal_sessions({rank.pid for rank in alive}, signal.SIGTERM)
        # A suspended process handles TERM only once it continues.
        signal_sessions({rank.pid for rank in alive}, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while any(rank.poll() is None for rank in alive) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
            if is_saving():
                deadline = time.monotonic() + grace_s
    # Also the sessions of ranks that have ended: their DataLoader workers may still run.
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
    """Wait until the ranks' output has been relayed, as in `streams.wait_for_relays`."""
    started_relays = [relay for rank in ranks for relay in rank.relays if relay.ident is not None]
    wait_for_relays(started_relays, timeout_s, waits_for_reader=waits_for_reader, is_cancelled=is_cancelled)
