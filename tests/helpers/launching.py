"""Runs under a real guard and supervisor, most of them with ranks that need no torch."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import HeartbeatReader
from rankdeck.config import RunConfig, from_dict
from rankdeck.launch.control import wait_for_end
from rankdeck.launch.rank_process import GRACE_S
from rankdeck.launch.start import start_run
from rankdeck.run_dir import EventReader, ExitRecord, RunDir
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import scale_timeout, wait_until

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
EXIT_TIMEOUT_S = 5.0
"""How long anything of a run may take to be gone on an idle machine, whatever ended it."""

_ATTACHED = """
import pathlib, signal, sys
from tests.helpers.launching import launch
print(launch(pathlib.Path(sys.argv[1]), detach=False).path, flush=True)
signal.pause()
"""


def small_config(folder: Path, tables: Mapping[str, Any] | None = None) -> RunConfig:
    """A ddp run of an mlp on two virtual devices; `tables` replace its own."""
    values = {
        "name": "small",
        "model": {"use": "mlp"},
        "data": {"use": "digits"},
        "train": {"steps": 50},
        "strategy": {"use": "ddp"},
        "devices": {"use": "cpu:2"},
        **(tables or {}),
    }
    return from_dict(values, folder=folder)


def launch(
    runs: Path,
    tables: Mapping[str, Any] | None = None,
    *,
    detach: bool = True,
    worker: str | None = str(FAKE_WORKER),
) -> RunDir:
    """A run that has begun; its ranks are the fake worker's unless `worker` is None."""
    config = small_config(runs.parent, tables)
    command = ["rankdeck", "train", "small.toml"]
    return start_run(
        config, runs=runs, detach=detach, command_line=command, started=time.time(), worker=worker
    )


def launch_attached(runs: Path) -> tuple[subprocess.Popen[str], RunDir]:
    """A command that stays with its run, and the run."""
    command = subprocess.Popen(
        [sys.executable, "-P", "-c", _ATTACHED, str(runs)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS},
    )
    assert command.stdout is not None
    return command, RunDir(Path(command.stdout.readline().strip()))


def all_events(run: RunDir) -> list[tuple[str, events.AnyEvent]]:
    reader, event_list = EventReader(run), []
    while some := reader.read():
        event_list += some
    return event_list


def read_problems(run: RunDir, severity: str = "error") -> list[Problem]:
    """What readers are told: the problems of every writer."""
    return [
        event.problem
        for _, event in all_events(run)
        if isinstance(event, events.ProblemRaised) and event.problem.severity == severity
    ]


def rank_pids(run: RunDir) -> dict[int, int]:
    return {event.rank: event.pid for _, event in all_events(run) if isinstance(event, events.RankStarted)}


def wait_for_ranks(run: RunDir, count: int = 2) -> dict[int, int]:
    """The process ids of the ranks, once all have begun."""
    wait_until(
        lambda: len(rank_pids(run)) == count or run.exit_record(),
        deadline_s=60,
        what="the start of all ranks",
    )
    assert run.exit_record() is None, run.exit_record()
    return rank_pids(run)


def wait_for_beats(run: RunDir, count: int = 2) -> None:
    """Until each of so many ranks has beaten: until then its supervisor does not know where it stands."""
    with open(_heartbeats(run), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as page:
        readers = [HeartbeatReader(page, rank) for rank in range(count)]
        wait_until(lambda: all(reader.read() for reader in readers), what="a beat of every rank")


def _heartbeats(run: RunDir) -> Path:
    """The page that a run's ranks write their beats to, as its supervisor has it open."""
    supervisor = supervisor_pid(run)
    for opened in Path(f"/proc/{supervisor}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if "rankdeck-heartbeats" in str(opened.readlink()):
                return opened
    raise AssertionError(f"{run.name} has no page for heartbeats")


def guard_pid(run: RunDir) -> int:
    return int((run.path / "guard.lock").read_text())


def supervisor_pid(run: RunDir) -> int | None:
    """The guard's only direct child that is a supervisor, or None before it has begun or after its end."""
    guard = guard_pid(run)
    below = {process.pid for process in psutil.process_iter(["ppid"]) if process.info["ppid"] == guard}
    return next((pid for pid in processes_of_run(run.path) if pid in below), None)


def sampler_pid(run: RunDir) -> int | None:
    """The process that reads the run's devices, or None where there is none now."""
    for pid in processes_of_run(run.path):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"rankdeck.telemetry.sampler" in command:
            return pid
    return None


def wait_for_exit_record(run: RunDir, timeout_s: float = 60.0) -> ExitRecord:
    """The last word of a run that ends by itself; nothing of it is left."""
    assert wait_for_end(run, scale_timeout(timeout_s)), f"{run.name} did not end within {timeout_s} s"
    end = run.exit_record()
    assert end is not None
    wait_until_gone(run)
    return end


def exit_delay_s(run: RunDir) -> float:
    """Seconds from the end of the first rank's work to the end of the run."""
    run_events = [event for _, event in all_events(run)]
    first = min(event.t for event in run_events if isinstance(event, events.RankEnded))
    return next(event.t for event in run_events if isinstance(event, events.RunEnded)) - first


def stop_timeout_s(seconds: float) -> float:
    """How long a stop may take that ends no rank by force: so many seconds on an idle machine, and on any
    machine less than the grace after which ranks are killed.
    """
    return min(scale_timeout(seconds), GRACE_S)


def wait_until_gone(run: RunDir) -> float:
    """Seconds until nothing of the run is left, nor of its lock, which a child that a guard had forked for a
    supervisor holds until it is one. Raises: AssertionError after GONE_S.
    """
    start_s = time.monotonic()

    def is_gone() -> bool:
        return not processes_of_run(run.path) and not run.is_alive()

    wait_until(is_gone, deadline_s=EXIT_TIMEOUT_S, what="the end of every process")
    return time.monotonic() - start_s
