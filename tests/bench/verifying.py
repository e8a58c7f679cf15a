"""The check before the first step beside its budget, preset by preset: what it takes, and how much later the
first step comes.

    python -m tests.bench.verifying [--rounds 3] [--steps N] [--only gpt-ddp,gpt-fsdp]

Each round starts a preset with the check and without it, in turns, so that both see the same machine. `check`
is the time of the check over its budget (3 s, or 5 % of a longer run by its own steps). `later` is what the
first step is later than without the check, over that budget: less than `check` where the run takes over what
the check has proven. digits-mlp has one device and no check: its first step may come 10 % later. Best of the
rounds, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rankdeck import events
from rankdeck.run_dir import EventReader, RunDir
from rankdeck.training.verify.budget import MIN_BUDGET_S, SHARE_OF_RUN
from tests.helpers.checkout import CHECKOUT

NEEDS_DATA = ("resnet50-images", "resnet50-model-parallel")
LATEST = 1.1
"""Of launch to first step without any check."""


@dataclass(frozen=True)
class Launched:
    """One run. `first_step_s` is from launch to the end of the first step, `run_s` the time of its steps."""

    first_step_s: float
    run_s: float
    verified: events.Verified | None

    @property
    def budget_s(self) -> float:
        return max(MIN_BUDGET_S, SHARE_OF_RUN * self.run_s)


def launch(preset: str, steps: int | None, verify: str) -> Launched:
    """A run of its own in a home of its own, as its events tell of it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"train.verify={verify}", "train.evaluate_every=0"]
        settings += [] if steps is None else [f"train.steps={steps}"]
        command = [sys.executable, "-P", "-m", "rankdeck", "train", preset, "--json"]
        done = subprocess.run(
            [*command, *(word for setting in settings for word in ("--set", setting))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "RANKDECK_HOME": f"{folder}/home", "RANKDECK_RUNS": f"{folder}/runs"},
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{preset} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        run = RunDir(Path(json.loads(done.stdout)["path"]))
        return _launched([event for _, event in EventReader(run).read(1 << 30)])


def _launched(read: list[events.AnyEvent]) -> Launched:
    started_s = min(event.t for event in read)
    steps = [event for event in read if isinstance(event, events.Steps) and event.rank == 0]
    first = min(steps, key=lambda event: event.first)
    verified = next((event for event in read if isinstance(event, events.Verified)), None)
    run_s = sum(sum(event.step_s) for event in steps)
    return Launched(first.ended[0] - started_s, run_s, verified)


def presets() -> list[str]:
    names = sorted(file.stem for file in (CHECKOUT / "presets").glob("*.toml"))
    return [name for name in names if name not in NEEDS_DATA]


def compared(preset: str, steps: int | None, rounds: int) -> str:
    """A row of the table."""
    pairs = []
    for number in range(rounds):
        order = ("auto", "off") if number % 2 else ("off", "auto")
        runs = {verify: launch(preset, steps, verify) for verify in order}
        pairs.append((runs["auto"], runs["off"]))
    later_s = min(on.first_step_s for on, _ in pairs) - min(off.first_step_s for _, off in pairs)
    best, _ = min(pairs, key=lambda pair: pair[0].verified.seconds if pair[0].verified else 0.0)
    if best.verified is None:
        ratio = min(on.first_step_s for on, _ in pairs) / min(off.first_step_s for _, off in pairs)
        reached = ratio <= LATEST
        return f"{preset:<26}{'':>8}{ratio - 1:>8.0%}  no check  {'reached' if reached else 'missed'}"
    verification = best.verified
    check = verification.seconds / best.budget_s
    what = (
        verification.why
        if verification.outcome == "unchecked"
        else f"{verification.steps} x {verification.samples} samples"
    )
    reached = check <= 1 and verification.outcome != "unchecked"
    row = f"{preset:<26}{check:>8.0%}{later_s / best.budget_s:>8.0%}  {verification.outcome:<9} {what}"
    return f"{row}  {'reached' if reached else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="Fewer than a preset has: the budget is then 3 s.")
    parser.add_argument("--only", help="Presets, with commas.")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; of the budget")
    print(f"{'preset':<26}{'check':>8}{'later':>8}")
    for preset in chosen.only.split(",") if chosen.only else presets():
        print(compared(preset, chosen.steps, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
