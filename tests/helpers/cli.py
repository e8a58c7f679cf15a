"""The command line as a person starts it, in another process with the same Python, or its words alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rankdeck.cli.app import run
from tests.helpers.waiting import scale_timeout

RANKDECK = (sys.executable, "-P", "-m", "rankdeck")


@dataclass(frozen=True)
class FinishedCommand:
    """How a command ended."""

    exit_code: int
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
    exit_code: int | None = None,
) -> FinishedCommand:
    """`rankdeck ARGS`, waited for; with `exit_code`, the exit code is asserted and both streams are shown."""
    done = subprocess.run(
        [*RANKDECK, *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scale_timeout(timeout_s),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return _check_exit_code(FinishedCommand(done.returncode, done.stdout, done.stderr), exit_code)


def rankdeck_in_process(
    *args: str | Path, env: Mapping[str, str] | None = None, exit_code: int | None = None
) -> FinishedCommand:
    """`rankdeck ARGS` without a process of its own, where that is not what a test is about: a run is as
    real as ever, and an error that is not said in words is raised.
    """
    argv = list(map(str, args))
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, env or {}),
        mock.patch.object(sys, "argv", ["rankdeck", *argv]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        ended = run(argv)
    outputs = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return _check_exit_code(FinishedCommand(ended, *outputs), exit_code)


def _check_exit_code(done: FinishedCommand, code: int | None) -> FinishedCommand:
    report = f"exit {done.exit_code}, expected {code}\n-- stdout\n{done.out}\n-- stderr\n{done.err}"
    assert code in (None, done.exit_code), report
    return done


def start_rankdeck(
    *args: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`rankdeck ARGS`, left running; the caller ends it (use it as a context manager)."""
    return subprocess.Popen(
        [*RANKDECK, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
