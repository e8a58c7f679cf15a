"""Who holds which GPU: a locked file per UUID, held by the guard of a run for as long as the run lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rankdeck.base.home import state_dir


def lease_path(uuid: str) -> Path:
    """The file whose lock is the lease of a GPU; nothing is created."""
    return state_dir() / "leases" / f"{uuid}.lock"


def lease_holder(uuid: str) -> str | None:
    """The run that holds a GPU, as its guard wrote it; None when it is free."""
    try:
        handle = os.open(lease_path(uuid), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.read(handle, 4096).decode(errors="replace").strip() or "another run"
    finally:
        os.close(handle)
    return None
