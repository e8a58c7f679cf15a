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
    args = _parse_args()
    sys.path[:0] = PRODUCT.split(":")
    results = _check_correct_cases(args) if args.right else _check_breaks(args)
    if args.out is not None:
        args.out.write_text("".join(json.dumps(result.as_json()) + "\n" for result in results))
    print(format_tables(results))
    return int(any(result.is_bad for result in results))


def _check_breaks(args: argparse.Namespace) -> list[BreakResult]:
    rows = _select(load_breaks(), lambda row: f"{row.of}: {row.name}: {row.case.name}", args)

    def case_of(row: CheckedBreak) -> Case:
        is_own = args.alone is not None
        return dataclasses.replace(row.case, precision=args.alone, in_own=True) if is_own else row.case

    controls = {row.case.name: case_of(row) for row in rows if row.is_in_engine}
    jobs = [Job(case) for case in controls.values()] * args.controls
    return _run([*jobs, *(Job(case_of(row), row) for row in rows)], args)


def _check_correct_cases(args: argparse.Namespace) -> list[BreakResult]:
    return _run([Job(case) for case in _select(correct_cases(), lambda case: case.name, args)], args)


def _run(jobs: list[Job], args: argparse.Namespace) -> list[BreakResult]:
    results: list[BreakResult] = []
    with CheckPool(args.jobs) as worlds:
        for job, outcome, seconds in worlds.run(jobs):
            broken = job.checked_break
            results.append(
                judge_correct_case(job.case, outcome, seconds)
                if broken is None
                else judge_break(broken, outcome, seconds)
            )
            print(results[-1].text(), flush=True)
    return results


def _select(all_of_them: list[T], name_of: Callable[[T], str], args: argparse.Namespace) -> list[T]:
    chosen = [item for item in all_of_them if any(pattern in name_of(item) for pattern in args.only)]
    if args.drawn:
        chosen = random.Random(args.seed).sample(chosen, min(args.drawn, len(chosen)))
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
