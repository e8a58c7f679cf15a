"""A queue with scripts that record when they run, and on which devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.queue.spool import Spool
from tests.helpers.queued_jobs import JOB, write_slots


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    """The queue of a user with two CPU slots; the current folder holds a script for jobs."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.py").write_text(JOB, "utf-8")
    monkeypatch.chdir(folder)
    write_slots(2)
    return Spool()
