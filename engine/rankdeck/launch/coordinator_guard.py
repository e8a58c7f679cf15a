"""Guard of the coordinator host: the nodes' guards connect to it, and it decides for all hosts.

Standard library only, like the whole guard.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rankdeck.launch.event_relay import EventReceiver, host_slug
from rankdeck.launch.exit_record import Sentence, phrase
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.host_guard import LEAVE_TIMEOUT_S, HostGuard, lost_host_message, ranks_by_host
from rankdeck.launch.peers import LEFT, CoordinatorServer, GuardMessage
from rankdeck.remote.clock import ClockOffset

_RENDEZVOUS_TIMEOUT_S = 300.0
"""How long the coordinator waits for the last node to connect."""
_REMOVED_ADVICE = phrase(
    "To continue without the removed files, resume the run on the hosts that still have its folder."
)
_COMPATIBILITY_KEYS = ("rankdeck", "python", "torch", "nccl", "lock", "config", "attempt")
"""Keys of the host information whose values must be the same on all hosts."""


class CoordinatorGuard(HostGuard):
    """The coordinator's guard, which collects the whole run's events and writes the run's exit record."""

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        self._end_messages: dict[str, GuardMessage] = {}
        self._receiver: EventReceiver | None = None
        self._rendezvous_deadline_s = time.monotonic() + _RENDEZVOUS_TIMEOUT_S

    def prepare(self) -> None:
        """Listen for the nodes, open the store, then prepare like every guard."""
        hosts_spec = self.hosts_spec
        server = socket.socket(fileno=hosts_spec["listener"])
        os.set_inheritable(server.fileno(), False)
        self._server = CoordinatorServer(
            self._selector,
            server,
            hosts_spec["secret"],
            hosts_spec["others"],
            self._on_message,
            self._on_lost,
            self.name,
        )
        self._clocks = HostClocks(self._run, self._server.send_to)
        self._open_store()
        super().prepare()

    def _open_store(self) -> None:
        """Open the socket of a new attempt's store, which does not contain the previous attempt's keys.

        Raises:
            OSError: the socket cannot be opened.
        """
        self._store = socket.create_server((self.hosts_spec["address"], 0), backlog=512)
        # The supervisor serves the store on this socket.
        os.set_inheritable(self._store.fileno(), True)

    def poll(self, now_s: float) -> None:
        self._server.poll(now_s)
        self._clocks.poll(now_s, self._server.connected_names)
        if self.has_started or self._status is not None:
            return
        if self._server.is_complete:
            self._start_all()
        elif now_s > self._rendezvous_deadline_s:
            self.fail(
                phrase("Not all hosts connected within {seconds} s.", seconds=round(_RENDEZVOUS_TIMEOUT_S))
            )

    def poll_peers(self) -> None:
        self.process_events(self.poll_interval_s)
        self._server.poll(time.monotonic())

    def _start_all(self) -> None:
        own_host = self._own_host()
        for host in self._other_hosts():
            if not _is_valid_host(host):
                self._refuse_host(
                    host, phrase("{host} sent invalid information about itself.", host=host["name"])
                )
                return
            if (
                odd := next((key for key in _COMPATIBILITY_KEYS if host.get(key) != own_host[key]), None)
            ) is not None:
                self._refuse_host(host, _mismatch_message(odd, host, own_host))
                return
        self._broadcast_layout()
        self.start_supervisor()

    def start_supervisor(self, *more: str) -> None:
        assert self.layout is not None
        ranks = ranks_by_host(self.layout)
        self._receiver = EventReceiver(self._run, ranks)
        self._clocks.start_attempt(self._attempt, ranks)
        super().start_supervisor("--store", str(self._store.fileno()), *more)
        # From here on only the supervisor has the socket, which closes when the supervisor ends.
        self._store.close()

    def _own_host(self) -> GuardMessage:
        return {"name": self.name, "address": self.hosts_spec["address"], **self.hosts_spec["own"]}

    def _other_hosts(self) -> list[GuardMessage]:
        """Return the connected nodes in the configuration's order, followed by nodes that the configuration
        does not name, in order of arrival."""
        order, there = self.hosts_spec["order"], self._server.connected_names
        hosts = [host for name, host in self._server.hosts.items() if name in there]
        hosts.sort(key=lambda host: order.index(host["name"]) if host["name"] in order else len(order))
        return [
            {key: value for key, value in host.items() if key not in ("word", "secret")} for host in hosts
        ]

    def _broadcast_layout(self, failed: str = "") -> None:
        """Send every node the layout (which ranks run on each host) and `failed`, the previous failure's
        signature."""
        store = [self.hosts_spec["address"], self._store.getsockname()[1]]
        self.layout = {"hosts": [self._own_host(), *self._other_hosts()], "store": store, "index": 0}
        self._server.broadcast({**self.layout, "failed": failed, "word": "begin"})

    def _refuse_host(self, host: GuardMessage, because: Sentence) -> None:
        """Make the start fail on all hosts because of `host`; `because` is the reason to report."""
        self.fail(because)
        self._end_all(host["name"])

    def _on_message(self, name: str, word: GuardMessage) -> None:
        if word.get("word") == "events" and self._receiver is not None:
            self._receiver.receive(name, word)
        elif word.get("word") == CLOCK_MESSAGE:
            self._clocks.on_answer(name, word)
        elif word.get("word") == "stop":
            self.stop(now=bool(word.get("now")))
        elif word.get("word") == "ended":
            self._end_messages[name] = word
            if word.get("status") != 0:
                # The local part still runs and will fail because of that host.
                self.is_victim |= self._status is None and "victim" not in word
                # No reason while the host is only a victim: when a network lost packets, a healthy host was
                # blamed for the end of the run.
                self._end_all(name, "" if "victim" in word else _reason_of(word))

    def _on_lost(self, name: str, how: str) -> None:
        # A host that leaves after its end message is not lost.
        if self.layout is None or (how == LEFT and name in self._end_messages):
            return
        address = str(self._server.hosts.get(name, {}).get("address", ""))
        self.lost_host_reason = self.lost_host_reason or lost_host_message(name, address, how, self.name)
        self._end_all(name)
        self.kill_local_ranks()

    def _end_all(self, because: str, why: str = "") -> None:
        """End all hosts' ranks; send the nodes the blamed host's name (`because`) and the reason (`why`)."""
        self._server.broadcast({"word": "end", "because": because, "why": why})
        self.end_local_ranks()

    def _end_others(self) -> None:
        """Tell every node to end its ranks, and why, if the reason is known. The local ranks have already
        ended."""
        messages = self._all_end_messages()
        message = self._first_failed(
            [message for message in messages if message.get("status") != 0] or messages
        )
        why = "" if "victim" in message else _reason_of(message)
        self._server.broadcast({"word": "end", "because": message["name"], "why": why})

    def stop(self, *, now: bool) -> None:
        self._server.broadcast({"word": "stop", "now": now})
        super().stop(now=now)

    def start_next_attempt(self) -> bool:
        if self._status != 0 and self.lost_host_reason is None:
            self._end_others()
        until_s = time.monotonic() + LEAVE_TIMEOUT_S
        while self._server.connected_names - set(self._end_messages) and time.monotonic() < until_s:
            self.poll_peers()
        because = self._restart_reason()
        if because is None or self._is_stop_requested:
            self._server.broadcast({"word": "over"})
            return False
        failed = next((message["again"] for message in self._all_end_messages() if message.get("again")), "")
        self._exit_record.report_problem("restarted", self._restart_message(because), severity="warning")
        self._end_messages.clear()
        try:
            self._open_store()
        except OSError:
            return False
        self._broadcast_layout(failed)
        return self.restart_local_ranks(failed)

    def _blamed_host(self) -> str:
        """Return the host that caused the end of the local ranks: this host, or another host that all ranks
        waited for."""
        return str(self.end_message().get("host", self.name))

    def _all_end_messages(self) -> list[GuardMessage]:
        """Return every host's end message, the local one first."""
        own_message = {**self.end_message(), "name": self._blamed_host()}
        return [own_message, *({**message, "name": name} for name, message in self._end_messages.items())]

    def _restart_reason(self) -> Sentence | None:
        """Return the failure that another attempt may recover from; None if there is none or a restart cannot
        help."""
        failed = [message for message in self._all_end_messages() if message.get("status") != 0]
        if self.num_restarts >= self._max_restarts or any(
            not isinstance(message.get("again"), str) for message in failed
        ):
            return None
        if 1 + self._server.num_connected < self.hosts_spec["least"]:
            return None
        if self.lost_host_reason is not None or not failed:
            return self.lost_host_reason
        return self._failure_message(failed)

    def _failure_message(self, failed: list[GuardMessage]) -> Sentence:
        message = self._first_failed(failed)
        return phrase("{host}: {reason}", host=message["name"], reason=_reason_of(message))

    def _first_failed(self, failed: list[GuardMessage]) -> GuardMessage:
        """Return the message of the first host that failed on its own and not because another host failed; a
        host whose run directory was removed has priority."""
        removed = (message for message in failed if message.get("code"))
        return next(removed, None) or next(
            (message for message in failed if "victim" not in message), failed[0]
        )

    def _restart_message(self, because: Sentence) -> Sentence:
        number = 1 + self._server.num_connected
        return phrase(
            "{cause} The run continues with {hosts} from its newest checkpoint, or from the "
            "beginning if it has none (restart {n} of {most}).",
            cause=because,
            hosts=phrase("1 host") if number == 1 else phrase("{n} hosts", n=number),
            n=self.num_restarts + 1,
            most=self._max_restarts,
        )

    def end(self) -> None:
        """Wait for the nodes, then write the exit record of the whole run."""
        self._wait_for_others(1 if self._status is None else self._status)
        super().end()

    def end_after_removal(self) -> None:
        self._wait_for_others(1)

    def _wait_for_others(self, status: int) -> None:
        """Wait until the nodes have left; if a node caused the run's end, report its failure as the
        reason."""
        if status != 0 and self.lost_host_reason is None:
            self._end_others()
        until_s = time.monotonic() + LEAVE_TIMEOUT_S
        while self._server.num_connected and time.monotonic() < until_s:
            self.poll_peers()
        self._server.close()
        own_message = self.end_message()
        failed = [message for message in self._all_end_messages() if message.get("status") != 0]
        is_victim = "victim" in own_message and any("victim" not in message for message in failed)
        is_other = status == 0 or is_victim or "host" in own_message
        if failed and is_other and self.lost_host_reason is None:
            self._status, self.end_reason = 1, self._failure_message(failed)
            if any(
                message.get("code") == "run-folder" for message in failed
            ):  # that host could not report it itself
                self._exit_record.report_problem("run-folder", self.end_reason, _REMOVED_ADVICE)


def _reason_of(message: GuardMessage) -> str:
    return str(message.get("reason") or "")[:2000]


def _is_valid_host(host: GuardMessage) -> bool:
    ranks, devices = host.get("ranks"), host.get("devices")
    return isinstance(ranks, int) and ranks > 0 and isinstance(devices, list) and len(devices) == ranks


def _mismatch_message(key: str, host: GuardMessage, own_host: GuardMessage) -> Sentence:
    if key == "config":
        return phrase("{host} was started with a different configuration.", host=host["name"])
    if key == "lock":
        return phrase(
            "The lock files of {host} and this host differ. Put the same lock file next to "
            "both configurations, and install the versions that it pins.",
            host=host["name"],
        )
    return phrase(
        "{host} has {library} {there}, but this host has {here}.",
        host=host["name"],
        library="NCCL" if key == "nccl" else key,
        there=str(host.get(key))[:40] or "?",
        here=str(own_host[key]) or "?",
    )


# The coordinator's guard asks the nodes for their time and writes their clock offsets into the run's
# directory. The nodes' files keep their own times, which readers of runs correct (run_dir/event_reader.py).
# Standard library only, like the whole guard.

CLOCK_MESSAGE = "clock"
"""The value of "word" in a clock request and in the answer to it."""
CLOCK_INTERVAL_S = 5.0
_CLOCK_TOLERANCE_S = 0.001
"""Seconds, in addition to the clock's maximum error, by which an offset must change to be written again."""


class HostClocks:
    """Clock offsets of a run's nodes. `send(name, word)` sends the message `word` to the node `name`."""

    def __init__(self, run: str, send: Callable[[str, GuardMessage], None]) -> None:
        self._file, self._send = Path(run, "clocks.jsonl"), send
        self._clocks: dict[str, ClockOffset] = {}
        self._request_times: dict[str, float] = {}
        self._next_s = 0.0
        self._attempt = 0
        self._ranks: Mapping[str, range] = {}
        self._written_offsets: dict[str, float] = {}

    def start_attempt(self, attempt: int, ranks: Mapping[str, range]) -> None:
        """Handle the start of an attempt; `ranks` maps each host to its ranks. Offsets that were measured
        earlier apply from the attempt's start."""
        self._attempt, self._ranks = attempt, ranks
        self._written_offsets.clear()
        for name in ranks:
            self._write_offset(name, 0.0)

    def poll(self, now_s: float, names: Collection[str]) -> None:
        """Ask all nodes for their time at regular intervals, and new nodes at once."""
        new = [name for name in names if name not in self._clocks]
        is_time = now_s >= self._next_s
        if is_time:
            self._next_s = now_s + CLOCK_INTERVAL_S
        for name in names if is_time else new:
            self._clocks.setdefault(name, ClockOffset())
            self._request_times[name] = time.monotonic()
            self._send(name, {"word": CLOCK_MESSAGE, "asked": self._request_times[name]})

    def on_answer(self, name: str, word: GuardMessage) -> None:
        """Process a node's answer, ignoring answers to earlier requests."""
        asked_s = self._request_times.pop(name, math.nan)
        there = word.get("now")
        if word.get("asked") != asked_s or not isinstance(there, float) or not 0 <= there < 1e11:
            return
        self._clocks[name].add_answer(asked_s, there)
        self._write_offset(name, there)

    def _write_offset(self, name: str, since: float) -> None:
        """Write a node's offset if it has changed; `since` is the time on the node's clock from which it
        applies."""
        clock = self._clocks.get(name)
        if clock is None or clock.offset_s is None or name not in self._ranks:
            return
        if (
            name in self._written_offsets
            and abs(clock.offset_s - self._written_offsets[name]) <= _CLOCK_TOLERANCE_S + clock.max_error_s
        ):
            return
        ranks = self._ranks[name]
        line = {
            "attempt": self._attempt,
            "host": host_slug(name),
            "ranks": [ranks.start, ranks.stop],
            # A host's first offset applies from the start of the attempt.
            "since": since if name in self._written_offsets else 0.0,
            "ahead_s": round(clock.offset_s, 6),
            "within_s": round(clock.max_error_s, 6),
        }
        self._written_offsets[name] = clock.offset_s
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # a full disk
