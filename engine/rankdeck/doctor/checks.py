"""The list of checks: which rows each tells, within which time, and what it waits for.

Measured things wait for each other: the disk, then imports of torch, then ranks by gloo, then by NCCL. All
else is looked at meanwhile. Together they take some seconds, and some minutes where all of them hang. Read
looking.py next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankdeck.base.home import state_dir
from rankdeck.config import environments
from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor import clock, gpus, limits, logout, meeting, network, python, room
from rankdeck.doctor.looking import Check

_SOON_S, _DISK_S, _NAMES_S, _DRIVER_S = 5.0, 20.0, 10.0, 60.0


@dataclass(frozen=True)
class Looked:
    """What is looked at beside the machine itself: an interpreter, and the folder that will hold runs."""

    python: ChosenPython
    runs: Path


def checks_of(looked: Looked) -> list[Check]:
    """All of them."""
    interpreter = looked.python.python
    found = [
        Check(("driver", "gpus", "vram", "order", "peers"), gpus.look_at_gpus, _DRIVER_S),
        Check(("runs",), partial(room.look_at_runs, looked.runs), _DISK_S),
        Check(("state",), partial(room.look_at_state, state_dir()), _DISK_S),
        Check(("shm",), room.look_at_shm, _SOON_S),
        Check(("memory",), limits.look_at_memory, _SOON_S),
        Check(("files",), limits.look_at_files, _SOON_S),
        Check(("processes",), limits.look_at_processes, _SOON_S),
        Check(("threads",), limits.look_at_threads, _SOON_S),
        Check(("loopback",), network.look_at_loopback, _NAMES_S),
        Check(("hostname",), network.look_at_hostname, _NAMES_S),
        Check(("interface",), network.look_at_interface, _SOON_S),
        Check(("clock",), clock.look_at_clock, _SOON_S),
        Check(("logout",), logout.look_at_logout, _SOON_S),
        _python("python", looked.python),
        Check(("gloo",), partial(meeting.look_at_gloo, interpreter), meeting.LIMIT_S, "python", needs=True),
        Check(("nccl",), partial(meeting.look_at_nccl, interpreter), meeting.LIMIT_S, "gloo", needs=True),
    ]
    if not environments.is_own(interpreter.parent.parent):
        own = ChosenPython(environments.own(), environments.OWN)
        found.append(_python("own-python", own))
    return found


def _python(name: str, chosen: ChosenPython) -> Check:
    return Check((name,), partial(python.look_at_python, name, chosen), python.ANSWERS_WITHIN_S, after="runs")


def only(checks: list[Check], names: set[str]) -> list[Check]:
    """The checks that tell these rows, all where none is named."""
    return [check for check in checks if not names or names & set(check.names)]
