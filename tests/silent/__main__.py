"""All cases: python -m tests.silent [fault|healthy] [NAME…] [--observe LEVEL] [--cache FOLDER] [--write]

It continues where it was interrupted: results are recorded in the folder given by --cache.
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

from tests.faults.record import Recorded  # noqa: E402
from tests.helpers.checkout import PRODUCT  # noqa: E402
from tests.silent.cases import FINDINGS_PAGE, KINDS, Case, load_cases  # noqa: E402
from tests.silent.page import format_table, write_table  # noqa: E402
from tests.silent.trial import Result, result_key, run_case  # noqa: E402


def main() -> int:
    options = _parse_options()
    os.environ["PYTHONPATH"] = PRODUCT
    cases = _select([case for kind in KINDS for case in load_cases(kind)], options.names)
    recorded = Recorded(options.cache / "results.jsonl", Result, lambda result: result.key)
    if options.again:
        recorded.retain(recorded.right)
    folder = Path(tempfile.mkdtemp(prefix="silent-"))
    try:
        for case in cases:
            if result_key(case.kind, case.name, options.observe) not in recorded:
                result = run_case(case, options.observe, folder / case.name)
                recorded.add(result)
                _print(result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = [*recorded]
    table = format_table(cases, results)
    print(table)
    if options.write:
        write_table(FINDINGS_PAGE, table)
    names = {(case.kind, case.name) for case in cases}
    return int(any(result.wrong for result in results if (result.kind, result.case) in names))


def _select(cases: list[Case], names: list[str]) -> list[Case]:
    """Return the cases of the chosen kinds whose names contain one of the other words."""
    kinds = [name for name in names if name in KINDS]
    parts = [name for name in names if name not in KINDS]
    return [
        case
        for case in cases
        if (not kinds or case.kind in kinds) and (not parts or any(part in case.name for part in parts))
    ]


def _print(result: Result) -> None:
    codes = ", ".join(result.codes) or "nothing"
    status = "wrong" if result.wrong else "right"
    print(f"{status}  {result.kind} {result.case}: {codes}, {result.duration_s} s", flush=True)
    for message in result.wrong:
        print(f"       {message}", flush=True)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.silent")
    parser.add_argument("names", nargs="*", help="fault, healthy, and parts of the names of cases")
    parser.add_argument("--observe", default="light", metavar="LEVEL", help="level of observation")
    parser.add_argument("--cache", type=Path, default=Path(".make/silent"), help="folder of the results")
    parser.add_argument("--again", action="store_true", help="repeat what was wrong")
    parser.add_argument("--write", action="store_true", help=f"write the table to {FINDINGS_PAGE.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
