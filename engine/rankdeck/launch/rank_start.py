"""Entry point of a rank: set up its log and stack dumps before anything can fail, then run the worker.

A rank of a rehearsal is forked from the supervisor, which has already imported torch. A rank on GPUs is
executed as `python -P -m rankdeck.launch.rank_start WORKER`. Both run WORKER as `__main__`.
"""

from __future__ import annotations

import faulthandler
import io
import os
import runpy
import signal
import sys
import traceback
from typing import Any, NoReturn

from rankdeck.base.heartbeat import STACKS_ENV
from rankdeck.observer import process_title


def run(worker: str) -> NoReturn:
    """Run a module or .py file to its end, then exit at once.

    The interpreter's own exit takes seconds while torch's process groups are alive, and may hang.
    """
    ignore_full_disk()
    _enable_stack_dumps()
    _set_process_title()
    sys.argv = [worker]
    code = 1
    try:
        if worker.endswith(".py"):
            runpy.run_path(worker, run_name="__main__")
        else:
            runpy.run_module(worker, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        # As in the interpreter: sys.exit() is status 0, sys.exit("text") is status 1.
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _set_process_title() -> None:
    """Set the process name and title that `ps` shows."""
    environment = os.environ
    run = environment.get("RANKDECK_RUN", "")
    who = f"rank {environment.get('RANK', 0)}/{environment.get('WORLD_SIZE', 1)}"
    process_title.set_process_name(who, run)
    process_title.set_process_title(who, run)


class _LossyLog(io.FileIO):
    """A log file that, on a full disk, discards what is written instead of raising an exception."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def ignore_full_disk() -> None:
    """Replace stdout and stderr, so that no print fails when the disk that contains the rank's log is
    full."""
    for name, handle in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(_LossyLog(handle, "w", closefd=False))
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, text)


def _enable_stack_dumps() -> None:
    faulthandler.enable(file=2, all_threads=False)
    path = os.environ.get(STACKS_ENV)
    if path:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        # faulthandler also calls this handler (chain=True), so that Python's wakeup descriptor wakes the
        # thread that reports collectives (training/process_group.py).
        signal.signal(signal.SIGUSR1, lambda *_: None)
        faulthandler.register(signal.SIGUSR1, file=handle, all_threads=True, chain=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


if __name__ == "__main__":
    run(sys.argv[1])
