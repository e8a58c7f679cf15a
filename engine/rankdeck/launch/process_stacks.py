"""Find the observed processes of a script's run, and tell ranks from loader workers and other children.

A process that is not (or not yet) a rank writes its stacks to a file in memory. The first line of this file
names the signal that requests the stacks (observer/early_stacks.py). Nothing about these processes is on
disk. Read stacks.py next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rankdeck.base.files import text_or_empty
from rankdeck.diagnose.child_processes import LOCKING_PACKAGES
from rankdeck.launch.processes import read_environment
from rankdeck.run_dir import RunDir

_FILE_NAMES = ("/memfd:rankdeck-stacks", "/dev/shm/#")
_FIRST_LINE = re.compile(rb"rankdeck stacks (\d+) (\d+) ([^\n]+)\n")
_MIN_FD = 512
_MAX_LINE_BYTES = 8192
MAX_PROCESSES = 512
"""Maximum number of processes to ask for their stacks; a script may start any number of processes."""


@dataclass(frozen=True)
class EarlyProcess:
    """An observed process that is not a rank (yet). On signal `number`, it writes its stacks to `file`."""

    pid: int
    number: int
    file: Path


@dataclass(frozen=True)
class RunProcesses:
    """The living processes of a run that have not reported themselves as ranks (yet).

    `ranks` are the processes that were started as a rank, by rank. `children` are all others in the order of
    their start, as (rank, process): the rank that started the process or, if it is unknown, None.
    """

    ranks: Mapping[int, EarlyProcess] = field(default_factory=dict)
    children: list[tuple[int | None, EarlyProcess]] = field(default_factory=list)


def find_processes(run: RunDir, rank_by_pid: Mapping[int, int]) -> RunProcesses:
    """Return the run's processes. `rank_by_pid` contains the living ranks that have reported their start, by
    process id."""
    parents = _descendants(_guard_pid(run))
    early: dict[int, EarlyProcess] = {}
    for pid in parents:
        process = _early_process(pid, run)
        if process is not None:
            early[pid] = process
        if len(early) == MAX_PROCESSES:
            break
    ranks, taken = _early_ranks(early, parents, rank_by_pid)
    numbers = {**rank_by_pid} | {process.pid: rank for rank, process in ranks.items()}
    children = [
        (_rank_above(pid, parents, numbers), process) for pid, process in early.items() if pid not in taken
    ]
    return RunProcesses(ranks, children)


def _early_ranks(
    early: Mapping[int, EarlyProcess], parents: Mapping[int, int], rank_by_pid: Mapping[int, int]
) -> tuple[dict[int, EarlyProcess], set[int]]:
    """Return the early processes that were started as ranks, by rank, and the set of their process ids."""
    ranks: dict[int, EarlyProcess] = {}
    # A process that has a file again, after an exec, is not the rank that it was.
    living = {rank for pid, rank in rank_by_pid.items() if pid not in early}
    observed = early.keys() | rank_by_pid.keys()
    # The processes of a launcher inside the script come after the launcher and are the ranks instead of it.
    for pid, process in early.items():
        above = next((parent for parent in _ancestors(pid, parents) if parent in observed), None)
        own = _rank_variables(pid)
        if above is None or (own[0] is not None and own != _rank_variables(above)):
            rank = rank_by_pid.get(pid, int(own[0] or 0))
            if rank not in living and not (above is None and rank in ranks):
                ranks[rank] = process
    return ranks, {process.pid for process in ranks.values()}


def _rank_variables(pid: int) -> tuple[str | None, str | None, str | None]:
    """Return the process's RANK, WORLD_SIZE and MASTER_PORT variables, which launchers set for each rank."""
    environment = read_environment(pid)
    rank = environment.get("RANK", "")
    return (
        rank if rank.isdecimal() and len(rank) < 6 else None,
        environment.get("WORLD_SIZE"),
        environment.get("MASTER_PORT"),
    )


def _rank_above(pid: int, parents: Mapping[int, int], rank_by_pid: Mapping[int, int]) -> int | None:
    return next((rank_by_pid[parent] for parent in _ancestors(pid, parents) if parent in rank_by_pid), None)


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    above = parents.get(pid)
    while above is not None:
        yield above
        above = parents.get(above)


def _guard_pid(run: RunDir) -> int:
    text = text_or_empty(run.path / "guard.lock")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _descendants(pid: int) -> dict[int, int]:
    """Return a process's descendants in the order of their start, each with its parent."""
    try:
        below = psutil.Process(pid).children(recursive=True) if pid else []
    except psutil.Error:
        return {}
    started: list[tuple[float, int, int]] = []
    for process in below:
        try:
            started.append((process.create_time(), process.pid, process.ppid()))
        except psutil.Error:
            continue
    return {pid: parent for _, pid, parent in sorted(started)}


def _early_process(pid: int, run: RunDir) -> EarlyProcess | None:
    """Return the process if it has a file for its stacks, created for this run; otherwise None."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        numbers = sorted(int(name) for name in os.listdir(folder) if int(name) >= _MIN_FD)  # noqa: PTH208
    except (OSError, ValueError):
        return None
    for number in numbers:
        file = folder / str(number)
        line = _first_line(file)
        # A child that C code has forked has its parent's file.
        if line is not None and int(line[1]) == pid and _is_same_folder(os.fsdecode(line[3]), run.path):
            return EarlyProcess(pid, int(line[2]), file)
    return None


def _first_line(file: Path) -> re.Match[bytes] | None:
    try:
        if not str(file.readlink()).startswith(_FILE_NAMES):
            return None
        with file.open("rb") as opened:
            return _FIRST_LINE.match(opened.read(_MAX_LINE_BYTES))
    except OSError:
        return None


def _is_same_folder(path: str, folder: Path) -> bool:
    return path == str(folder) or os.path.realpath(path) == os.path.realpath(folder)


def has_signal(process: EarlyProcess) -> bool:
    """Check whether the process still has the file that it registered for the signal."""
    line = _first_line(process.file)
    return line is not None and (int(line[1]), int(line[2])) == (process.pid, process.number)


def sleeps_in_lock(pid: int) -> bool:
    """Check whether the process's main thread is waiting for a lock of the operating system."""
    return text_or_empty(Path(f"/proc/{pid}/wchan")).startswith("futex")


def loaded_packages(pid: int) -> list[str]:
    """Return the packages of `LOCKING_PACKAGES` whose compiled code the process has loaded."""
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return [name for name in LOCKING_PACKAGES if f"/{name}/{name}." in text]
