"""Breaks that the check before the first step finds, and right combinations in which it finds nothing:

    python -m tests.verify_breaks                      all rows, each beside the same case without a break
    python -m tests.verify_breaks --right              right combinations instead
    python -m tests.verify_breaks --only ring,tied     rows or cases by parts of their names
    python -m tests.verify_breaks --drawn 8 --seed 3   as many, drawn

It prints a line for each, then tables, and fails where something was missed or an alarm was false.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import TypeVar

from tests.helpers.tree import PRODUCT
from tests.verify_breaks.right import cases
from tests.verify_breaks.rows import breaks
from tests.verify_breaks.table import Found, judge, judge_right, tables
from tests.verify_breaks.worlds import Job, Worlds

T = TypeVar("T")


def main() -> int:
    asked = _asked()
    sys.path[:0] = PRODUCT.split(":")
    found = _right(asked) if asked.right else _broken(asked)
    if asked.out is not None:
        asked.out.write_text("".join(json.dumps(one.as_row()) + "\n" for one in found))
    print(tables(found))
    return int(any(one.is_bad for one in found))


def _broken(asked: argparse.Namespace) -> list[Found]:
    rows = _chosen(breaks(), lambda row: f"{row.of}: {row.name}: {row.case.name}", asked)
    controls = {row.case.name: row.case for row in rows if row.is_of_the_engine}
    jobs = [Job(case) for case in controls.values()] * asked.controls
    quiet: dict[str, bool] = {}
    found: list[Found] = []
    with Worlds(asked.jobs) as worlds:
        for job, outcome, seconds in worlds.run([*jobs, *(Job(row.case, row) for row in rows)]):
            if job.broken is None:
                one = judge_right(job.case, outcome, seconds)
                quiet[job.case.name] = one.kind == "quiet"
            else:
                one = judge(job.broken, outcome, seconds)
                found.append(one)
            if job.broken is not None or one.kind != "quiet":
                print(one.line(), flush=True)
    return found


def _right(asked: argparse.Namespace) -> list[Found]:
    chosen = _chosen(cases(), lambda case: case.name, asked)
    found: list[Found] = []
    with Worlds(asked.jobs) as worlds:
        for job, outcome, seconds in worlds.run([Job(case) for case in chosen]):
            found.append(judge_right(job.case, outcome, seconds))
            print(found[-1].line(), flush=True)
    return found


def _chosen(all_of_them: list[T], name_of: object, asked: argparse.Namespace) -> list[T]:
    chosen = [one for one in all_of_them if any(part in name_of(one) for part in asked.only)]  # type: ignore[operator]
    if asked.drawn:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.drawn, len(chosen)))
    return chosen


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.verify_breaks")
    parser.add_argument("--right", action="store_true", help="right combinations, which must be quiet")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], help="parts of names")
    parser.add_argument("--drawn", type=int, help="as many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="checks at a time")
    parser.add_argument("--without-controls", dest="controls", action="store_false")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON lines")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
