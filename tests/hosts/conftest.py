"""Hosts on one machine, where root may make them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.host_network import HostNetwork, why_not


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostNetwork]:
    """Two hosts, which commands here reach by their names."""
    if reason := why_not():
        pytest.skip(reason)
    made = HostNetwork(tmp_path / "network", ["box1", "box2"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime = tempfile.mkdtemp(prefix="rd-", dir="/tmp")  # a short path, for sockets
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    try:
        made.up()
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made
    finally:
        made.down()
        shutil.rmtree(runtime)
