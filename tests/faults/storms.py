"""Kill storms: a run is killed again and again, also in the middle of a save and of a restart, and gone on
with until it is done. Nothing may be lost: losses and weights are those of a run that nobody disturbed, to
the bit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file

from rankdeck.run_dir import RunDir
from tests.faults.trial import marked
from tests.helpers import killed_runs, launching, processes
from tests.helpers.waiting import wait_until

STRATEGIES: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "single": ({"use": "single"}, 1),
    "dp": ({"use": "dp"}, 2),
    "model": ({"use": "model"}, 2),
    "ddp": ({"use": "ddp"}, 2),
    "ddp, ring": ({"use": "ddp", "sync": "ring"}, 2),
    "fsdp": ({"use": "fsdp"}, 2),
    "pipeline": ({"use": "pipeline"}, 2),
    "pipeline-async": ({"use": "pipeline-async"}, 2),
    "tensor": ({"use": "tensor"}, 2),
    "hybrid": ({"use": "hybrid", "data": 2, "stage": 2}, 4),
}
VICTIMS = (
    "rank",
    "rank",
    "two ranks",
    "all ranks",
    "supervisor",
    "guard",
    "guard and supervisor",
    "rank and supervisor",
)
MOMENTS = ("step", "step", "save", "start")
STEPS, EVERY = 64, 8


class Storm(msgspec.Struct, omit_defaults=True):
    """What a storm came to. `kills`: whom and when; `wrong`: what was lost."""

    seed: int
    strategy: str
    restarts: int = 0
    kills: list[str] = []
    attempts: int = 0
    took_s: float = 0.0
    wrong: list[str] = []


def run_storm(seed: int, folder: Path, references: Path) -> Storm:
    """The storm of this seed. `references`: where runs that nobody disturbed are kept."""
    choose, began_s = random.Random(f"{seed} storm"), time.monotonic()
    # Every strategy in turn.
    name = list(STRATEGIES)[seed % len(STRATEGIES)]
    record = Storm(seed, name, choose.choice((0, 1, 3)))
    with marked(folder) as mark:
        try:
            expected = _reference(name, references)
            ended = _storm(record, folder, choose)
            record.wrong = ended.differences(expected)
            wait_until(
                lambda: not processes.find_marked(mark),
                deadline_s=launching.EXIT_TIMEOUT_S,
                what="the end of all",
            )
        except Exception as error:
            record.wrong.append(f"{type(error).__name__}: {error}")
        processes.kill_processes(processes.find_marked(mark))
    record.took_s = round(time.monotonic() - began_s, 1)
    if not record.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def _tables(name: str, restarts: int) -> dict[str, Any]:
    strategy, devices = STRATEGIES[name]
    base_tables = killed_runs.make_tables(
        strategy, devices, None, steps=STEPS, every=EVERY, keep_checkpoints=2
    )
    return {**base_tables, "launch": {"max_restarts": restarts}}


def _reference(name: str, references: Path) -> killed_runs.FinishedRun:
    """The run that nobody disturbed, made once."""
    weights, losses = references / f"{name}.safetensors", references / f"{name}.json"
    if not losses.exists():
        references.mkdir(parents=True, exist_ok=True)
        run = killed_runs.start_from_tables(_tables(name, 0), references / "runs")
        ended = killed_runs.wait_for_result(run)
        shutil.copy(run.weights, weights)
        losses.write_text(json.dumps(ended.losses))
        shutil.rmtree(run.path)
    return killed_runs.FinishedRun(json.loads(losses.read_text()), load_file(weights))


def _storm(record: Storm, folder: Path, choose: random.Random) -> killed_runs.FinishedRun:
    run = killed_runs.start_from_tables(_tables(record.strategy, record.restarts), folder / "runs")
    # Before its first checkpoint a run that is over cannot be gone on with.
    step = EVERY + 1
    for number in range(choose.randrange(2, 6)):
        phase = choose.choice(MOMENTS) if number else choose.choice(("step", "save"))
        pids = _await_moment(run, phase, step + choose.randrange(EVERY))
        if _is_over(run):
            break
        victim = choose.choice(VICTIMS)
        record.kills.append(f"{victim}, {phase}")
        attempt = run.next_attempt()
        _kill(run, victim, pids, choose)
        _await_next(run, attempt)
        step = min(STEPS - EVERY, step + EVERY)
        if run.outcome() == "completed":
            break
        if _is_over(run):
            killed_runs.resume_detached(run)
    while run.outcome() != "completed":
        wait_until(
            lambda: _is_over(run), deadline_s=killed_runs.END_TIMEOUT_S, interval_s=0.05, what="the end"
        )
        if run.outcome() != "completed":
            assert run.outcome() in ("failed", "lost"), run.exit_record()
            killed_runs.resume_detached(run)
            record.kills.append("none, gone on with")
            assert len(record.kills) < 20, f"it does not come to its end: {record.kills}, {run.exit_record()}"
    record.attempts = run.next_attempt()
    return killed_runs.wait_for_result(run)


def _await_moment(run: RunDir, phase: str, step: int) -> dict[int, int]:
    """The process ids of this attempt's ranks, as far as they are known by then."""
    if phase == "start":
        # Somewhere between the start of the processes and the first step.
        time.sleep(random.Random(step).random() * 3)
        alive = processes.processes_of_run(run.path)
        return {rank: pid for rank, pid in launching.rank_pids(run).items() if pid in alive}
    pids = killed_runs.wait_for_step(run, step)
    if phase == "save":
        killed_runs.wait_for_save(run)
    return pids


def _is_over(run: RunDir) -> bool:
    return run.exit_record() is not None or not run.is_alive()


def _kill(run: RunDir, victim: str, pids: Mapping[int, int], choose: random.Random) -> None:
    guard, supervisor = launching.guard_pid(run), launching.supervisor_pid(run)
    ranks = sorted(pids.values()) or [pid for pid in [supervisor] if pid is not None]
    chosen: dict[str, list[int | None]] = {
        "rank": [*choose.sample(ranks, min(1, len(ranks)))],
        "two ranks": [*choose.sample(ranks, min(2, len(ranks)))],
        "all ranks": [*ranks],
        "supervisor": [supervisor],
        "guard": [guard],
        "guard and supervisor": [guard, supervisor],
        "rank and supervisor": [*choose.sample(ranks, min(1, len(ranks))), supervisor],
    }
    for pid in chosen[victim]:
        if pid is not None and _is_of(run, pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_of(run: RunDir, pid: int) -> bool:
    """A number may have become another process's."""
    return pid in processes.processes_of_run(run.path)


def _await_next(run: RunDir, attempt: int) -> None:
    """Until it is over, or has begun the attempt after this one by itself."""
    wait_until(
        lambda: _is_over(run) or run.next_attempt() > attempt,
        deadline_s=killed_runs.END_TIMEOUT_S,
        interval_s=0.02,
        what="the end of the attempt",
    )
    if _is_over(run):
        wait_until(lambda: not run.is_alive(), deadline_s=30, what="the guard's end")
