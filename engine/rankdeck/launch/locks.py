"""Locks of runs, races and leased devices. A process holds a lock until it exits or is killed.

Standard library only, like the guard.
"""

from __future__ import annotations

import fcntl
import os
import time


class LockHeld(Exception):  # noqa: N818 - the words of one message, not an error class of the project
    """Raised when another run holds a lease, so that this run cannot start."""


class RunAlive(Exception):  # noqa: N818 - as above
    """Raised when another guard holds the run's lock, so that the run cannot be resumed."""


def lock(path: str, holder: str) -> int:
    """Take a lock for the lifetime of this process, write `holder` into the lock's file and return the
    descriptor.

    Raises: LockHeld, with the text that the other process wrote, if another process holds the lock; OSError
    if the file cannot be used.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for attempt in range(20):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt == 19:  # processes that check whether the lock is held share it for a moment
                raise LockHeld(os.read(handle, 4096).decode(errors="replace")) from None
            time.sleep(0.01)
    os.ftruncate(handle, 0)
    os.write(handle, holder.encode())
    return handle
