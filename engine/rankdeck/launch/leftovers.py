"""Ends what a killed guard left behind.

A guard ends everything below it. If the guard itself is killed, its supervisor and ranks die with it; what
may stay are processes that ranks had started (a DataLoader worker, a user's helper). They are known by
RANKDECK_RUN in their environment, and ended when the lock of that run is free: a held lock means a living
guard, and a run without a lock file has not begun.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rankdeck.launch.processes import all_processes, environment_of, read_process
from rankdeck.rundir import RunDir


def end_leftovers() -> list[int]:
    """Kill every leftover of this user; their process ids."""
    ours = _ancestors()
    alive: dict[str, bool] = {}
    ended = []
    for row in all_processes():
        if row.state == "Z" or row.pid in ours or not _sees_our_files(row.pid):
            continue
        run = environment_of(row.pid).get("RANKDECK_RUN")
        if run is None:
            continue
        if run not in alive:
            alive[run] = not _is_over(Path(run))
        if not alive[run]:
            try:
                os.kill(row.pid, signal.SIGKILL)
                ended.append(row.pid)
            except OSError:
                pass
    return ended


def _is_over(run: Path) -> bool:
    return (run / "guard.lock").is_file() and not RunDir(run).is_alive()


def _sees_our_files(pid: int) -> bool:
    """Whether a process is this user's, and not in a container where the same path is another run."""
    try:
        mine, its = Path("/proc/self/ns/mnt").stat(), Path(f"/proc/{pid}/ns/mnt").stat()
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid() and mine.st_ino == its.st_ino
    except OSError:
        return False


def _ancestors() -> set[int]:
    """This process and those above it: a command may run inside a run's own terminal."""
    ancestors, pid = set(), os.getpid()
    while pid > 0 and pid not in ancestors:
        ancestors.add(pid)
        row = read_process(pid)
        pid = row.parent if row is not None else 0
    return ancestors
