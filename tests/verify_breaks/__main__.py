"""Breaks that the check before the first step finds, and right combinations in which it finds nothing:

    python -m tests.verify_breaks                      all rows, each beside the same case without a break
    python -m tests.verify_breaks --right              right combinations instead
    python -m tests.verify_breaks --only ring,tied     rows or cases by parts of their names
    python -m tests.verify_breaks --drawn 8 --seed 3   as many, drawn

It prints a line for each, then tables, and fails where something was missed or an alarm was false.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.helpers.checkout import PRODUCT
from tests.verify_breaks.right import correct_cases
from tests.verify_breaks.rows import Case, CheckedBreak, load_breaks
from tests.verify_breaks.table import BreakResult, format_tables, judge_break, judge_correct_case
from tests.verify_breaks.worlds import CheckPool, Job

T = TypeVar("T")


def main() -> int:
    asked = _parse_args()
    sys.path[:0] = PRODUCT.split(":")
    found = _check_correct_cases(asked) if asked.right else _check_breaks(asked)
    if asked.out is not None:
        asked.out.write_text("".join(json.dumps(one.as_json()) + "\n" for one in found))
    print(format_tables(found))
    return int(any(one.is_bad for one in found))


def _check_breaks(asked: argparse.Namespace) -> list[BreakResult]:
    rows = _select(load_breaks(), lambda row: f"{row.of}: {row.name}: {row.case.name}", asked)

    def case_of(row: CheckedBreak) -> Case:
        is_own = asked.alone is not None
        return dataclasses.replace(row.case, precision=asked.alone, in_own=True) if is_own else row.case

    controls = {row.case.name: case_of(row) for row in rows if row.is_in_engine}
    jobs = [Job(case) for case in controls.values()] * asked.controls
    return _run([*jobs, *(Job(case_of(row), row) for row in rows)], asked)


def _check_correct_cases(asked: argparse.Namespace) -> list[BreakResult]:
    return _run([Job(case) for case in _select(correct_cases(), lambda case: case.name, asked)], asked)


def _run(jobs: list[Job], asked: argparse.Namespace) -> list[BreakResult]:
    found: list[BreakResult] = []
    with CheckPool(asked.jobs) as worlds:
        for job, outcome, seconds in worlds.run(jobs):
            broken = job.checked_break
            found.append(
                judge_correct_case(job.case, outcome, seconds)
                if broken is None
                else judge_break(broken, outcome, seconds)
            )
            print(found[-1].text(), flush=True)
    return found


def _select(all_of_them: list[T], name_of: Callable[[T], str], asked: argparse.Namespace) -> list[T]:
    chosen = [one for one in all_of_them if any(part in name_of(one) for part in asked.only)]
    if asked.drawn:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.drawn, len(chosen)))
    return chosen


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.verify_breaks")
    parser.add_argument("--right", action="store_true", help="right combinations, which must be quiet")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], help="parts of names")
    parser.add_argument("--drawn", type=int, help="as many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="checks at a time")
    parser.add_argument("--alone", choices=("fp32", "bf16"), help="compare rows in this precision alone")
    parser.add_argument("--without-controls", dest="controls", action="store_false")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON lines")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
