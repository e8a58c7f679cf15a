"""What is done to a run from outside, once its job has come to the place: signals, and files that go."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil

from rankdeck.rundir import RunDir
from tests.helpers import launching


def act(what: str, run: RunDir, folder: Path, ranks: tuple[int, ...]) -> None:
    """`ranks`: those whose code waits for it."""
    match what:
        case "kill rank":
            os.kill(_pid(folder, ranks[0]), signal.SIGKILL)
        case "kill ranks":
            for pid in launching.rank_pids(run).values():
                _kill(pid)
        case "term rank":
            os.kill(_pid(folder, ranks[0]), signal.SIGTERM)
        case "suspend rank":
            os.kill(_pid(folder, ranks[0]), signal.SIGSTOP)
        case "suspend supervisor":
            os.kill(launching.supervisor_pid(run) or 0, signal.SIGSTOP)
        case "kill supervisor":
            _kill(launching.supervisor_pid(run))
        case "kill guard":
            _kill(launching.guard_pid(run))
        case "kill both":
            guard, supervisor = launching.guard_pid(run), launching.supervisor_pid(run)
            _kill(guard)
            _kill(supervisor)
        case "kill store":
            _kill(_store_pid(run))
        case "remove socket":
            (run.path / "control.sock").unlink(missing_ok=True)
        case "remove run":
            shutil.rmtree(run.path)
        case "remove requests":
            shutil.rmtree(run.requests_folder, ignore_errors=True)
        case _:
            raise ValueError(what)


def go_on(what: str, run: RunDir, folder: Path, ranks: tuple[int, ...]) -> None:
    """End a suspension."""
    pid = launching.supervisor_pid(run) if what == "suspend supervisor" else _pid(folder, ranks[0])
    os.kill(pid or 0, signal.SIGCONT)


def _pid(folder: Path, rank: int) -> int:
    return int((folder / f"hit-{rank}").read_text().split()[1])


def _kill(pid: int | None) -> None:
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _store_pid(run: RunDir) -> int | None:
    """The helper that hosts a script's store."""
    supervisor = launching.supervisor_pid(run)
    if supervisor is None:
        return None
    for child in psutil.Process(supervisor).children():
        if "TCPStore" in " ".join(child.cmdline()):
            return child.pid
    return None
