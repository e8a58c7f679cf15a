"""Rankdeck's training beside a hand-written loop, in turns, so that both see the same machine.

    single on digits-mlp   beside python -m tests.bench.hand_written      goal: 0.97 of its speed
    ddp on two ranks       beside torchrun --nproc-per-node 2 -m ...      goal: 0.97

Both train the same model from the same weights on the same batches in memory (the losses of step 50 are
compared), with the same optimizer, schedule and number of threads. Both are counted over the steps after the
first 20 %: Rankdeck's of a real run, with its supervisor, its sampler and all of its reporting. The ratio is
the median over pairs of neighbouring runs; beside it stands the ratio of the best runs, which other work on
the machine disturbs least.

What the memory ledger and the spans cost is read from the run's own steps: what sampled steps took longer
than the median of the others, over all steps. Goal: 0.5 % together.
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
from statistics import median

from rankdeck import events
from rankdeck.run_dir import EventReader, RunDir
from tests.bench.hand_written import REPORT_EVERY, WARM_UP_SHARE
from tests.helpers.checkout import CHECKOUT

PRESET = "digits-mlp"
GOAL = 0.97
SAMPLED_GOAL = 0.005


@dataclass(frozen=True)
class Case:
    """One comparison: a preset or a file, on virtual devices or on a GPU ("gpu:0"). `tolerance` is for the
    losses of step 50, relative: some sums of a GPU have no fixed order."""

    name: str
    strategy: str
    ranks: int
    steps: int
    config: str = PRESET
    gpu: str | None = None
    tolerance: float = 1e-4


CASES = (Case("single", "single", 1, 6000), Case("ddp, 2 ranks", "ddp", 2, 3000))


@dataclass(frozen=True)
class Measured:
    """A run of one side; `ledger` and `spans` are shares of its time."""

    step_us: float
    loss: float
    ledger: float = 0.0
    spans: float = 0.0


@dataclass(frozen=True)
class Pair:
    """One run of each side."""

    ours: Measured
    hand: Measured

    @property
    def ratio(self) -> float:
        return self.hand.step_us / self.ours.step_us


def measure(case: Case, rounds: int, *, first: int = 0) -> list[Pair]:
    """`rounds` pairs from number `first` on; the side that goes first alternates."""
    pairs = []
    for number in range(first, first + rounds):
        if number % 2:
            hand, ours = hand_written(case), rankdeck(case)
        else:
            ours, hand = rankdeck(case), hand_written(case)
        if abs(ours.loss - hand.loss) > case.tolerance * abs(hand.loss):
            raise SystemExit(f"The two sides train differently: losses {ours.loss} and {hand.loss}")
        pairs.append(Pair(ours, hand))
        print(
            f"  {case.name}: {ours.step_us:,.0f} us, by hand {hand.step_us:,.0f} us = {pairs[-1].ratio:.3f}",
            file=sys.stderr,
        )
    return pairs


def rankdeck(case: Case) -> Measured:
    """A run of its own in a home of its own, as its events tell of it."""
    with tempfile.TemporaryDirectory() as folder:
        home = {"RANKDECK_HOME": f"{folder}/home", "RANKDECK_RUNS": f"{folder}/runs"}
        settings = [f"train.steps={case.steps}", "train.evaluate_every=0"]
        command = [sys.executable, "-P", "-m", "rankdeck", "train", case.config, "--strategy", case.strategy]
        command += ["--devices", case.gpu or f"cpu:{case.ranks}", "--json"]
        output = _output([*command, *(word for setting in settings for word in ("--set", setting))], home)
        run = RunDir(Path(json.loads(output)["path"]))
        return _measured([event for _, event in EventReader(run).read(1 << 30)], case.steps)


def _measured(read: list[events.AnyEvent], steps: int) -> Measured:
    step_s: dict[int, float] = {}
    sums = [0.0, 0.0]
    ledger: set[int] = set()
    spans: set[int] = set()
    for event in read:
        if isinstance(event, events.Steps):
            at = REPORT_EVERY - event.first
            if event.loss_sum and event.count and 0 <= at < len(event.loss_sum):
                sums[0] += event.loss_sum[at] or 0.0
                sums[1] += event.count[at]
            if event.rank == 0:
                step_s |= enumerate(event.step_s, start=event.first)
        elif isinstance(event, events.Memory):
            ledger.add(event.step)
        elif isinstance(event, events.Spans):
            spans |= {event.step, event.step + 1}  # a sample is written one step later
    counted = {step: s for step, s in step_s.items() if step > int(steps * WARM_UP_SHARE)}
    plain_s = median(s for step, s in counted.items() if step not in ledger | spans)
    total_s = sum(counted.values())

    def share(sampled: set[int]) -> float:
        taken_s = [counted[step] for step in sampled if step in counted]
        return max(0.0, median(taken_s) - plain_s) * len(taken_s) / total_s if taken_s else 0.0

    return Measured(total_s / len(counted) * 1e6, sums[0] / sums[1], share(ledger), share(spans - ledger))


def hand_written(case: Case) -> Measured:
    """The plain loop with the preset's settings."""
    command = [sys.executable]
    if case.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    command += ["-m", "tests.bench.hand_written", case.config, "--steps", str(case.steps)]
    command += ["--device", "cpu" if case.gpu is None else "cuda"]
    return Measured(**json.loads(_output(command, {}).splitlines()[-1]))


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
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Rankdeck's training beside a hand-written loop.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=[case.strategy for case in CASES])
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; us per step")
    print(
        f"{'training':<14}{'Rankdeck':>9}{'by hand':>9}{'ratio':>7}{'of best':>9}{'goal':>6}   ledger + spans"
    )
    for case in CASES:
        if args.only in (None, case.strategy):
            pairs = measure(case, args.rounds)
            ratio = median(pair.ratio for pair in pairs)
            best = min(pair.hand.step_us for pair in pairs) / min(pair.ours.step_us for pair in pairs)
            ledger, spans = (
                median(getattr(pair.ours, name) for pair in pairs) for name in ("ledger", "spans")
            )
            reached = ratio >= GOAL and ledger + spans <= SAMPLED_GOAL
            print(
                f"{case.name:<14}{median(pair.ours.step_us for pair in pairs):>9,.0f}"
                f"{median(pair.hand.step_us for pair in pairs):>9,.0f}{ratio:>7.3f}{best:>9.3f}{GOAL:>6.2f}"
                f"   {ledger:.2%} + {spans:.2%} of {SAMPLED_GOAL:.1%}  {'reached' if reached else 'missed'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
