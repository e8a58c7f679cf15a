"""Breaks a copy of the tree, one break at a time, and says which of them its tests see.

    python -m tests.mutants.run                 the fixed list, and what was drawn
    python -m tests.mutants.run --of ddp        breaks of one strategy or room
    python -m tests.mutants.run --jobs 2        as many at a time, each in a copy of its own

A break is caught by the first test that fails with it, in files that pass without it; the quickest file runs
first. What is known is kept in .make/mutants: a run that was stopped goes on, and a break that survived is
tried again once one of its tests has changed. The table goes to docs/mutants.md (table.py).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.helpers import processes
from tests.helpers.checkout import CHECKOUT
from tests.mutants import table
from tests.mutants.breaks import ENGINE, Break, drawn, fixed

KEPT = CHECKOUT / ".make" / "mutants"
TIMEOUT_S = 600.0
_OPTIONS = ("-x", "-q", "-rfE", "-p", "no:cacheprovider", "--timeout=120")
_MARK = "RANKDECK_MUTANT"
_LEFT_OUT = (".git", ".venv*", ".make", ".*_cache", "__pycache__", "build", "dist", "runs", "htmlcov")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_PASSES = (0, 5)
"""5: all tests of a file are marked slow."""
_FAILURES = (1, 2)
"""What pytest returns where a test failed, and where a file could not even be imported."""


@dataclass(frozen=True)
class Result:
    """`by` is the first test that failed, or "timeout"; None for a break that survived. `key` is the break's,
    `tests` a digest of its test files."""

    key: str
    by: str | None
    tests: str


class Tree:
    """A copy of the tree that may be broken, and mends itself after each time."""

    def __init__(self, folder: Path, original: Path = CHECKOUT) -> None:
        self.root = folder / "tree"
        shutil.copytree(original, self.root, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self._seconds = itertools.count(1_000_000_000)

    def outcome_with(self, mutant: Break, tests: Iterable[str]) -> str | None:
        """The first test that fails with a break; None where all pass."""
        file = self.root / ENGINE / mutant.file
        source = file.read_text("utf-8")
        self._put(file, mutant.applied_to(source))
        try:
            return self.first_failure(tests)
        finally:
            self._put(file, source)

    def _put(self, file: Path, text: str) -> None:
        """With a time that no version of the file had: compiled code is known by seconds and size."""
        file.write_text(text, "utf-8")
        second = next(self._seconds)
        os.utime(file, (second, second))

    def first_failure(self, tests: Iterable[str], timeout_s: float = TIMEOUT_S) -> str | None:
        """Raises: RuntimeError where pytest could not run them."""
        mark = uuid.uuid4().hex
        started = subprocess.Popen(
            [sys.executable, "-m", "pytest", *_OPTIONS, *(f"tests/{test}" for test in tests)],
            cwd=self.root,
            env={**os.environ, _MARK: mark, "COLUMNS": "200", "TMPDIR": str(self.root.parent)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = started.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            return "timeout"
        finally:
            processes.kill_processes(processes.find_marked(f"{_MARK}={mark}"))
        if started.returncode in _PASSES:
            return None
        if started.returncode in _FAILURES:
            failed = _FAILED.search(output)
            return failed[1] if failed else "the end of pytest"  # pytest-timeout may end the process
        raise RuntimeError(f"pytest exited with status {started.returncode}:\n{output[-2000:]}")


class Known:
    """What earlier runs found, one JSON line each: results of breaks, and seconds of test files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.jsonl"
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        self._seconds: dict[str, float] = {}
        for line in self._file.read_text("utf-8").splitlines() if self._file.is_file() else ():
            self._take(json.loads(line))

    def _take(self, row: dict[str, object]) -> None:
        if "seconds" in row:
            self._seconds[str(row["test"])] = float(str(row["seconds"]))
        else:
            self._results[str(row["key"])] = Result(**row)  # type: ignore[arg-type]

    def add(self, row: dict[str, object]) -> None:
        with self._lock:
            self._take(row)
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def result(self, mutant: Break, root: Path = CHECKOUT) -> Result | None:
        """A break that was caught stays so, and one that is harmless; another that survived meets tests that
        have changed."""
        result = self._results.get(mutant.key)
        if result is None or result.by is not None or mutant.harmless is not None:
            return result
        return result if result.tests == digest(mutant.tests, root) else None

    def seconds(self, tree: Tree, test: str) -> float | None:
        """How long a test file takes without a break; None for one that fails then: it would catch all."""
        key = f"{test} {digest([test], tree.root)}"
        if key not in self._seconds:
            started_s = time.monotonic()
            failure = tree.first_failure([test])
            if failure is not None:
                print(f"left out, as it fails without any break: {failure}", flush=True)
                return None
            self.add({"test": key, "seconds": round(time.monotonic() - started_s, 2)})
        return self._seconds[key]


def digest(tests: Sequence[str], root: Path) -> str:
    """Of test files' contents."""
    texts = [(root / "tests" / test).read_bytes() for test in tests]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def try_break(tree: Tree, known_results: Known, mutant: Break) -> Result | None:
    """None where nothing is known of it now: the test that failed fails without the break as well.

    Raises: RuntimeError where no test file passes without the break.
    """
    seconds = {test: known_results.seconds(tree, test) for test in mutant.tests}
    usable = {test: spent_s for test, spent_s in seconds.items() if spent_s is not None}
    if not usable:
        raise RuntimeError(f"{mutant.name}: all of its test files fail without it.")
    by = tree.outcome_with(mutant, sorted(usable, key=lambda test: usable[test]))
    if by is not None and "::" in by and tree.first_failure([by.removeprefix("tests/")]) is not None:
        return None
    result = Result(mutant.key, by, digest(mutant.tests, tree.root))
    known_results.add(asdict(result))
    return result


def run(breaks: Sequence[Break], known_results: Known, *, num_jobs: int) -> None:
    """Find the results that are not known yet."""
    left = [mutant for mutant in breaks if known_results.result(mutant) is None]
    print(f"{len(breaks)} breaks, {len(breaks) - len(left)} of them known", flush=True)
    waiting = deque(left)

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            tree = Tree(Path(folder))
            while True:
                try:
                    mutant = waiting.popleft()
                except IndexError:
                    return
                result = try_break(tree, known_results, mutant)
                print(f"{mutant.of}: {mutant.name}: {_format_result(result)}", flush=True)

    with ThreadPoolExecutor(num_jobs) as pool:
        jobs = [pool.submit(work) for _ in range(num_jobs)]
        try:
            for job in jobs:
                job.result()
        finally:
            waiting.clear()  # what is under way ends first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--of", action="append", help="a strategy or a room; may be given more than once")
    parser.add_argument("--drawn", type=Path, default=KEPT / "drawn.json", help="what draw.py left")
    args = parser.parse_args()
    breaks = [*fixed(), *drawn(args.drawn)]
    results = Known(KEPT)
    chosen = [mutant for mutant in breaks if not args.of or mutant.of in args.of]
    try:
        run(chosen, results, num_jobs=args.jobs)
    finally:
        table.write(fixed(), args.drawn, results.result)
    survived = [mutant for mutant in chosen if mutant.harmless is None and _survived(results.result(mutant))]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught or harmless; survived:")
    for mutant in survived:
        print(f"  {mutant.key} {mutant.of}: {mutant.name} ({mutant.file})")


def _format_result(result: Result | None) -> str:
    if result is None:
        return "not known, as the test that failed fails without it too"
    return "SURVIVED" if result.by is None else f"caught by {result.by}"


def _survived(result: Result | None) -> bool:
    return result is not None and result.by is None


if __name__ == "__main__":
    main()
