"""What being watched costs a person's script: the same loop alone and observed, block by block in turn.

    .venv/bin/python -m tests.bench.observing [PAIRS]

One process for each way of watching (alone, and what `--observe` takes) is started and warmed up; then each
does a block of steps in turn, so that a busy machine is busy for all of them. Every few pairs they are
started anew, for where a process happens to get its memory makes it a hundredth faster or slower. Told is the
speed beside the script alone, of a step that takes some 6 ms, and the CPU time that a step of next to nothing
takes longer, which is what a step that is not sampled costs: the median of the pairs, and the 95 % interval
of that median.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.helpers.observed_process import script_environment

WAYS = ("none", "light", "full", "check")
PAIRS = 15
PAIRS_A_START = 3
BLOCK_S = 0.6


def worker(kind: str) -> None:
    """Answers each number of steps on stdin with the wall and the CPU seconds that they took."""
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    width, batch = (512, 192) if kind == "script" else (1, 1)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(64 * batch, width)
    loader = DataLoader(TensorDataset(x, x), batch)

    def batches() -> Any:
        while True:
            yield from loader

    each = batches()
    for line in sys.stdin:
        start_s, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            inputs, targets = next(each)
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        print(time.perf_counter() - start_s, time.process_time() - cpu, flush=True)


class _Process:
    def __init__(self, kind: str, way: str, folder: Path) -> None:
        run = folder / f"{kind}-{way}" if way in ("light", "full", "check") else None
        if run is not None:
            run.mkdir()
        env = script_environment(run, **({"RANKDECK_OBSERVE": way} if run is not None else {}))
        start = f"import sys; sys.path[:0] = {sys.path!r}; from tests.bench.observing import worker"
        code = f"{start}; worker({kind!r})"
        self._child = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def take(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of a step."""
        assert self._child.stdin is not None and self._child.stdout is not None
        print(steps, file=self._child.stdin, flush=True)
        wall, cpu = map(float, self._child.stdout.readline().split())
        return wall / steps, cpu / steps

    def close(self) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()


def of_median(values: list[float]) -> tuple[float, float, float]:
    """The median, and the 95 % interval of it by resampling."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def measure(kind: str, pairs: int) -> dict[str, list[list[tuple[float, float]]]]:
    """For each way the (alone, observed) pairs of a step's (wall, CPU) seconds."""
    times: dict[str, list[list[tuple[float, float]]]] = {way: [] for way in WAYS}
    for first in range(0, pairs, PAIRS_A_START):
        _measure_once(kind, range(first, min(pairs, first + PAIRS_A_START)), times)
    return times


def _measure_once(kind: str, turns: range, times: dict[str, list[list[tuple[float, float]]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes = {way: _Process(kind, way, Path(folder)) for way in ("alone", *WAYS)}
        try:
            for process in processes.values():
                process.take(100)
            steps = max(20, int(BLOCK_S / processes["alone"].take(100)[0]))
            for turn in turns:
                for way in WAYS:
                    two = ["alone", way][:: -1 if turn % 2 else 1]
                    taken = {name: processes[name].take(steps) for name in two}
                    times[way].append([taken["alone"], taken[way]])
        finally:
            for process in processes.values():
                process.close()


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    script, nothing = measure("script", pairs), measure("nothing", pairs)
    step_ms = statistics.median(alone[0] for alone, _ in script["light"]) * 1e3
    print(f"A script's step of {step_ms:.1f} ms, {pairs} pairs of {BLOCK_S:.1f} s; (95 % interval)")
    for way in WAYS:
        speed = of_median([alone[0] / observed[0] for alone, observed in script[way]])
        cpu = of_median([(observed[1] - alone[1]) * 1e6 for alone, observed in nothing[way]])
        print(
            f"--observe={way:6} speed beside alone {speed[0]:.3f} ({speed[1]:.3f} to {speed[2]:.3f}), "
            f"CPU per step {cpu[0]:+.1f} us ({cpu[1]:+.1f} to {cpu[2]:+.1f})"
        )


if __name__ == "__main__":
    main()
