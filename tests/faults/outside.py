"""What is done to a run from outside, once its job has come to the place: signals, and files that go."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil

from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.processes import command_line

_FROZEN_S = 40.0


def act(what: str, run: RunDir, folder: Path, ranks: tuple[int, ...]) -> RunDir:
    """The run where it is then. `ranks`: those whose code waits for it."""
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
        case "move run":
            return RunDir(run.path.rename(run.path.with_name(f"{run.name}-moved")))
        case "replace run":
            moved = run.path.rename(run.path.with_name(f"{run.name}-moved"))
            (run.path / "checkpoints").mkdir(parents=True)
            return RunDir(moved)
        case "freeze run":
            _freeze(run)
        case "remove requests":
            shutil.rmtree(run.requests_folder, ignore_errors=True)
        case _:
            raise ValueError(what)
    return run


def _freeze(run: RunDir) -> None:
    """All of it, as a cgroup that is frozen does; nobody in it has an own clock."""
    guard = psutil.Process(launching.guard_pid(run) or 0)
    frozen = [guard, *guard.children(recursive=True)]
    for process in frozen:
        process.suspend()
    time.sleep(_FROZEN_S)
    for process in frozen:
        process.resume()


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
        if "TCPStore" in " ".join(command_line(child)):
            return child.pid
    return None
