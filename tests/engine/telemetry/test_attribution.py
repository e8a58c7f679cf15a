"""Whose a pid is that the driver tells: in a container it may be the host's number for somebody else."""

from __future__ import annotations

import os

import psutil
import pytest

from rankdeck.telemetry import attribution
from rankdeck.telemetry.attribution import ProcessIdentities, ProcessIdentity


@pytest.mark.parametrize(
    ("may_be_hosts", "holds_gpu", "is_foreign"),
    [(False, False, False), (True, True, False), (True, None, False), (True, False, True)],
)
def test_a_process_without_a_gpu_is_foreign_in_a_container(
    monkeypatch: pytest.MonkeyPatch, may_be_hosts: bool, holds_gpu: bool | None, is_foreign: bool
) -> None:
    monkeypatch.setattr(attribution, "_holds_gpu", lambda pid: holds_gpu)
    names = ProcessIdentities()
    names._may_be_host_pids = may_be_hosts
    name = None if is_foreign else psutil.Process().name()
    assert names.identify(os.getpid())[:2] == (name, is_foreign)


def test_an_unused_pid_is_foreign() -> None:
    assert ProcessIdentities().identify(2**22 + 1) == ProcessIdentity(None, foreign=True)
