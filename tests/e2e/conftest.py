"""What tests of whole runs share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _prepared_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(autouse=True)
def _share_prepared_texts(_own_home: None, _prepared_texts: Path) -> None:
    """The tokens of a text are the same in every test, and seconds of work."""
    cache = Path(os.environ["RANKDECK_HOME"]) / "cache"
    cache.mkdir(parents=True)
    (cache / "text").symlink_to(_prepared_texts)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of a person who has no environment active."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def short_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """TMPDIR for what a test starts. Data loading processes that are killed leave sockets there, whose paths
    must be short.
    """
    with tempfile.TemporaryDirectory(prefix="rankdeck-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield folder
