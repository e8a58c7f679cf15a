"""`rankdeck doctor --hosts` over real connections: a sound network, a closed way, a host that is off."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.cli import rankdeck
from tests.helpers.host_network import HostNetwork
from tests.helpers.host_runs import process_titles


def run_doctor(network: HostNetwork, code: int) -> dict[str, Any]:
    done = rankdeck("doctor", "--hosts", ",".join(network.hosts), "--json", exit_code=code)
    assert [process_titles(host) for host in network.hosts.values()] == [[]] * len(network.hosts)
    return {line["name"]: line for line in done.lines if line["kind"] == "check"}


def test_doctor_accepts_a_good_network_and_reports_a_closed_route(network: HostNetwork) -> None:
    rows = run_doctor(network, 0)
    assert {row["verdict"] for row in rows.values()} == {"good"}, rows
    assert "box1: 10.77.0.2 (eth0)" in rows["interfaces"]["evidence"]
    network.hosts["box1"].execute("ip", "route", "add", "blackhole", "10.77.0.3")
    rows = run_doctor(network, 3)
    assert rows["ssh"]["verdict"] == "good"
    assert rows["reach"]["verdict"] == "broken" and "2 of 2 connections fail" in rows["reach"]["finding"]
    assert any("box1 to box2 (10.77.0.3)" in line for line in rows["reach"]["evidence"])
    assert rows["together"]["verdict"] == "broken"


@pytest.mark.slow
def test_doctor_reports_lost_large_packets(bare_network: HostNetwork) -> None:
    assert run_doctor(bare_network, 0)["reach"]["verdict"] == "good"
    bare_network.hosts["box2"].drop_large_packets()
    row = run_doctor(bare_network, 3)["reach"]
    assert row["verdict"] == "broken" and "lose large packets" in row["finding"]
    assert any("small packets arrive, but 256.0 KiB at once does not" in line for line in row["evidence"])
    assert "MTU" in row["fix"]


def test_an_unreachable_host_is_reported_and_no_run_starts(network: HostNetwork) -> None:
    network.hosts["box2"].power_off()
    job = ("train", "digits-ddp", "--devices", "cpu:1", "--set", 'hosts.use=["box1", "box2"]')
    result = rankdeck(*job, exit_code=3)
    assert "box2" in result.err and "Traceback" not in result.err
    assert not network.hosts["box1"].runs.exists()
