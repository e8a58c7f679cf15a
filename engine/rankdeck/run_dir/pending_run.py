"""Directories of runs that have not begun: under a hidden name until a guard holds them.

What ends its command in between removes them, and whatever ended it without a word is removed by the next
command that makes one there.
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
"""A guard answers within half a minute."""


@contextlib.contextmanager
def remove_unless_started(hidden: Path) -> Iterator[None]:
    """Remove it where what it was made for fails, also where this process is told to end meanwhile: its
    terminal was closed (SIGHUP), or SIGTERM.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {}
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
    """What commands left in a folder of runs that were killed before their run had a guard."""
    for path in files.entries(runs):
        if path.name.startswith(HIDDEN_PREFIX) and not files.is_locked(path / "guard.lock"):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _START_TIMEOUT_S:
                    shutil.rmtree(path, ignore_errors=True)
