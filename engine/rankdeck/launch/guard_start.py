"""Run a guard process from its first fork to its end.

The guard's class is `Guard` or, in a multi-host run, `CoordinatorGuard` or `NodeGuard`. Standard library
only, like the whole guard.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NoReturn

from rankdeck import debug_log
from rankdeck.launch.coordinator_guard import CoordinatorGuard
from rankdeck.launch.event_relay import EventSender
from rankdeck.launch.exit_record import phrase
from rankdeck.launch.guard import Guard
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.host_guard import (
    LEAVE_TIMEOUT_S,
    VICTIM_TIMEOUT_S,
    HostGuard,
    lost_host_message,
    ranks_by_host,
)
from rankdeck.launch.locks import LockHeld, RunAlive
from rankdeck.launch.peers import LEFT, CoordinatorClient, GuardMessage


def daemonize() -> None:
    """Leave the caller's session and terminal permanently."""
    if os.fork():
        os._exit(0)
    # The second fork makes the guard a process that leads no session and so cannot acquire a terminal.
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    os.close(null)


def main(spec: GuardSpec) -> NoReturn:
    daemonize()
    debug_log.enable(Path(spec["hidden"], "logs"))
    ready = spec["ready_fd"]
    for handle in (ready, spec["tether_fd"], *spec["held"]):
        if handle is not None:
            # The launcher passed them as inheritable, but the supervisor must not get them.
            os.set_inheritable(handle, False)
    hosts = spec["hosts"]
    kind = Guard if not hosts else NodeGuard if "head" in hosts else CoordinatorGuard
    guard = kind(spec)
    answer: dict[str, int | bool | str] = {"ready": os.getpid()}
    try:
        guard.prepare()
        guard.start()
    except RunAlive:
        answer = {"alive": True}
    except LockHeld as refusal:
        answer = {"refused": str(refusal)}
    except OSError as error:
        answer = {"failed": f"{error.filename or spec['final']}: {error.strerror}"}
    os.write(ready, json.dumps(answer).encode())
    if "ready" not in answer:
        os._exit(1)
    os.close(ready)
    guard.watch()
    while guard.restart():
        guard.watch()
    if guard.run_dir_tracker.is_deleted:
        guard.end_after_removal()
    else:
        guard.end()
    # Before the tracker's wait, during which the run must not look alive.
    os.close(guard.lock_fds[0])
    guard.run_dir_tracker.close()
    os._exit(0)


# The guard of a node, which connects to the coordinator's guard and follows its messages.  Standard library
# only, like the whole guard.


class NodeGuard(HostGuard):
    """Guard of a node, which relays its ranks' events to the coordinator and obeys the coordinator's
    messages."""

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        self._sender = EventSender(self._run, self._attempt)
        self._next_layout: GuardMessage | None = None
        self._is_over = False

    def prepare(self) -> None:
        """Connect to the coordinator, then prepare like every guard."""
        hosts_spec, coordinator_address = (
            self.hosts_spec,
            (self.hosts_spec["head"][0], self.hosts_spec["head"][1]),
        )
        hello = {"word": "hello", "name": self.name, "secret": hosts_spec["secret"], **hosts_spec["own"]}
        try:
            self._client = CoordinatorClient(
                self._selector, coordinator_address, hello, self._on_message, self._on_lost
            )
        except OSError as error:
            # A failed connection has no file name, and `main` names the file in its answer.
            error.filename = "{}:{}".format(*coordinator_address)
            raise
        super().prepare()

    def poll(self, now_s: float) -> None:
        if not self._client.is_behind:  # everything queued before has been sent
            for word in self._sender.read_new():
                self._client.send(word)
        self._client.poll(now_s)
        if self._next_layout is not None and not self.has_started and self._status is None:
            self.layout, self._next_layout = self._next_layout, None
            self.start_supervisor()

    def poll_peers(self) -> None:
        self.process_events(self.poll_interval_s)
        self._client.poll(time.monotonic())

    def _on_message(self, word: GuardMessage) -> None:
        match word.get("word"):
            case "begin":
                try:
                    self._next_layout = {**word, "index": list(ranks_by_host(word)).index(self.name)}
                except (KeyError, TypeError, ValueError):
                    self._is_over = True
                    self.fail(phrase("The coordinator sent an invalid host layout."))
            case "refused":
                self.fail(
                    phrase(
                        "The run's coordinator rejected {name}: a host with that name has "
                        "already joined, or all hosts have. To give this host another name, "
                        "put {variable}=NAME before the command.",
                        name=self.name,
                        variable="RANKDECK_HOST",
                    )
                )
            case "stop":
                self.stop(now=bool(word.get("now")))
            case "end":
                host, why = str(word.get("because"))[:200], str(word.get("why") or "")[:2000]
                self.end_reason = phrase("The run ended because of a problem on {host}.", host=host)
                if why:
                    self.end_reason = phrase("{host}: {reason}", host=host, reason=why)
                self.end_local_ranks()
            case "over":
                self._is_over = True
            case "clock":
                self._client.send({**word, "now": time.time()})

    def _on_lost(self, how: str) -> None:
        self._is_over = True
        if self._status is None:
            if how != LEFT:
                self.lost_host_reason = lost_host_message(
                    phrase("The coordinator"), str(self.hosts_spec["head"][0]), how, self.name
                )
                self.kill_local_ranks()
            self.end_local_ranks()

    def stop(self, *, now: bool) -> None:
        if not self._is_stop_requested:
            self._client.send({"word": "stop", "now": now})
        super().stop(now=now)

    def start_next_attempt(self) -> bool:
        """Report the end of this host's part of the run, then wait for the coordinator; return whether the
        next attempt started."""
        self._flush_events()
        self._client.send(self.end_message())
        # Twice, because the coordinator itself waits for the other nodes for LEAVE_TIMEOUT_S before it
        # decides.
        until_s = time.monotonic() + 2 * LEAVE_TIMEOUT_S
        while self._next_layout is None and not self._is_over and not self._is_stop_requested:
            if time.monotonic() > until_s:
                return False
            self.poll_peers()
        if self._next_layout is None or self._is_stop_requested:
            return False
        self.layout, self._next_layout = self._next_layout, None
        return self.restart_local_ranks(str(self.layout.get("failed", ""))[:2000])

    def end(self) -> None:
        status = 1 if self._status is None else self._status
        super().end()
        self._flush_events()
        self._client.send({**self.end_message(), "status": status})
        self._client.close()

    def end_after_removal(self) -> None:
        self._client.send({**self.end_message(), "status": 1})
        self._client.close()

    def _flush_events(self) -> None:
        """Send the remaining events before the end message, for at most `VICTIM_TIMEOUT_S`."""
        until_s = time.monotonic() + VICTIM_TIMEOUT_S
        while time.monotonic() < until_s and self.lost_host_reason is None:
            messages = list(self._sender.read_new())
            for word in messages:
                self._client.send(word)
            if not messages and not self._client.is_behind:
                return
            self._client.poll(time.monotonic())
            time.sleep(0.01 if self._client.is_behind else 0.0)
