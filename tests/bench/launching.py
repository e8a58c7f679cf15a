"""How soon the first step of two ranks ends after a command was typed: Rankdeck beside torchrun.

    python -m tests.bench.launching [--rounds 7]

    run          `rankdeck run` with the script that torchrun gets            goal: 0.75 of torchrun
    train        `rankdeck train` with the script's network under ddp         goal: 0.60 of torchrun
    train, off   the same without the check before the first step (train.verify)

In turns, so that all see the same machine; medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rankdeck import events
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers.checkout import PRODUCT

_NETWORK = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""
_SCRIPT = """
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

import network

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(network.make())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 64)), torch.randint(10, (16,))).backward()
    optimizer.step()
    if step == 0 and dist.get_rank() == 0:
        Path("first").write_text(str(time.time()))
dist.destroy_process_group()
"""
_CONFIG = """
name = "launching"
[model]
use = "network:make"
[data]
use = "digits"
[train]
steps = 3
global_batch = 32
evaluate_every = 0
[strategy]
use = "ddp"
[devices]
use = "cpu:2"
"""
_RANKDECK = (sys.executable, "-P", "-m", "rankdeck")


def torchrun(folder: Path) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return _script(folder, [*command, "script.py"])


def script_run(folder: Path) -> float:
    return _script(folder, [*_RANKDECK, "run", "--devices", "cpu:2", "script.py"])


def train(folder: Path, verify: str = "auto") -> float:
    started = _ended(folder, [*_RANKDECK, "train", "config.toml", "--set", f"train.verify={verify}"])
    run = RunDir(max((folder / "runs").iterdir(), key=os.path.getmtime))
    steps = [event for _, event in EventReader(run).read(1 << 30) if isinstance(event, events.Steps)]
    return min(event.ended[0] for event in steps if event.first == 1) - started


def train_unverified(folder: Path) -> float:
    return train(folder, "off")


def _script(folder: Path, command: list[str]) -> float:
    return -_ended(folder, command) + float((folder / "first").read_text())


def _ended(folder: Path, command: list[str]) -> float:
    """When a command that succeeded was started."""
    started = time.time()
    home = {"RANKDECK_HOME": str(folder / "home"), "RANKDECK_RUNS": str(folder / "runs")}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PRODUCT, **home},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return started


WAYS: dict[str, tuple[Callable[[Path], float], float | None]] = {
    "torchrun": (torchrun, None),
    "run": (script_run, 0.75),
    "train": (train, 0.6),
    "train, off": (train_unverified, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to the first step, beside torchrun.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; seconds to the end of the first step"
    )
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in (("network.py", _NETWORK), ("script.py", _SCRIPT), ("config.toml", _CONFIG)):
            (folder / name).write_text(text)
        for number in range(rounds + 1):
            for name, (measure, _) in WAYS.items():
                seconds = measure(folder)
                if number:  # the first one compiles what it imports
                    times[name].append(seconds)
    reference = median(times["torchrun"])
    for name, (_, goal) in WAYS.items():
        ratio = median(times[name]) / reference
        verdict = "" if goal is None else f"{goal:>6.2f}  {'reached' if ratio <= goal else 'missed'}"
        print(f"{name:<12}{median(times[name]):>7.2f}{min(times[name]):>7.2f}{ratio:>7.2f}{verdict}")


if __name__ == "__main__":
    main()
