"""What the guards of a run's parts have in common, each on one of several hosts.

    the head's listens  ->  the others' connect and say what they have  ->  all hear of all, and start their
    supervisors  ->  they hold on to each other (peers.py)  ->  whose part is over says how

    ->  the head has heard of all: all begin the next attempt with who is left, or leave

When a part fails, or a host goes, the head has the others end theirs. A supervisor whose other hosts are gone
is killed: its ranks may wait in a call that never returns. The head goes last and says how all went. Read
coordinator_guard.py and guard_start.py next. Standard library only, as all of the guard.
"""

from __future__ import annotations

import abc
import json
import time

from rankdeck.launch.exit_record import Sentence, killed_message, phrase
from rankdeck.launch.guard import EXIT_STOPPED, STOP_TIMEOUT_S, Guard
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
"""How long a part that others have made fail may take to say so itself."""
LEAVE_TIMEOUT_S = STOP_TIMEOUT_S + VICTIM_TIMEOUT_S + HEARTBEAT_TIMEOUT_S
"""How long the head waits for the others' ends."""
REMOVED_TEXT = phrase("The run's folder was removed while the run went on.")
_LOST_HOST_ADVICE = phrase("See whether it is on and reachable, then go on from the newest checkpoint.")


class HostGuard(Guard, abc.ABC):
    poll_interval_s = HEARTBEAT_INTERVAL_S / 2

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        assert spec["hosts"] is not None
        self.hosts_spec = spec["hosts"]
        self.hosts_spec["own"]["attempt"] = self._attempt
        self.name = self.hosts_spec["name"]
        self.layout: GuardMessage | None = None
        self.end_reason: Sentence | None = None
        self.lost_host_reason: Sentence | None = None
        self.is_victim = False  # and may have to be killed for it
        self.num_restarts = 0
        self._max_restarts = self.hosts_spec["max_restarts"]

    def start(self) -> None:
        """The supervisor begins once all hosts are there."""

    @abc.abstractmethod
    def poll_peers(self) -> None:
        """Hear what the others say, and let them hear that this host is there."""

    @abc.abstractmethod
    def start_next_attempt(self) -> bool:
        """Begin the next attempt, once it is known how all parts have ended; whether it has begun."""

    @property
    def has_started(self) -> bool:
        return bool(self._supervisor)

    def start_supervisor(self, *more: str) -> None:
        """Of this host's part: `layout` is known by then."""
        super().start_supervisor("--hosts", json.dumps(self.layout), *more)

    def restart(self) -> bool:
        """The next attempt, with the hosts that are left, where the configuration allows it."""
        if (
            not self.has_started
            or self.layout is None
            or self._is_stop_requested
            or self.run_dir_tracker.is_deleted
        ):
            return False
        return self._max_restarts > 0 and self.start_next_attempt()

    def end_message(self) -> GuardMessage:
        """How this one has ended: `again` is there where another attempt may help, and names what failed;
        `victim` where others have made it fail; `host` where it has seen that another one is to blame."""
        if self.is_removed:
            return {"word": "ended", "status": 1, "reason": str(REMOVED_TEXT), "code": "run-folder"}
        status = 1 if self._status is None else self._status
        words = {"again": ""} if status < 0 else self._supervisor_report()
        told: GuardMessage = {
            "word": "ended",
            "status": status,
            "reason": str(words.get("reason") or self._reason() or ""),
        }
        told |= {key: words[key] for key in ("again", "victim", "host") if isinstance(words.get(key), str)}
        if status < 0 and (self.end_reason is not None or self.is_victim):
            told["victim"] = "yes"
        elif status < 0:
            told["reason"] = str(killed_message(-status))
        return told

    def restart_local_ranks(self, failed: str) -> bool:
        """This host's part of the next attempt; `failed` as supervisors tell it."""
        if self._status is not None and self._status < 0:
            self._exit_record.report_end("failed", 1)
        self.report_lost_save()
        self.num_restarts += 1
        self._kill_at = self.end_reason = self.lost_host_reason = None
        self.is_victim = False
        return self.start_attempt(self.num_restarts, "--failed", failed)

    def end_local_ranks(self) -> None:
        """Once it has said itself what it has met."""
        if not self.has_started:
            self._status = 1 if self._status is None else self._status
        elif self._kill_at is None:
            self._kill_at = time.monotonic() + VICTIM_TIMEOUT_S

    def fail(self, because: Sentence) -> None:
        """Before anything has begun."""
        if not self.has_started:
            self.end_reason, self._status = because, 1

    def stop(self, *, now: bool) -> None:
        if self.has_started:
            super().stop(now=now)
        elif self._status is None:
            self._is_stop_requested, self._status = True, EXIT_STOPPED

    def on_removed(self) -> None:
        """Nobody has asked the other hosts to stop: they hear why this part ends."""
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
        """The last word of this part."""
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
    """Raises: KeyError, TypeError: it is no layout."""
    found: dict[str, range] = {}
    first = 0
    for host in layout["hosts"]:
        found[host["name"]] = range(first, first + host["ranks"])
        first += host["ranks"]
    return found


def lost_host_message(name: str, address: str, how: str, own: str) -> Sentence:
    """Of a host that is there no more; `own` is what this one is called."""
    if how == SUSPENDED:
        return phrase(
            "This host stood still for more than {seconds} s, suspended or asleep, and the others have taken "
            "it for gone.",
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    if how == INTERFACE_DOWN:
        return phrase(
            "{host} has lost its own connection to the other hosts: its interface is down, or its cable is "
            "out.",
            host=own,
        )
    if how == ISOLATED:
        return phrase(
            "None of the other hosts has been heard for {seconds} s: this one is cut off, or they all are.",
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    if how == SILENT:
        return phrase(
            "{host} ({address}) has been silent for {seconds} s: it is cut off, stopped or without power.",
            host=name,
            address=address,
            seconds=round(HEARTBEAT_TIMEOUT_S),
        )
    return phrase(
        "{host} ({address}) has closed its connection without a word: its guard was killed, or it ended.",
        host=name,
        address=address,
    )
