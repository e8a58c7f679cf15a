"""Many runs in one folder, each written by the engine's own writer: what a person has after a year."""

from __future__ import annotations

import json
import random
from pathlib import Path

from rankdeck import events
from rankdeck.run_dir import Labels, write_labels
from tests.helpers.written_run import MIB, WrittenRun, device_infos

STRATEGIES = ("single", "dp", "ddp", "fsdp", "pipeline", "tensor")
OUTCOMES = ("completed", "completed", "completed", "stopped", "failed", "lost")
TAGS = ("baseline", "paper", "sweep", "keep", "debug")


def write_many(runs: Path, count: int, *, seed: int = 1, num_steps: int = 120) -> list[Path]:
    """As many runs that are over, newest last; what they did is drawn from `seed`."""
    rng = random.Random(seed)
    return [_write(runs, number, rng, num_steps, count) for number in range(count)]


def _write(runs: Path, number: int, rng: random.Random, num_steps: int, count: int) -> Path:
    strategy, outcome = rng.choice(STRATEGIES), rng.choice(OUTCOMES)
    num_devices = 1 if strategy == "single" else rng.choice((2, 4, 8))
    title = f"GPT · {strategy.upper()} · {num_devices} #{number}"
    run = WrittenRun(runs, title, config={"strategy": {"use": strategy}})
    run.started -= (count - number) * 3600.0
    done = num_steps if outcome == "completed" else rng.randrange(1, num_steps)
    run.start(devices=device_infos(num_devices), steps=num_steps, strategy=strategy)
    level = rng.uniform(1.5, 4.0)
    for first in range(1, done + 1, 10):
        losses = [level + 4 / (first + at) for at in range(min(10, done + 1 - first))]
        run.write_steps(0, first, losses, step_s=rng.uniform(0.005, 0.05))
    lead = rng.choice((1, 1, 3))
    kinds = {
        index: {
            "parameters": 20 * MIB,
            "activations": (lead if index == 0 else 1) * rng.randrange(20, 400) * MIB,
        }
        for index in range(num_devices)
    }
    run.write_memory(0, min(3, done), kinds)
    if outcome == "completed":
        run.writer("rank-0").write(
            events.Evaluation(step=done, loss=level + 0.1, samples=64, seconds=0.1, final=True)
        )
    _end(run, outcome, run.started + rng.uniform(5, 90_000))
    if rng.random() < 0.2:
        tags = tuple(rng.sample(TAGS, rng.choice((1, 2))))
        write_labels(run.path, Labels(tags=tags, is_archived=rng.random() < 0.1))
    return run.path


def _end(run: WrittenRun, outcome: str, ended: float) -> None:
    if outcome == "lost":
        run.lose()
        return
    run.end(outcome, int(outcome == "failed"), "rank 1: out of memory" if outcome == "failed" else None)
    word = json.loads((run.path / "end.json").read_text())
    (run.path / "end.json").write_text(json.dumps(word | {"ended": ended}))
