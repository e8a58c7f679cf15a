"""Processes as Linux shows them in /proc: whose child, which session, which run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ProcessRow(NamedTuple):
    """One line of /proc. `state` is R, S, D, T (suspended) or Z (a zombie)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def read_process(pid: int) -> ProcessRow | None:
    """The process, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in the second column may hold spaces and brackets.
    state, parent, group, session = stat.rpartition(b")")[2].split()[:4]
    return ProcessRow(pid, state.decode(), int(parent), int(group), int(session))


def all_processes() -> Iterator[ProcessRow]:
    """Every process that /proc shows; those that end meanwhile are left out."""
    for entry in Path("/proc").glob("[0-9]*"):
        if (row := read_process(int(entry.name))) is not None:
            yield row


def signal_sessions(sessions: set[int], number: int) -> int:
    """Send a signal to every process of these sessions, whatever its group; how many there were."""
    members = [row.pid for row in all_processes() if row.session in sessions and row.state != "Z"]
    for pid in members:
        try:
            os.kill(pid, number)
        except OSError:
            pass
    return len(members)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty for one that is gone or another user's."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
