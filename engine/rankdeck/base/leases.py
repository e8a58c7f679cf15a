"""Who holds which GPU: a locked file per UUID, held by the guard of a run for as long as the run lives."""

from __future__ import annotations

from pathlib import Path

from rankdeck.base import files
from rankdeck.base.home import state_dir


def lease_path(uuid: str) -> Path:
    """The file whose lock is the lease of a GPU; nothing is created."""
    return state_dir() / "leases" / f"{uuid}.lock"


def lease_holder(uuid: str) -> str | None:
    """The run that holds a GPU, as its guard wrote it; None when it is free."""
    path = lease_path(uuid)
    if not files.is_locked(path):
        return None
    try:
        return files.read_text(path).strip() or "another run"
    except OSError:  # just given back
        return None
