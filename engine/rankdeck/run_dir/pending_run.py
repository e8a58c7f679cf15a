"""Remove run directories that no guard has taken over: each has a hidden name until a guard renames it.

A command that is interrupted before the rename removes its directory. If a command is killed, the next
command that creates a run in the same folder removes the directory.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rankdeck.base import files

HIDDEN_PREFIX = ".new-"
_START_TIMEOUT_S = 120.0
"""Age at which a hidden directory counts as abandoned; a guard renames its run within half a minute."""


@contextlib.contextmanager
def remove_unless_started(hidden: Path) -> Iterator[None]:
    """Remove the directory `hidden` if the `with` block raises, or if SIGHUP or SIGTERM ends this process
    during the block."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {}
    # Python allows signal handlers to be set in the main thread only.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGHUP, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_abandoned(runs: Path) -> None:
    """Remove directories in `runs` that were left by commands killed before a guard took over their run."""
    for path in files.entries(runs):
        if path.name.startswith(HIDDEN_PREFIX) and not files.is_locked(path / "guard.lock"):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _START_TIMEOUT_S:
                    shutil.rmtree(path, ignore_errors=True)
