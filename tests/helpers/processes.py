"""Which processes a test started, however far they ran from it.

A guard forks twice and opens its own session, so the tree of children does not find it. Every process
that a test starts inherits the test's own mark in its environment, which Linux shows in /proc; children that
were forked without exec keep their parent's old environment and are found through the tree instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rankdeck.launch.guard import GUARD_ENV
from rankdeck.launch.processes import read_environment

MARK = "RANKDECK_TEST"
"""In the environment of all that is started: the test that it has to end with, or SESSION."""
SESSION = "session"
"""What tests share and no test has to end: a set of ranks is started anew in the test in which one died."""

# Python's own helpers live until the interpreter that started them ends.
_PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def all_pids() -> set[int]:
    """Of everything that lives on this machine now."""
    return set(psutil.pids())


def find_marked(mark: str) -> list[psutil.Process]:
    """Live processes of this user whose environment holds `mark` ("NAME=value"), without this one."""
    return _select(all_pids(), lambda pid: _is_marked(pid, mark))


def started_since(before: set[int], mark: str) -> list[psutil.Process]:
    """Live processes that are not among `before` and are marked, or descend from this one and are not the
    session's.

    What was there before is not checked: after every test, a look at each process of a machine costs more
    than most tests.
    """

    def is_of_test(pid: int) -> bool:
        return _is_marked(pid, mark) or (_is_below(pid) and not _is_marked(pid, f"{MARK}={SESSION}"))

    return _select(all_pids() - before, is_of_test)


def _select(pids: set[int], predicate: Callable[[int], bool]) -> list[psutil.Process]:
    selected = []
    for pid in pids - {os.getpid()}:
        try:
            if predicate(pid):
                selected.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return [process for process in selected if _is_relevant(process)]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_below(pid: int) -> bool:
    return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())


def kill_processes(processes: list[psutil.Process]) -> None:
    """Kill these, and reap the ones that are our own children."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(processes, timeout=3)


def process_text(process: psutil.Process) -> str:
    """One line about a process, for a failure message."""
    try:
        age_s = time.time() - process.create_time()
        command = " ".join(process.cmdline())
        return f"{process.pid} of {process.ppid()}, {process.status()}, {age_s:.1f} s old: {command[:600]}"
    except psutil.Error:
        return f"{process.pid}: gone"


def command_line(process: psutil.Process) -> list[str]:
    """The words of a process's command; none if it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_relevant(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return not any(helper in command for helper in _PYTHON_HELPERS)


def processes_of_run(run: Path) -> list[int]:
    """Live processes that were started for this run."""
    run_path = str(run)
    return [pid for pid in psutil.pids() if run_path in _run_of(pid)]


def _run_of(pid: int) -> set[str | None]:
    """The run that a process belongs to, or that it guards."""
    environment = read_environment(pid)
    return {environment.get("RANKDECK_RUN"), environment.get(GUARD_ENV)}
