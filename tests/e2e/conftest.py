"""What tests of whole runs share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def short_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """TMPDIR for what a test starts. Data loading processes that are killed leave sockets there, whose paths
    must be short.
    """
    with tempfile.TemporaryDirectory(prefix="rankdeck-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield folder
