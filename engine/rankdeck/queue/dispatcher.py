"""The process that starts entries and records how their runs end: one per user, as long as there is work.

`rankdeck queue add` starts it. It ends when nothing runs and nothing waits; killed, it leaves nothing behind
that the next one does not understand (starts.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from rankdeck.base import files
from rankdeck.queue.admission import Decision, decide, failed_predecessor
from rankdeck.queue.devices import GpuTracker, QueueDevice, cpu_slots
from rankdeck.queue.entry import Entry
from rankdeck.queue.spool import Spool, try_lock
from rankdeck.queue.starts import fail_start, observe_start, start_entry
from rankdeck.run_dir import RunDir, list_runs

POLL_S = 0.5
_RETRY_S = 5.0
"""Pause before an entry is started again whose last start did not happen, for example because another run had
just taken its devices."""
_MAX_DIRECT_RUNS = 200
"""Number of the newest runs among which those that run now are looked for."""

_MAX_ERROR_LINES = 20
_START_CODE = (
    "import os, subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"
)
_DISPATCH_ARGUMENTS = ("-P", "-m", "rankdeck", "queue", "dispatch")

_log = logging.getLogger(__name__)


def ensure_dispatcher(spool: Spool) -> None:
    """Start a dispatcher unless one is alive. Call this after each change that may let an entry start."""
    if files.is_locked(spool.dispatcher_lock):
        return
    # Through a process that ends at once: the dispatcher must not be a child that this process
    # has to wait for.
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _START_CODE, sys.executable, *_DISPATCH_ARGUMENTS],
        # The folder in which the first entry was added may be deleted or unmounted.
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def run_dispatcher(spool: Spool) -> int:
    """Start entries until none runs or waits, and return the exit code; return at once if another dispatcher
    is alive."""
    spool.entries_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = try_lock(spool.dispatcher_lock)
    if lock is None:
        return 0
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    dispatcher, was_idle = Dispatcher(spool), False
    try:
        while True:
            dispatcher.step()
            # Under the spool's lock: an entry that is added now finds either this dispatcher at work or its
            # lock free.
            with spool.locked():
                is_idle = not has_work(spool)
                # One more step records why the entries that are left cannot start.
                if is_idle and was_idle:
                    os.close(lock)
                    return 0
                was_idle = is_idle
    finally:
        dispatcher.close()


def has_work(spool: Spool) -> bool:
    """Check whether an entry runs, or waits for something that a command does not change."""
    entries = spool.entries()
    by_number = {entry.number: entry for entry in entries}
    return any(entry.is_running for entry in entries) or (
        not spool.is_paused
        and any(
            entry.wants_start and not entry.is_held and failed_predecessor(entry, by_number) is None
            for entry in entries
        )
    )


class Dispatcher:
    """Observes the starts of all entries and starts those that may start. Not thread-safe."""

    def __init__(self, spool: Spool, poll_s: float = POLL_S) -> None:
        self._spool, self._poll_s = spool, poll_s
        self._gpus = GpuTracker()
        self._commands: dict[int, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        self._gpus.close()

    def step(self) -> None:
        """Observe running entries, start waiting ones, and wait for the next step."""
        started_s = time.monotonic()
        self._reap_commands()
        entries = [observe_start(self._spool, entry) for entry in self._spool.entries()]
        waiting = [entry for entry in entries if entry.wants_start]
        devices = self._devices(entries, waiting)
        if devices is not None:
            decision = decide(entries, devices, time.time(), is_paused=self._spool.is_paused)
            self._start(decision)
            self._record_waits(entries, decision)
        time.sleep(max(0.0, self._poll_s - (time.monotonic() - started_s)))

    def _devices(self, entries: list[Entry], waiting: list[Entry]) -> list[QueueDevice] | None:
        """Return the devices of the kinds that entries wait for; None until they have been read."""
        kinds = {entry.need.kind for entry in waiting}
        devices: list[QueueDevice] = []
        if "cpu" in kinds:
            devices += cpu_slots(_direct_runs(entries))
        if "gpu" not in kinds:
            self._gpus.close()
            return devices
        gpus = self._gpus.poll(self._poll_s)
        return None if gpus is None else devices + gpus

    def _start(self, decision: Decision) -> None:
        for entry, devices in decision.starts:
            last = entry.last_start
            if last is not None and last.outcome == "not-started" and time.time() - last.at < _RETRY_S:
                continue
            with contextlib.suppress(OSError):
                command = start_entry(self._spool, entry, devices)
                if command is not None:
                    _log.info("entry %d starts on %s", entry.number, [device.label for device in devices])
                    self._commands[entry.number] = command

    def _reap_commands(self) -> None:
        """Record the failure of commands that exited with an error before they recorded one."""
        for number, command in list(self._commands.items()):
            code = command.poll()
            if code is None:
                continue
            del self._commands[number]
            # One that a signal killed, as all of a user's processes are at a logout, starts again.
            if code > 0:
                lines = files.text_or_empty(self._spool.start_log(number)).splitlines()
                self._spool.update(number, partial(fail_start, error="\n".join(lines[-_MAX_ERROR_LINES:])))

    def _record_waits(self, entries: list[Entry], decision: Decision) -> None:
        now = time.time()
        for entry in entries:
            text = str(decision.waits.get(entry.number, ""))
            is_blocked = entry.number in decision.blocked.values()
            is_recorded = text == entry.waits_for and is_blocked == (entry.blocked_since is not None)
            if is_recorded or not entry.wants_start:
                continue

            def record(entry: Entry, text: str = text, is_blocked: bool = is_blocked) -> None:
                entry.waits_for = text
                entry.blocked_since = (entry.blocked_since or now) if is_blocked else None

            self._spool.update(entry.number, record)


def _direct_runs(entries: list[Entry]) -> list[RunDir]:
    """Return the running runs that the queue has not started."""
    started = {Path(start.run) for entry in entries if (start := entry.last_start) is not None and start.run}
    return [run for run in list_runs()[:_MAX_DIRECT_RUNS] if run.path not in started and run.is_alive()]
