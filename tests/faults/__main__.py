"""The whole suite: python -m tests.faults [--trials N] [--healthy N] [--storms N] [--seed S] [--cache FOLDER]

It goes on where it was cut off; what it has found so far is a page (--page).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from tests.faults.healthy import Healthy, run_healthy  # noqa: E402
from tests.faults.kinds import KINDS  # noqa: E402
from tests.faults.page import written  # noqa: E402
from tests.faults.record import Recorded  # noqa: E402
from tests.faults.storms import Storm, run_storm  # noqa: E402
from tests.faults.trial import Record, try_out  # noqa: E402
from tests.helpers.checkout import PRODUCT  # noqa: E402

SEED = 20_261_124
EACH = 6
"""Trials of every kind."""
LEAST_RIGHT = 0.97


class Suite:
    """What is asked for, and what is done of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        cache, seed = options.cache, options.seed
        self.trials = Recorded(
            cache / f"trials.{seed}.jsonl", Record, lambda record: f"{record.kind} {record.seed}"
        )
        self.healthy = Recorded(cache / f"healthy.{seed}.jsonl", Healthy, lambda record: str(record.seed))
        self.storms = Recorded(cache / f"storms.{seed}.jsonl", Storm, lambda record: str(record.seed))
        if options.again:
            for recorded in (self.trials, self.healthy, self.storms):
                recorded.retain(recorded.right)
        # A kind may have got another name since.
        self.trials.retain([f"{record.kind} {record.seed}" for record in self.trials if record.kind in KINDS])

    def run(self, folder: Path) -> None:
        """Everything that is still to do."""
        options, names = self._options, [name for name in KINDS if self._options.only in name]
        for number in range(options.trials):
            name, seed = names[number % len(names)], options.seed + number // len(names)
            if f"{name} {seed}" not in self.trials:
                trial = try_out(seed, KINDS[name], folder / f"trial-{number}")
                self.trials.add(trial)
                drawn = f"{trial.job}, {trial.where} of step {trial.step} in rank {trial.rank}"
                report = f"{trial.outcome}, {trial.code or 'nothing'} of {trial.told_rank}"
                _print(f"{name} ({drawn}): {report}, {trial.took_s} s", trial.wrong)
        for number in range(options.healthy):
            if str(options.seed + number) not in self.healthy:
                calm = run_healthy(options.seed + number, folder / f"healthy-{number}")
                self.healthy.add(calm)
                _print(f"healthy, {calm.how} ({calm.job}): {calm.took_s} s", calm.wrong)
        for number in range(options.storms):
            if str(options.seed + number) not in self.storms:
                storm = run_storm(options.seed + number, folder / f"storm-{number}", folder / "undisturbed")
                self.storms.add(storm)
                _print(f"storm, {storm.strategy} ({'; '.join(storm.kills)}): {storm.took_s} s", storm.wrong)

    def page(self) -> str:
        return written([*self.trials], [*self.healthy], [*self.storms], self._options.seed)

    def is_right(self) -> bool:
        """Enough trials altogether and of each kind, all healthy runs, all storms."""
        trials = [*self.trials]
        enough = sum(not trial.wrong for trial in trials) >= LEAST_RIGHT * len(trials)
        for name in {trial.kind for trial in trials}:
            of_kind = [trial for trial in trials if trial.kind == name]
            # 5 of 6
            enough = enough and 6 * sum(not trial.wrong for trial in of_kind) >= 5 * len(of_kind)
        return enough and not any(trial.wrong for trial in (*self.healthy, *self.storms))


def _print(what: str, wrong: list[str]) -> None:
    print(f"{'wrong' if wrong else 'right'}  {what}", flush=True)
    for message in wrong:
        print(f"       {message[:1000]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--trials", type=int, default=0, help=f"{EACH * len(KINDS)}: {EACH} of each kind")
    parser.add_argument("--healthy", type=int, default=0, help="runs of which nothing may be told")
    parser.add_argument("--storms", type=int, default=0, help="runs that are killed again and again")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="kinds whose names hold this")
    parser.add_argument("--cache", type=Path, default=Path(".make/faults"), help="what is done so far")
    parser.add_argument("--again", action="store_true", help="try again what was wrong")
    parser.add_argument("--page", type=Path, help="where the page is written")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = PRODUCT
    suite = Suite(options)
    # What is wrong keeps its folder, to be looked at.
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=_in_memory()))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    suite.run(folder)
    if options.page is not None:
        options.page.write_text(suite.page(), encoding="utf-8")
    print(suite.page())
    if suite.is_right():
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"What was wrong is kept in {folder}.")
    return 1


def _in_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
