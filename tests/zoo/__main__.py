"""The whole zoo: python -m tests.zoo [--only SETTINGS] [--models NAMES] [--limit-s S --seed N] ...

It goes on where it was cut off, and writes docs/equality.md when nothing was left out by name.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

from tests.zoo.cache import ResultCache, ZooResult
from tests.zoo.check import KINDS, RunFilter, due_runs, run_all, shuffle_runs
from tests.zoo.page import format_page


def main() -> int:
    args = _parse_args()
    torch.set_num_threads(1)
    run_filter = RunFilter(
        args.only, tuple((kind, getattr(args, kind)) for kind in KINDS if getattr(args, kind))
    )
    cache = ResultCache(args.cache, args.page)
    runs = run_filter.list_runs()
    if args.seed is not None:
        todo = shuffle_runs(args.seed, runs)
    else:
        todo = [] if args.only_page else due_runs(runs, cache, again=args.again)
    print(f"{len(runs)} runs, {len(todo)} to do", flush=True)
    done = run_all(todo, cache, limit_s=args.limit_s, on_result=_print_result)
    results = (
        done
        if args.seed is not None
        else [cached_result for run in runs if (cached_result := cache.get(*run)) is not None]
    )
    page = format_page(results, len(runs))
    if run_filter.is_all and args.seed is None:
        args.page.write_text(page)
    else:
        print(page)
    print(dict(Counter(result.outcome.kind for result in results)))
    return int(any(result.is_bad for result in results))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    names = {"type": lambda text: text.split(","), "default": ()}
    parser.add_argument("--only", help="parts of the names of settings: ddp,pipeline", **names)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", help=f"parts of the names of {kind}; no other kind then", **names)
    parser.add_argument("--again", help="outcomes to run again: different,failed", **names)
    parser.add_argument("--seed", type=int, help="draw the order by it, and run also what is known")
    parser.add_argument("--limit-s", type=float, help="start no run after so many seconds")
    parser.add_argument("--only-page", action="store_true", help="run nothing, write what is known")
    parser.add_argument("--cache", type=Path, default=Path(".make/zoo"))
    parser.add_argument("--page", type=Path, default=Path("docs/equality.md"))
    return parser.parse_args()


def _print_result(result: ZooResult) -> None:
    print(f"{result.seconds:6.2f} s  {result.text()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
