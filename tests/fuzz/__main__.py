"""The long fuzz: python -m tests.fuzz [--examples N] [--commands N] [--cache FOLDER]

It goes on where it was cut off. Of all failures at one place of the engine the smallest is kept, and shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, seed, settings

from rankdeck.base import files
from tests.fuzz.commands import check_command, command_cases
from tests.fuzz.example import BOUNDED, Case, Place, cases

FIRST_SEED = 20_261_124
A_ROUND = {"examples": 200, "commands": 10}


class Found:
    """What is done so far and what failed, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "state.json"
        data = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.done: dict[str, int] = {"examples": 0, "commands": 0, **data.get("done", {})}
        self.failures: dict[str, dict[str, str]] = data.get("failures", {})

    def note(self, case: Case) -> None:
        """The failure that is being handled."""
        _, error, trace = sys.exc_info()
        frames = [f"{Path(frame.filename).name}:{frame.name}" for frame in traceback.extract_tb(trace)]
        ours = [
            f"{frame.filename}:{frame.lineno}"
            for frame in traceback.extract_tb(trace)
            if "/rankdeck/" in frame.filename
        ]
        first_line = str(error).splitlines()[0][:80] if str(error) else ""
        key = f"{type(error).__name__} {(ours or frames)[-1]} {'' if ours else first_line}"
        failure = self.failures.get(key)
        if failure is None or len(repr(case)) < len(failure["case"]):
            self.failures[key] = {"case": repr(case), "traceback": traceback.format_exc()[-6000:]}
            print(f"\n{key}\n  {first_line}\n  {repr(case)[:1500]}", flush=True)

    def save(self) -> None:
        data = {"done": self.done, "failures": self.failures}
        files.write_atomic(self._file, json.dumps(data, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--examples", type=int, default=100_000, help="in this process")
    parser.add_argument("--commands", type=int, default=500, help="rankdeck COMMAND in a process of its own")
    parser.add_argument(
        "--cache", type=Path, default=Path(".make/fuzz"), help="where it was and what it found"
    )
    args = parser.parse_args()
    record = Found(args.cache)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_in_memory(), ignore_cleanup_errors=True) as folder:
        workspace = Place(Path(folder))
        checks: dict[str, Any] = {
            "examples": (cases(), workspace.check),
            "commands": (command_cases(), check_command),
        }
        targets = {"examples": args.examples, "commands": args.commands}
        while short := [kind for kind in targets if record.done[kind] < targets[kind]]:
            # Both go on together: whoever cuts it off has some of each.
            kind = min(short, key=lambda kind: record.done[kind] / targets[kind])
            _round(kind, record, workspace, *checks[kind])
            record.save()
            print(f"\r{record.done}, {len(record.failures)} failures", end="", flush=True)
    print()
    for key, failure in record.failures.items():
        print(f"\n{key}\n{failure['case']}\n{failure['traceback']}")
    return 1 if record.failures else 0


def _in_memory() -> str | None:
    """Folders are written and removed a thousand times a minute: of no use to any disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _round(kind: str, record: Found, workspace: Place, strategy: Any, check: Any) -> None:
    @seed(FIRST_SEED + record.done[kind])
    @settings(BOUNDED, max_examples=A_ROUND[kind], phases=[Phase.generate])
    @given(strategy)
    def run(case: Case) -> None:
        try:
            check(workspace, case) if kind == "commands" else check(case)
        except Exception:
            record.note(case)

    run()
    record.done[kind] += A_ROUND[kind]


if __name__ == "__main__":
    sys.exit(main())
