"""Start an entry so that no start happens twice, whatever is killed and whenever.

    dispatcher                                   `rankdeck queue start N`
    takes the entry's start lock
    records the start, with its devices
    starts the command, which inherits the lock  chooses the run's directory
                                                 records the directory in the start
                                                 starts the run's guard, which gives the directory its final
                                                 name while it holds the run's lock and the leases
                                                 exits, which releases the start lock

So once the start lock is free, the start has happened exactly if its directory has its final name, or for a
further attempt, if that attempt's supervisor has written events.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rankdeck.base import files
from rankdeck.queue.devices import QueueDevice
from rankdeck.queue.entry import Entry, Start
from rankdeck.queue.spool import Spool, try_lock
from rankdeck.run_dir import RunDir


def start_entry(spool: Spool, entry: Entry, devices: Sequence[QueueDevice]) -> subprocess.Popen[bytes] | None:
    """Record a start of an entry and start the command that carries it out.

    Returns None if a start of the entry is under way, or if the entry no longer wants one.
    """
    # The command inherits this open file, so the lock is free only when both processes have closed it.
    lock = try_lock(spool.start_lock(entry.number))
    if lock is None:
        return None
    try:
        is_recorded = False

        def record(entry: Entry) -> None:
            nonlocal is_recorded
            if entry.wants_start and not entry.is_held:
                entry.starts.append(Start(time.time(), [device.lease for device in devices]))
                entry.waits_for, entry.blocked_since, is_recorded = "", None, True

        spool.update(entry.number, record)
        return _start_command(spool, entry, lock) if is_recorded else None
    finally:
        os.close(lock)


def _start_command(spool: Spool, entry: Entry, lock: int) -> subprocess.Popen[bytes]:
    folder = entry.folder if Path(entry.folder).is_dir() else "/"
    log = os.open(spool.start_log(entry.number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [entry.python, "-P", "-m", "rankdeck", "queue", "start", str(entry.number)],
            cwd=folder,
            env=spool.environment(entry.number),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],
            # A Ctrl-C in the terminal that started the dispatcher must not reach the run.
            start_new_session=True,
        )
    except OSError as error:
        reason = f"{entry.python}: {error.strerror}"
        spool.update(entry.number, lambda entry: fail_start(entry, reason))
        raise
    finally:
        os.close(log)


def fail_start(entry: Entry, error: str) -> None:
    """Record that the last start failed before a run existed."""
    if (start := entry.last_start) is not None and not start.outcome and not start.run:
        start.outcome, start.error, start.ended_at = "failed", str(error), time.time()


def observe_start(spool: Spool, entry: Entry) -> Entry:
    """Record what became of an entry's last start, if that is known now, and return the entry."""
    start = entry.last_start
    if start is None or start.outcome or files.is_locked(spool.start_lock(entry.number)):
        return entry
    # Read again: the command may have recorded the run's directory before it released the lock.
    entry = spool.entry(entry.number) or entry
    start = entry.last_start
    if start is None or start.outcome:
        return entry
    outcome, ended_at = _outcome_of(start)
    if outcome == "running" and start.is_observed:
        return entry

    def record(entry: Entry) -> None:
        last = entry.last_start
        if last is not None and last.at == start.at and not last.outcome:
            last.is_observed = last.is_observed or outcome != "not-started"
            if outcome != "running":
                last.outcome, last.ended_at = outcome, ended_at

    return spool.update(entry.number, record)


def _outcome_of(start: Start) -> tuple[str, float | None]:
    """Return (running | completed | failed | stopped | lost | not-started, end in Unix seconds or None)."""
    if not start.run:
        return "not-started", None
    run = RunDir(Path(start.run))
    if not run.path.is_dir():
        # A user has deleted the directory, or the run never got it.
        return ("stopped", time.time()) if start.is_observed else ("not-started", None)
    if start.attempt and not start.is_observed and not _has_attempt_started(run, start.attempt):
        return "not-started", None
    outcome = run.outcome()
    end = run.exit_record()
    return outcome, end.ended if end is not None else time.time()


def _has_attempt_started(run: RunDir, attempt: int) -> bool:
    return run.is_alive() or files.is_regular(run.events_folder / f"supervisor.{attempt}.jsonl")
