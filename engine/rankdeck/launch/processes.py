"""Find processes by session and environment, and kill processes left over from killed guards.

A guard ends all of its descendants. If the guard itself is killed, its supervisor and ranks die with it, but
processes that ranks have started may remain (a DataLoader worker, a user's helper). Their environment
contains RANKDECK_RUN, and they are killed once their run's lock is free: a held lock means a living guard,
and a run without a lock file has not started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from pathlib import Path
from typing import NamedTuple

import psutil

from rankdeck.base.files import text_or_empty
from rankdeck.run_dir import RunDir


def is_suspended(pid: int) -> bool:
    """Check whether a signal (SIGSTOP) or a tracer has suspended the process."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def is_traced(pid: int) -> bool:
    """Check whether a debugger (gdb, strace) is attached to the process."""
    return int(_read_status(pid).get("TracerPid", "0")) > 0


class ProcessWork(NamedTuple):
    """Seconds of CPU time, and bytes read and written, since a process and its descendants started."""

    cpu_s: float = 0.0
    io_bytes: int = 0


def work_of(pid: int) -> ProcessWork:
    """Return what a process and its descendants have done so far; zeros if the process is gone."""
    try:
        process = psutil.Process(pid)
        processes = [process, *process.children(recursive=True)]
    except psutil.Error:
        return ProcessWork()
    cpu_s, io_bytes = 0.0, 0
    for proc in processes:
        # Each by itself: a child may end meanwhile, and a container may hide the I/O counters.
        with contextlib.suppress(psutil.Error, OSError):
            times = proc.cpu_times()
            cpu_s += times.user + times.system
            counters = proc.io_counters()
            io_bytes += counters.read_chars + counters.write_chars
    return ProcessWork(cpu_s, io_bytes)


def _read_status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/<pid>/status; empty if the process is gone."""
    lines = text_or_empty(Path(f"/proc/{pid}/status")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def is_running(pid: int) -> bool:
    """Check whether the process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def signal_if_handled(pid: int, number: int) -> bool:
    """Send a signal to a process only if the process handles it; otherwise the signal would kill the process.

    Returns whether the signal was sent.
    """
    # SigCgt is the bit mask of signals with a handler.
    if not int(_read_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1:
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def signal_sessions(sessions: set[int], number: int) -> None:
    """Send signal `number` to every process in `sessions`, whatever its process group."""
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in sessions:
                os.kill(pid, number)
        except OSError:
            pass


def list_orphans() -> list[str]:
    """Return the orphaned processes that ranks started, in the form 'python (4711)'.

    Only the supervisor may call this: its parent, the guard, becomes the parent of orphans.
    """
    try:
        below = psutil.Process(os.getppid()).children(recursive=True)
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    except psutil.Error:
        return []
    return [
        f"{_process_text(process)} ({process.pid})"
        for process in below
        if process.pid not in ours and is_running(process.pid)
    ]


def _process_text(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "a process"


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty if the process is gone or belongs to
    another user."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def kill_leftovers() -> list[int]:
    """Kill this user's processes left over from runs that have ended, and return their pids."""
    me = psutil.Process()
    # This command may itself have been started from inside a run.
    ours = {me.pid, *(parent.pid for parent in me.parents())}
    is_over = functools.cache(_is_over)
    ended = []
    for pid in psutil.pids():
        if pid in ours or not _shares_file_system(pid):
            continue
        run = read_environment(pid).get("RANKDECK_RUN")
        if run is not None and is_over(run):
            try:
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
            except OSError:
                pass
    return ended


def _is_over(run: str) -> bool:
    return Path(run, "guard.lock").is_file() and not RunDir(Path(run)).is_alive()


def _shares_file_system(pid: int) -> bool:
    """Check whether a process belongs to this user and has the same mount namespace as this process; in
    another namespace (a container), the same path could be a different run."""
    try:
        mine, its = Path("/proc/self/ns/mnt").stat(), Path(f"/proc/{pid}/ns/mnt").stat()
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid() and mine.st_ino == its.st_ino
    except OSError:
        return False
