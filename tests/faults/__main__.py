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

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        cache, seed = asked.cache, asked.seed
        self.trials = Recorded(cache / f"trials.{seed}.jsonl", Record, lambda one: f"{one.kind} {one.seed}")
        self.healthy = Recorded(cache / f"healthy.{seed}.jsonl", Healthy, lambda one: str(one.seed))
        self.storms = Recorded(cache / f"storms.{seed}.jsonl", Storm, lambda one: str(one.seed))
        if asked.again:
            for recorded in (self.trials, self.healthy, self.storms):
                recorded.keep(recorded.right)
        # A kind may have got another name since.
        self.trials.keep([f"{one.kind} {one.seed}" for one in self.trials if one.kind in KINDS])

    def run(self, place: Path) -> None:
        """Everything that is still to do."""
        asked, names = self._asked, [name for name in KINDS if self._asked.only in name]
        for number in range(asked.trials):
            name, seed = names[number % len(names)], asked.seed + number // len(names)
            if f"{name} {seed}" not in self.trials:
                one = try_out(seed, KINDS[name], place / f"trial-{number}")
                self.trials.add(one)
                drawn = f"{one.job}, {one.where} of step {one.step} in rank {one.rank}"
                told = f"{one.outcome}, {one.code or 'nothing'} of {one.told_rank}"
                _print(f"{name} ({drawn}): {told}, {one.took_s} s", one.wrong)
        for number in range(asked.healthy):
            if str(asked.seed + number) not in self.healthy:
                calm = run_healthy(asked.seed + number, place / f"healthy-{number}")
                self.healthy.add(calm)
                _print(f"healthy, {calm.how} ({calm.job}): {calm.took_s} s", calm.wrong)
        for number in range(asked.storms):
            if str(asked.seed + number) not in self.storms:
                storm = run_storm(asked.seed + number, place / f"storm-{number}", place / "undisturbed")
                self.storms.add(storm)
                _print(f"storm, {storm.strategy} ({'; '.join(storm.kills)}): {storm.took_s} s", storm.wrong)

    def page(self) -> str:
        return written([*self.trials], [*self.healthy], [*self.storms], self._asked.seed)

    def is_right(self) -> bool:
        """Enough trials altogether and of each kind, all healthy runs, all storms."""
        trials = [*self.trials]
        enough = sum(not one.wrong for one in trials) >= LEAST_RIGHT * len(trials)
        for name in {one.kind for one in trials}:
            of_kind = [one for one in trials if one.kind == name]
            # 5 of 6
            enough = enough and 6 * sum(not one.wrong for one in of_kind) >= 5 * len(of_kind)
        return enough and not any(one.wrong for one in (*self.healthy, *self.storms))


def _print(what: str, wrong: list[str]) -> None:
    print(f"{'wrong' if wrong else 'right'}  {what}", flush=True)
    for one in wrong:
        print(f"       {one[:1000]}", flush=True)


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
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = PRODUCT
    suite = Suite(asked)
    # What is wrong keeps its folder, to be looked at.
    place = Path(tempfile.mkdtemp(prefix="faults-", dir=_in_memory()))
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)
    suite.run(place)
    if asked.page is not None:
        asked.page.write_text(suite.page(), encoding="utf-8")
    print(suite.page())
    if suite.is_right():
        shutil.rmtree(place, ignore_errors=True)
        return 0
    print(f"What was wrong is kept in {place}.")
    return 1


def _in_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
