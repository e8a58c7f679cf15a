"""What a rehearsal may take of this machine: what is free, and no more than the container that it is in."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from rankdeck.cli.plan_target import resolve_target
from rankdeck.config import from_text

MIB = 2**20
CONFIG = 'model = { use = "mlp" }\ndata = { use = "digits" }\n'


def host_bytes(devices: str) -> int | None:
    return resolve_target(from_text(CONFIG, folder=Path.cwd()), devices, None).host_bytes


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "membership").write_text("0::/\n")
    monkeypatch.setattr("rankdeck.base.cgroups.ROOT", tmp_path)
    monkeypatch.setattr("rankdeck.base.cgroups.MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "memory.current").write_text(f"{7 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {MIB}\ninactive_file {MIB}\nactive_file {4 * MIB}\n")
    return tmp_path


def test_free_memory_of_a_cgroup_includes_inactive_file_cache(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{8 * MIB}\n")
    assert host_bytes("cpu:2") == 6 * MIB
    (cgroup / "memory.max").write_text(f"{MIB}\n")
    assert host_bytes("cpu:2") == 0


@pytest.mark.parametrize("limit", ["max\n", None])
def test_without_a_cgroup_limit_the_memory_of_the_machine_counts(cgroup: Path, limit: str | None) -> None:
    if limit is not None:
        (cgroup / "memory.max").write_text(limit)
    assert host_bytes("cpu:2") == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_targets_with_gpus_have_no_host_memory() -> None:
    assert host_bytes("2 x A100-80GB") is None
