"""Common base of the guards of a multi-host run, one per host.

    the coordinator listens  ->  nodes connect and describe themselves  ->  all get the layout and start their
    supervisors  ->  guards exchange heartbeats (peers.py)  ->  each guard reports how its host's part of the
    run has ended  ->  the remaining hosts start the next attempt together, or leave

When a part fails or a host is lost, the coordinator makes the other hosts end their parts. If the connection
to another host is lost, the supervisor is killed, because its ranks may block in a call that never returns.
The coordinator leaves last and records the outcome of the whole run. Read coordinator_guard.py and
guard_start.py next. Standard library only, like the whole guard.
"""

from __future__ import annotations

import abc
import json
import time

from rankdeck.launch.exit_record import Sentence, killed_message, phrase
from rankdeck.launch.guard import EXIT_STOPPED, KILL_AFTER_S, Guard
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.peers import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    INTERFACE_DOWN,
    ISOLATED,
    SILENT,
    SUSPENDED,
    GuardMessage,
)

VICTIM_TIMEOUT_S = 5.0
"""Time that a host's part of the run gets to report its own failure before it is ended because of another
host."""
LEAVE_TIMEOUT_S = KILL_AFTER_S + VICTIM_TIMEOUT_S + HEARTBEAT_TIMEOUT_S
"""How long the coordinator waits for the nodes to end their parts of the run or to disconnect."""
REMOVED_TEXT = phrase("The run's folder was removed while the run was in progress.")
_LOST_HOST_ADVICE = phrase("Check that the host is on and reachable, then resume from the newest checkpoint.")


class HostGuard(Guard, abc.ABC):
    # Heartbeats are sent between two waits, so a wait must be shorter than their interval.
    poll_interval_s = HEARTBEAT_INTERVAL_S / 2

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        assert spec["hosts"] is not None
        self.hosts_spec = spec["hosts"]
        # All hosts must start the same attempt (coordinator_guard.py, _COMPATIBILITY_KEYS).
        self.hosts_spec["own"]["attempt"] = self._attempt
        self.name = self.hosts_spec["name"]
        self.layout: GuardMessage | None = None
        self.end_reason: Sentence | None = None
        self.lost_host_reason: Sentence | None = None
        self.is_victim = False  # if it is killed, others are to blame
        self.num_restarts = 0
        self._max_restarts = self.hosts_spec["max_restarts"]

    def start(self) -> None:
        """Do nothing: the supervisor starts once all hosts have joined."""

    @abc.abstractmethod
    def poll_peers(self) -> None:
        """Process the other guards' messages and send a heartbeat."""

    @abc.abstractmethod
    def start_next_attempt(self) -> bool:
        """Wait until all hosts' parts of the run have ended, start the next attempt if possible, and return
        whether it has started."""

    @property
    def has_started(self) -> bool:
        return bool(self._supervisor)

    def start_supervisor(self, *more: str) -> None:
        """Start the supervisor of this host's part of the run; `self.layout` must be set."""
        super().start_supervisor("--hosts", json.dumps(self.layout), *more)

    def restart(self) -> bool:
        """Start the next attempt with the remaining hosts if the configuration allows it."""
        if (
            not self.has_started
            or self.layout is None
            or self._is_stop_requested
            or self.run_dir_tracker.is_deleted
        ):
            return False
        return self._max_restarts > 0 and self.start_next_attempt()

    def end_message(self) -> GuardMessage:
        """Return the message that reports the end of this host's part of the run.

        `again`, the failure's signature, is present if another attempt may help. `victim` is present if
        another host made this part fail; `host` is present if this host has found that another host is to
        blame, and names that host.
        """
        if self.is_removed:
            return {"word": "ended", "status": 1, "reason": str(REMOVED_TEXT), "code": "run-folder"}
        status = 1 if self._status is None else self._status
        report = {"again": ""} if status < 0 else self._supervisor_report()
        message: GuardMessage = {
            "word": "ended",
            "status": status,
            "reason": str(report.get("reason") or self._reason() or ""),
        }
        message |= {
            key: report[key] for key in ("again", "victim", "host") if isinstance(report.get(key), str)
        }
        if status < 0 and (self.end_reason is not None or self.is_victim):
            message["victim"] = "yes"
        elif status < 0:
            message["reason"] = str(killed_message(-status))
        return message

    def restart_local_ranks(self, failed: str) -> bool:
        """Start this host's part of the next attempt; `failed` is the failure signature of the previous
        attempt."""
        if self._status is not None and self._status < 0:
            self._exit_record.report_end("failed", 1)
        self.report_lost_save()
        self.num_restarts += 1
        self._kill_at = self.end_reason = self.lost_host_reason = None
        self.is_victim = False
        return self.start_attempt(self.num_restarts, "--failed", failed)

    def end_local_ranks(self) -> None:
        """End this host's part of the run, after giving it `VICTIM_TIMEOUT_S` to report its own failure."""
        if not self.has_started:
            self._status = 1 if self._status is None else self._status
        elif self._kill_at is None:
            self._kill_at = time.monotonic() + VICTIM_TIMEOUT_S

    def fail(self, because: Sentence) -> None:
        """Fail the run with the reason `because` if this host's supervisor has not started yet."""
        if not self.has_started:
            self.end_reason, self._status = because, 1

    def stop(self, *, now: bool) -> None:
        if self.has_started:
            super().stop(now=now)
        elif self._status is None:
            self._is_stop_requested, self._status = True, EXIT_STOPPED

    def on_removed(self) -> None:
        """End this host's part of the run; unless a stop was requested, tell the other hosts why it ended."""
        if self._is_stop_requested:
            super().on_removed()
        elif self.has_started:
            self.kill_local_ranks()
        else:
            self.fail(REMOVED_TEXT)

    @property
    def is_removed(self) -> bool:
        return self.run_dir_tracker.is_deleted and not self._is_stop_requested

    def kill_local_ranks(self) -> None:
        if self.has_started:
            self._kill_supervisor()

    def end(self) -> None:
        """Write the exit record of this host's part of the run."""
        status = 1 if self._status is None else self._status
        if self.lost_host_reason is not None and not self._is_stop_requested:
            if status < 0:
                self._exit_record.report_end("failed", 1)
            self._exit_record.report_problem("host-lost", self.lost_host_reason, _LOST_HOST_ADVICE)
            self.end_reason, self._status = self.lost_host_reason, 1
        elif self.end_reason is not None and status < 0:
            self._exit_record.report_end("failed", 1)
            self._status = 1
        super().end()

    def killed_message(self, number: int) -> Sentence:
        return phrase("{host}: {reason}", host=self.name, reason=killed_message(number))

    def _reason(self) -> str | None:
        return self.end_reason if self.end_reason is not None else super()._reason()


def ranks_by_host(layout: GuardMessage) -> dict[str, range]:
    """Return the range of ranks of each host.

    Raises:
        KeyError, TypeError: `layout` is not a valid layout.
    """
    ranks: dict[str, range] = {}
    first = 0
    for host in layout["hosts"]:
        ranks[host["name"]] = range(first, first + host["ranks"])
        first += host["ranks"]
    return ranks


def lost_host_message(name: str, address: str, how: str, local_name: str) -> Sentence:
    """Return the message about a lost host; `local_name` is this host's name."""
    if how == SUSPENDED:
        return phrase(
            "This host was suspended or asleep for more than {seconds} s, so the other hosts "
            "considered it lost.",
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    if how == INTERFACE_DOWN:
        return phrase(
            "{host} lost its connection to the other hosts: its interface is down, or its "
            "cable is unplugged.",
            host=local_name,
        )
    if how == ISOLATED:
        return phrase(
            "No other host has responded for {seconds} s: this host is disconnected, or all the others are.",
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    if how == SILENT:
        return phrase(
            "{host} ({address}) has not responded for {seconds} s: it is disconnected, "
            "suspended or powered off.",
            host=name,
            address=address,
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    return phrase(
        "{host} ({address}) closed its connection unexpectedly: its guard was killed, or the host shut down.",
        host=name,
        address=address,
    )
