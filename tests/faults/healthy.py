"""Healthy runs, some of them under load, suspended with all they have started, or under a debugger: nobody
may be told that something is wrong.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from rankdeck.launch.control import wait_for_end
from rankdeck.run_dir import RunDir
from tests.faults.jobs import CLASSES, Plan, start_job
from tests.faults.trial import END_S, marked
from tests.helpers import launching, processes
from tests.helpers.waiting import scale_timeout, wait_until

HOW = ("alone", "load", "suspended", "traced", "breakpoint", "slow step", "slow save")
_PTRACE_ATTACH, _PTRACE_DETACH, _WALL = 16, 17, 0x40000000


class Healthy(msgspec.Struct, omit_defaults=True):
    """What a healthy run came to. `wrong`: what was told though nothing was wrong."""

    seed: int
    job: str
    how: str
    seconds: float = 0.0
    timeout_s: float = 0.0
    took_s: float = 0.0
    wrong: list[str] = []


def drawn(seed: int) -> Healthy:
    """The healthy run of this seed, yet to be run."""
    choose = random.Random(f"{seed} healthy")
    job, how = choose.choice(list(CLASSES)), choose.choice(HOW)
    timeout_s = choose.choice((4.0, 60.0))
    # Longer than after what a hang is told, where that is not 15 s.
    seconds = choose.choice((1.0, 3.0, 6.0, 9.0)) if timeout_s < 60 else choose.choice((3.0, 9.0, 18.0))
    if how == "slow step":
        timeout_s = 60.0  # with less it is a hang
    return Healthy(seed, job, how, seconds, timeout_s)


def run_healthy(seed: int, folder: Path) -> Healthy:
    record, began_s = drawn(seed), time.monotonic()
    with marked(folder) as mark:
        try:
            record.wrong = _wrong(record, folder, mark)
        except Exception as error:
            record.wrong = [f"{type(error).__name__}: {error}"]
        processes.kill_processes(processes.find_marked(mark))
    record.took_s = round(time.monotonic() - began_s, 1)
    if not record.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def _wrong(record: Healthy, folder: Path, mark: str) -> list[str]:
    choose = random.Random(f"{record.seed} moment")
    job, rank = CLASSES[record.job], choose.randrange(CLASSES[record.job].processes)
    act, where = {
        "breakpoint": ("breakpoint", "optimizer"),
        "slow step": ("slow", "optimizer"),
        "slow save": ("slow", "save"),
    }.get(record.how, ("let trace", "optimizer"))
    step = choose.randrange(15, 80)
    plan = Plan(act, where, step, (rank,), debugged_s=record.seconds)
    with _load(record.how == "load"):
        run = start_job(job, plan, folder / "job", launch={"timeout_s": record.timeout_s})
        _disturb(record, run, folder / "job" / f"hit-{rank}", mark)
        if not wait_for_end(run, scale_timeout(END_S)):
            return ["it did not end"]
    end = run.exit_record()
    problems = [*launching.read_problems(run), *launching.read_problems(run, "warning")]
    wrong = [f"{problem.code} of {problem.rank}: {problem.message[:300]}" for problem in problems]
    if end is None or (end.outcome, end.exit_code) != ("completed", 0):
        wrong.append(f"it ended as {end}")
    return wrong


def _disturb(record: Healthy, run: RunDir, sign: Path, mark: str) -> None:
    if record.how not in ("suspended", "traced"):
        return
    wait_until(lambda: sign.exists() or run.exit_record(), deadline_s=END_S, what="the moment")
    if not sign.exists():
        return
    if record.how == "traced":
        _trace(int(sign.read_text().split()[1]), record.seconds)
    else:
        _suspend(mark, record.seconds)


def _suspend(mark: str, seconds: float) -> None:
    """Everything that was started for the run, as a laptop that is closed."""
    every = processes.find_marked(mark)
    for process in every:
        with suppress(psutil.Error):
            process.suspend()
    time.sleep(seconds)
    for process in every:
        with suppress(psutil.Error):
            process.resume()


def _trace(pid: int, seconds: float) -> None:
    """Attach as a debugger does, which stops the process, and let it go."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, pid, None, None) != 0:
        if not psutil.pid_exists(pid):
            return
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, _WALL)
    time.sleep(seconds)
    libc.ptrace(_PTRACE_DETACH, pid, None, None)


@contextmanager
def _load(is_wanted: bool) -> Iterator[None]:
    """Twice as many busy loops as this machine has cores."""
    count = 2 * (os.cpu_count() or 1) if is_wanted else 0
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()
