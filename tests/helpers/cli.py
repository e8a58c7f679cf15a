"""The command line as a person starts it: another process, the same Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.waiting import with_load

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stdout says, as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What stdout says, one JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines() if line.strip()]


def rankdeck(
    *args: str | Path,
    timeout_s: float = 120.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    code: int | None = None,
) -> Finished:
    """`rankdeck ARGS`, waited for; with `code`, the exit code is asserted and both streams are shown."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rankdeck", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=with_load(timeout_s),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if code is not None:
        shown = f"exit {done.returncode}, expected {code}\n-- stdout\n{done.stdout}\n-- stderr\n{done.stderr}"
        assert done.returncode == code, shown
    return Finished(done.returncode, done.stdout, done.stderr)


def start_rankdeck(
    *args: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`rankdeck ARGS`, left running; the caller ends it (use it as a context manager)."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "rankdeck", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
