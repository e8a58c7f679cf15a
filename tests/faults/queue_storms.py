"""Storms over the queue: jobs of random sizes, priorities and failures, while the dispatcher, starts, runs
and the whole machine are killed again and again.

    python -m tests.faults.queue_storms --jobs 300 --kills 60 --seed 1

Each job must run exactly once, or as often as its policy says; no device may be held twice; jobs start in
the order of the rule; and nothing is left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

from rankdeck.base import files
from rankdeck.launch.guard import GUARD_ENV
from rankdeck.queue.dispatcher import ensure_dispatcher
from rankdeck.queue.entry import MAX_INTERRUPTIONS, Entry
from rankdeck.queue.spool import Spool
from tests.helpers import processes
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.queued_jobs import JOB, Log, read_log, write_slots

MARK = "RANKDECK_QUEUE_STORM"
NUM_SLOTS = 3
VICTIMS = ("dispatcher", "dispatcher", "start", "run", "guard", "machine")
TIMEOUT_S = 3600.0


def storm(*, num_jobs: int, num_kills: int, seed: int) -> list[str]:
    """Run a storm in the current folder, which is empty, and return what went wrong.

    The environment names a RANKDECK_HOME for this storm alone.
    """
    draw, folder = random.Random(seed), Path.cwd()
    (folder / "job.py").write_text(JOB, "utf-8")
    write_slots(NUM_SLOTS)
    spool = Spool()
    for number in range(num_jobs):
        _add_random_job(f"j{number}", draw)
    num_left, end_s = num_kills, time.monotonic() + TIMEOUT_S
    while any(entry.wants_start or entry.is_running for entry in spool.entries()):
        if time.monotonic() > end_s:
            return [f"not finished after {TIMEOUT_S:.0f} s"]
        if num_left:
            time.sleep(draw.uniform(0.0, 2.0 * num_jobs / num_kills / NUM_SLOTS))
            num_left -= _kill(spool, draw.choice(VICTIMS), draw)
        else:
            time.sleep(0.5)
        ensure_dispatcher(spool)
    wrong = check(spool.entries(), read_log(folder))
    return [*wrong, *_what_is_left(spool)]


def _add_random_job(name: str, draw: random.Random) -> None:
    status = int(draw.random() < 0.2)
    options = ["--name", name, "--devices", f"cpu:{draw.randint(1, NUM_SLOTS)}"]
    options += ["--priority", str(draw.randint(0, 2)), "--retry", str(draw.choice((0, 0, 1, 2)))]
    seconds = str(round(draw.uniform(0.0, 1.5), 2))
    command = ["queue", "add", *options, "--", "run", "--observe", "none", "job.py"]
    rankdeck_in_process(*command, name, seconds, str(status), exit_code=0)


def _kill(spool: Spool, victim: str, draw: random.Random) -> int:
    """Kill a victim of this kind and return 1, or 0 if there is none now."""
    pids = _victims(spool)[victim]()
    if victim in ("start", "run", "guard") and pids:
        pids = [draw.choice(pids)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return int(bool(pids))


def _victims(spool: Spool) -> dict[str, Callable[[], list[int]]]:
    def started_with(*words: str) -> list[int]:
        return [
            process.pid
            for process in processes.find_marked(f"{MARK}={os.environ[MARK]}")
            if process.pid != os.getpid() and " ".join(words) in " ".join(processes.command_line(process))
        ]

    return {
        "dispatcher": lambda: started_with("rankdeck queue dispatch"),
        "start": lambda: started_with("rankdeck queue start"),
        "run": lambda: started_with("job.py"),
        "guard": lambda: _guards(spool),
        "machine": lambda: started_with(""),
    }


def _guards(spool: Spool) -> list[int]:
    """Return the process ids of the guards of running entries."""
    runs = {start.run for entry in spool.entries() if (start := entry.last_start) and not start.outcome}
    marked = processes.find_marked(f"{MARK}={os.environ[MARK]}")
    return [p.pid for p in marked if processes.read_environment(p.pid).get(GUARD_ENV) in runs]


def check(entries: list[Entry], log: Log) -> list[str]:
    """Return everything that contradicts the promises of the queue."""
    wrong = list(log.conflicts)
    for entry in entries:
        outcomes = [start.outcome for start in entry.starts]
        began = [log.began[(entry.name, number)] for number in range(1, len(outcomes) + 1)]
        what = f"{entry.name}: {outcomes}, began {began}"
        if any(times > 1 for times in began):
            wrong.append(f"a start ran twice: {what}")
        for number, (outcome, times) in enumerate(zip(outcomes, began, strict=True), 1):
            if outcome == "completed" and not (times == log.ended[(entry.name, number)] == 1):
                wrong.append(f"completed, but did not run to its end: {what}")
            if outcome == "not-started" and times:
                wrong.append(f"ran, but counts as not started: {what}")
        unrecorded = [key for key in log.began if key[0] == entry.name and key[1] > len(outcomes)]
        if "completed" in outcomes[:-1] or unrecorded:
            wrong.append(f"ran again after it had completed: {what}")
        if outcomes.count("failed") > entry.retries + 1 or outcomes.count("lost") > MAX_INTERRUPTIONS + 1:
            wrong.append(f"ran more often than its policy says: {what}")
        if not entry.is_finished:
            wrong.append(f"never finished: {what}")
    return wrong + _out_of_order(entries)


def _out_of_order(entries: list[Entry]) -> list[str]:
    """Return the first starts that overtook an entry which would have fitted on the same devices."""
    return [
        f"{late.name} started before {early.name}"
        for late in entries
        for early in entries
        if (-early.priority, early.position) < (-late.priority, late.position)
        and min(early.need.num_devices, NUM_SLOTS) <= len(late.starts[0].devices)
        and early.added_at < late.starts[0].at - 1.0
        and early.starts[0].at > late.starts[0].at
    ]


def _what_is_left(spool: Spool) -> list[str]:
    end_s = time.monotonic() + 30
    while (left := processes.find_marked(f"{MARK}={os.environ[MARK]}")) and time.monotonic() < end_s:
        left = [process for process in left if process.pid != os.getpid()]
        if not left:
            break
        time.sleep(0.2)
    wrong = [f"left: {processes.process_text(process)}" for process in left if process.pid != os.getpid()]
    locked = [path.name for path in spool.entries_folder.glob("*.lock") if files.is_locked(path)]
    return [*wrong, *(f"still locked: {name}" for name in locked)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.queue_storms")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        variables = {"RANKDECK_HOME": f"{name}/home", "RANKDECK_RUNS": f"{name}/runs", MARK: uuid.uuid4().hex}
        with mock.patch.dict(os.environ, variables):
            os.chdir(folder)
            wrong = storm(num_jobs=options.jobs, num_kills=options.kills, seed=options.seed)
    print("\n".join(wrong) or f"{options.jobs} jobs, {options.kills} kills: nothing wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
