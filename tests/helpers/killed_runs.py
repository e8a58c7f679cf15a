"""Real runs that are killed at a chosen moment and resumed, and the run that nobody disturbed beside them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file

from rankdeck import events
from rankdeck.checkpoint_files import COMMIT
from rankdeck.config import RunConfig, from_dict
from rankdeck.launch.control import wait_for_end
from rankdeck.launch.start import resume_run, start_run
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers.launching import supervisor_pid
from tests.helpers.waiting import wait_until

END_TIMEOUT_S = 180.0
_COMMAND = ["rankdeck", "train"]
GPT = {"layers": 4, "heads": 2, "width": 32, "context": 16, "vocabulary": 64, "dropout": 0.1}


def write_pictures(folder: Path) -> Path:
    """A folder per class, of small pictures that differ."""
    choose = random.Random(0)
    for name, blue in (("cat", 200), ("dog", 30)):
        (folder / name).mkdir(parents=True)
        for index in range(40):
            image = Image.new("RGB", (20, 20))
            image.putdata(
                [(choose.randrange(256), choose.randrange(256), choose.randrange(blue)) for _ in range(400)]
            )
            image.save(folder / name / f"{index}.png")
    return folder


def make_tables(
    strategy: Mapping[str, Any],
    num_devices: int,
    images: Path | None,
    *,
    workers: int = 0,
    steps: int = 80,
    every: int = 8,
    **train: Any,
) -> dict[str, Any]:
    """A run that draws at random wherever it can: pictures cut at random where given, and dropout."""
    model = {"use": "gpt", "args": GPT}
    data: dict[str, Any] = {"use": "synthetic", "args": {"samples": 128}}
    if images is not None:
        model = {"use": "mlp", "args": {"hidden": [32, 32], "dropout": 0.2}}
        data = {"use": "images", "args": {"path": str(images), "size": 16}}
    return {
        "name": "killed",
        "model": model,
        "data": {**data, "workers": workers},
        "strategy": dict(strategy),
        "devices": {"use": f"cpu:{num_devices}"},
        "train": {
            "steps": steps,
            "global_batch": 16,
            "checkpoint_every": every,
            "evaluate_every": 0,
            "optimizer": {"use": "adamw", "lr": 0.01},
            **train,
        },
    }


@dataclass(frozen=True)
class FinishedRun:
    """What a run came to."""

    losses: list[float]
    weights: dict[str, torch.Tensor]

    def differences(self, other: FinishedRun) -> list[str]:
        """What is not the same to the bit: the first step whose loss differs, and the weights."""
        both = zip(self.losses, other.losses, strict=False)
        steps = [f"the loss of step {step}" for step, (a, b) in enumerate(both, start=1) if a != b]
        if len(self.losses) != len(other.losses):
            steps.append(f"{len(self.losses)} steps instead of {len(other.losses)}")
        weights = [
            name for name, tensor in self.weights.items() if not torch.equal(tensor, other.weights[name])
        ]
        return [*steps[:1], *weights]


def make_config(tables: Mapping[str, Any], runs: Path) -> RunConfig:
    return from_dict(dict(tables), folder=runs.parent)


def start_from_tables(tables: Mapping[str, Any], runs: Path) -> RunDir:
    config = make_config(tables, runs)
    return start_run(config, runs=runs, detach=True, command_line=_COMMAND, started=time.time())


def resume_detached(run: RunDir, config: RunConfig | None = None) -> RunDir:
    return resume_run(
        run, config or run.config(), detach=True, command_line=["rankdeck", "resume"], started=time.time()
    )


def wait_for_result(run: RunDir, outcome: str = "completed") -> FinishedRun:
    """The run's end, awaited."""
    assert wait_for_end(run, END_TIMEOUT_S), f"{run.name} goes on for more than {END_TIMEOUT_S} s"
    end = run.exit_record()
    assert end is not None and end.outcome == outcome, (end, _log_tails(run))
    weights = load_file(run.weights) if run.weights.is_file() else {}
    return FinishedRun(read_run_state(run).column("loss").tolist(), weights)


def _log_tails(run: RunDir) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted(run.logs_folder.glob("*.err")))


def wait_for_step(run: RunDir, step: int) -> dict[int, int]:
    """Until rank 0 has told of this step; the process ids of this attempt's ranks."""
    reader, pids, reached = EventReader(run), dict[int, int](), 0
    attempt = run.next_attempt() - 1

    def has_reached_step() -> bool:
        nonlocal reached
        for name, new_events in reader.batches():
            for event in new_events if f".{attempt}." in name else []:
                if isinstance(event, events.RankStarted):
                    pids[event.rank] = event.pid
                elif isinstance(event, events.Steps) and event.rank == 0:
                    reached = event.first + len(event.ended) - 1
        return reached >= step or run.exit_record() is not None

    # While torch is imported there is nothing to miss.
    wait_until(lambda: has_reached_step() or pids, deadline_s=END_TIMEOUT_S, interval_s=0.05, what="a rank")
    wait_until(has_reached_step, deadline_s=END_TIMEOUT_S, interval_s=0.002, what=f"step {step}")
    return pids


def wait_for_save(run: RunDir) -> None:
    """Until a checkpoint is being written."""

    def has_unfinished_save() -> bool:
        try:
            unfinished = [path for path in run.checkpoints_folder.iterdir() if not (path / COMMIT).exists()]
        except OSError:
            unfinished = []
        return bool(unfinished) or run.exit_record() is not None

    wait_until(has_unfinished_save, deadline_s=END_TIMEOUT_S, interval_s=0.0005, what="a save")


def kill(run: RunDir, whom: str, choose: random.Random, pids: Mapping[int, int]) -> None:
    """SIGKILL to the supervisor or to one of the ranks; the run's end is awaited."""
    pid = supervisor_pid(run) if whom == "supervisor" else choose.choice(sorted(pids.values()))
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert wait_for_end(run, END_TIMEOUT_S)


def kill_and_resume(
    run: RunDir, whom: str, choose: random.Random, first: int, last: int, *, in_save: bool
) -> Callable[[], FinishedRun]:
    """Kill the run at a step between `first` and `last`, if asked in the middle of a save, and resume it."""
    pids = wait_for_step(run, choose.randint(first, last))
    if in_save:
        wait_for_save(run)
    kill(run, whom, choose, pids)
    end = run.exit_record()
    assert end is not None and end.outcome == "failed", end
    resume_detached(run)
    return lambda: wait_for_result(run)
