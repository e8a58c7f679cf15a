"""Processes of this machine by session and by environment; ends what a killed guard left behind.

A guard ends everything below it. If the guard itself is killed, its supervisor and ranks die with it; what
may stay are processes that ranks had started (a DataLoader worker, a user's helper). They are known by
RANKDECK_RUN in their environment, and ended when the lock of that run is free: a held lock means a living
guard, and a run without a lock file has not begun.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import psutil

from rankdeck.base.files import text_or_empty
from rankdeck.run_dir import RunDir


def is_suspended(pid: int) -> bool:
    """Whether a signal (SIGSTOP) or a tracer has suspended the process."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def is_traced(pid: int) -> bool:
    """Whether a debugger (gdb, strace) is attached to the process."""
    return int(_read_status(pid).get("TracerPid", "0")) > 0


def cpu_s(pid: int) -> float:
    """CPU time of a process and what it has started; 0 where it is gone."""
    try:
        process = psutil.Process(pid)
        times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    except psutil.Error:
        return 0.0
    return sum(used.user + used.system for used in times)


def _read_status(pid: int) -> dict[str, str]:
    """What the kernel tells of a process, by name; empty where it is gone."""
    lines = text_or_empty(Path(f"/proc/{pid}/status")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def signal_if_handled(pid: int, number: int) -> bool:
    """Send a signal to a process of a run that has a handler for it; whether it was sent. Without a handler
    it would end the process."""
    if not int(_read_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1:
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def signal_sessions(sessions: set[int], number: int) -> None:
    """Send a signal to every process of these sessions, whatever its group."""
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in sessions:
                os.kill(pid, number)
        except OSError:
            pass


def list_orphans() -> list[str]:
    """What ranks have left behind, asked by the supervisor: the orphans that came to its parent, the guard.
    'python (4711)' of each."""
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
    """The environment that a process was started with; empty for one that is gone or another user's."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def kill_leftovers() -> list[int]:
    """Kill every leftover of this user; their process ids."""
    me = psutil.Process()
    # A command may run inside a run's own terminal.
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
    """Whether a process is this user's, and not in a container where the same path is another run."""
    try:
        mine, its = Path("/proc/self/ns/mnt").stat(), Path(f"/proc/{pid}/ns/mnt").stat()
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid() and mine.st_ino == its.st_ino
    except OSError:
        return False
