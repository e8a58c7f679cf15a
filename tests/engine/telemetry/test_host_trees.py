"""Of a script, what a rank has started is as busy as the rank itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankdeck.telemetry.host import HostProvider, virtual_uuid
from tests.helpers.waiting import wait_until

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("ready", flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that waits while its child computes."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def test_children_count_only_when_included(parent: int) -> None:
    with_children, alone = HostProvider([parent], include_children=True), HostProvider([parent])

    def busy(provider: HostProvider) -> float:
        reading = provider.read(virtual_uuid(0), ("utilisation",)).get("utilisation")
        return 0.0 if reading is None or reading.value is None else float(reading.value)

    for provider in (with_children, alone):
        provider.probe()
        busy(provider)
    wait_until(lambda: busy(with_children) > 0.1, interval_s=0.2, what="a busy child")
    assert busy(alone) < 0.1
