"""Rankdeck's training beside a hand-written loop, in turns, so that both see the same machine.

    single on digits-mlp   beside python hand_written.py             goal: 0.90 of its samples/s
    ddp on two ranks       beside torchrun --nproc-per-node 2 ...    goal: 0.95

Both get the preset's model, batch, optimizer and loader settings, the same number of steps and of threads,
and are counted alike: whole run after the first 20 % of its steps, Rankdeck's with its reporting and its
sampled steps. A ratio is the median over pairs of neighbouring runs; beside it stands the ratio of the best
runs, which other work on the machine disturbs least. Read hand_written.py for the other side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
HAND_WRITTEN = Path(__file__).with_name("hand_written.py")


@dataclass(frozen=True)
class Case:
    """One comparison."""

    name: str
    preset: str
    strategy: str
    ranks: int
    steps: int
    goal: float


CASES = (
    Case("single", "digits-mlp", "single", 1, 4000, 0.90),
    Case("ddp, 2 ranks", "digits-mlp", "ddp", 2, 1500, 0.95),
)


@dataclass(frozen=True)
class Pair:
    """Samples per second of one run of each side."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def measure(case: Case, repetitions: int) -> list[Pair]:
    """`repetitions` pairs; the side that goes first alternates."""
    preset = tomllib.loads((CHECKOUT / "presets" / f"{case.preset}.toml").read_text())
    pairs = []
    for repetition in range(repetitions):
        if repetition % 2:
            theirs = hand_written(case, preset)
            ours = rankdeck(case)
        else:
            ours = rankdeck(case)
            theirs = hand_written(case, preset)
        pairs.append(Pair(ours, theirs))
        print(f"  {case.name}: {ours:,.0f} / {theirs:,.0f} = {pairs[-1].ratio:.3f}", file=sys.stderr)
    return pairs


def rankdeck(case: Case) -> float:
    """Samples per second that `rankdeck show` tells of a run of its own, in a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = {"RANKDECK_HOME": f"{folder}/home", "RANKDECK_RUNS": f"{folder}/runs"}
        settings = [f"train.steps={case.steps}", "train.evaluate_every=0"]
        command = [*_rankdeck(), "train", case.preset, "--strategy", case.strategy]
        command += ["--devices", f"cpu:{case.ranks}"]
        _output([*command, *(word for setting in settings for word in ("--set", setting))], home)
        return float(json.loads(_output([*_rankdeck(), "show", "last", "--json"], home))["samples_per_s"])


def hand_written(case: Case, preset: dict[str, Any]) -> float:
    """Samples per second of the plain loop with the preset's settings."""
    train = preset.get("train", {})
    optimizer = train.get("optimizer", {})
    schedule = train.get("schedule", {})
    if (optimizer.get("use"), schedule.get("use")) != ("adamw", "cosine"):
        raise SystemExit(
            f"hand_written.py trains with AdamW and a cosine; {case.preset} wants something else"
        )
    hidden = preset["model"].get("args", {}).get("hidden", [256, 256])
    options = {
        "--steps": case.steps,
        "--global-batch": train.get("global_batch", 32),
        "--lr": optimizer.get("lr", 1e-3),
        "--warmup": schedule.get("warmup", 0),
        "--clip-norm": train.get("clip_norm", 0.0),
        "--workers": preset.get("data", {}).get("workers", 0),
    }
    command = [sys.executable]
    if case.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    command += [str(HAND_WRITTEN), "--hidden", *map(str, hidden)]
    command += [str(word) for option in options.items() for word in option]
    return float(json.loads(_output(command, {}).splitlines()[-1])["samples_per_s"])


def _rankdeck() -> list[str]:
    return [sys.executable, "-P", "-m", "rankdeck"]


def _output(command: list[str], env: dict[str, str]) -> str:
    """Standard output of a command that succeeded.

    Both sides get one thread per rank: the network is too small for two, and with two a machine that does
    anything else measures its scheduler.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Rankdeck's training beside a hand-written loop.")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", choices=[case.strategy for case in CASES])
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    print(f"{'training':<16}{'Rankdeck':>12}{'by hand':>12}{'ratio':>8}{'of best':>9}{'goal':>7}")
    for case in CASES:
        if args.only in (None, case.strategy):
            pairs = measure(case, args.repetitions)
            ratio = median(pair.ratio for pair in pairs)
            best = max(pair.ours for pair in pairs) / max(pair.theirs for pair in pairs)
            print(
                f"{case.name:<16}{median(pair.ours for pair in pairs):>10,.0f}/s"
                f"{median(pair.theirs for pair in pairs):>10,.0f}/s{ratio:>8.3f}"
                f"{best:>9.3f}{case.goal:>7.2f}"
                f"  {'reached' if ratio >= case.goal else 'missed'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
