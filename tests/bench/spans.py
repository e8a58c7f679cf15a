"""What reporting and spans cost a run, by the clock inside it and side by side with runs without them.

    python -m tests.bench.spans [--steps 3000] [--rounds 3]

The accounted share is the time spent in reporting, in marks and in writing samples over the run's time; the
ratio compares the fastest steps of runs with and without marks, which a busy machine blurs. Goal: below 1 %.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rankdeck.config import from_text
from rankdeck.profiling.spans import SpanBudget, SpanRecorder
from rankdeck.rundir import EventWriter
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from rankdeck.training.reporting import StepReporter
from rankdeck.training.workload import load

MODELS = {
    "digits-mlp": 'model = { use = "mlp", args = { hidden = [256, 256] } }\ndata = { use = "digits" }',
    "small gpt": (
        'model = { use = "gpt", args = { layers = 2, heads = 2, width = 64, context = 64 } }\n'
        'data = { use = "synthetic", args = { samples = 512 } }'
    ),
}


def run_s(model: str, steps: int) -> float:
    """Seconds of the loop of one run of `single`, the building left out."""
    config = from_text(
        f'{MODELS[model]}\nstrategy = {{ use = "single" }}\ndevices = {{ use = "cpu:1" }}\n'
        f"[train]\nsteps = {steps}\nevaluate_every = 0",
        folder=Path.cwd(),
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = EventWriter(Path(folder) / "rank-0.0.jsonl")
        device = torch.device("cpu")
        trainer = assemble(load(config), rank=0, world_size=1, devices=[device], places=[0], writer=writer)
        started_s = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - started_s
        trainer.strategy.close()
        writer.close()
    return seconds


@contextmanager
def unmarked() -> Iterator[None]:
    """No step is sampled, and a mark is as little as a call can be."""
    nothing = nullcontext()
    with (
        mock.patch.object(SpanBudget, "should_record", lambda self, step: False),
        mock.patch.object(SpanRecorder, "phase", lambda self, *args, **kwargs: nothing),
    ):
        yield


class Account:
    """Time spent inside some methods."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent_s += time.perf_counter() - started_s

        return inside


def accounted(model: str, steps: int) -> dict[str, float]:
    """The shares of a run that reporting and spans take. Timing them costs as much again as a mark."""
    accounts = {name: Account() for name in ("reporting", "marks", "samples")}
    places = {
        "reporting": ((StepReporter, "add"), (StepReporter, "flush")),
        "marks": ((SpanRecorder, "phase"), (SpanRecorder, "open"), (SpanRecorder, "close")),
        "samples": ((Trainer, "_begin_spans"), (Trainer, "_end_spans")),
    }
    patches = [
        mock.patch.object(owner, name, accounts[what].timed(getattr(owner, name)))
        for what, methods in places.items()
        for owner, name in methods
    ]
    for patch in patches:
        patch.start()
    try:
        seconds = run_s(model, steps)
    finally:
        for patch in patches:
            patch.stop()
    return {name: account.spent_s / seconds for name, account in accounts.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for model in MODELS:
        run_s(model, 20)
        with_s, without_s = [], []
        for _ in range(args.rounds):
            with_s.append(run_s(model, args.steps))
            with unmarked():
                without_s.append(run_s(model, args.steps))
        shares = accounted(model, args.steps)
        words = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
        best_ms, bare_ms = (min(seconds) / args.steps * 1e3 for seconds in (with_s, without_s))
        print(
            f"{model}: {best_ms:.3f} ms a step, {bare_ms:.3f} without spans ({best_ms / bare_ms - 1:+.2%}, "
            f"best runs); accounted: {words}"
        )


if __name__ == "__main__":
    main()
