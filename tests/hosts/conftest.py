"""Hosts on one machine, where root may make them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.host_network import HostNetwork, ssh_unavailable_reason, unavailable_reason


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostNetwork]:
    """Two hosts, which commands here reach by their names."""
    if reason := ssh_unavailable_reason():
        pytest.skip(reason)
    yield from _make_network(tmp_path, monkeypatch, 2)


@pytest.fixture
def bare_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostNetwork]:
    """The same; where ssh is missing, commands here enter them past the network."""
    yield from _make_network(tmp_path, monkeypatch, 2)


@pytest.fixture
def network_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostNetwork]:
    if reason := ssh_unavailable_reason():
        pytest.skip(reason)
    yield from _make_network(tmp_path, monkeypatch, 3)


def _make_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_hosts: int) -> Iterator[HostNetwork]:
    if reason := unavailable_reason():
        pytest.skip(reason)
    host_network = HostNetwork(tmp_path / "network", [f"box{number}" for number in range(1, num_hosts + 1)])
    runtime = tempfile.mkdtemp(prefix="rd-", dir="/tmp")  # a short path, for sockets
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    try:
        host_network.up()
        for name, value in host_network.environment.items():
            monkeypatch.setenv(name, value)
        yield host_network
    finally:
        host_network.down()
        shutil.rmtree(runtime)
