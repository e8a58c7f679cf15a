"""`rankdeck doctor --hosts` over real connections: a sound network, a closed way, a host that is off."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.cli import rankdeck
from tests.helpers.host_network import HostNetwork
from tests.helpers.host_runs import processes


def rows(network: HostNetwork, code: int) -> dict[str, Any]:
    done = rankdeck("doctor", "--hosts", ",".join(network.hosts), "--json", code=code)
    assert [processes(host) for host in network.hosts.values()] == [[]] * len(network.hosts)
    return {line["name"]: line for line in done.lines if line["kind"] == "check"}


def test_a_sound_network_is_good_and_a_closed_way_is_named(network: HostNetwork) -> None:
    found = rows(network, 0)
    assert {row["verdict"] for row in found.values()} == {"good"}, found
    assert "box1: 10.77.0.2 (eth0)" in found["interfaces"]["evidence"]
    network.hosts["box1"].execute("ip", "route", "add", "blackhole", "10.77.0.3")
    found = rows(network, 3)
    assert found["ssh"]["verdict"] == "good"
    assert found["reach"]["verdict"] == "broken" and "2 of 2 ways are closed" in found["reach"]["finding"]
    assert any("box1 to box2 (10.77.0.3)" in words for words in found["reach"]["evidence"])
    assert found["together"]["verdict"] == "broken"


@pytest.mark.slow
def test_a_network_that_loses_large_packets_is_named(bare_network: HostNetwork) -> None:
    assert rows(bare_network, 0)["reach"]["verdict"] == "good"
    bare_network.hosts["box2"].lose_large()
    found = rows(bare_network, 3)["reach"]
    assert found["verdict"] == "broken" and "lose large packets" in found["finding"]
    assert any("small packets arrive, and 256.0 KiB at once do not" in words for words in found["evidence"])
    assert "MTU" in found["fix"]


def test_a_host_that_is_off_is_named_and_no_run_is_begun(network: HostNetwork) -> None:
    network.hosts["box2"].kill()
    job = ("train", "digits-ddp", "--devices", "cpu:1", "--set", 'hosts.use=["box1", "box2"]')
    told = rankdeck(*job, code=3)
    assert "box2" in told.err and "Traceback" not in told.err
    assert not network.hosts["box1"].runs.exists()
