"""Several hosts looked at together: two names of this one for real, and every verdict on what hosts tell."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rankdeck.doctor import multi_host
from rankdeck.doctor.lines import HOST_ROW_TITLES, CheckLine, Verdict
from rankdeck.remote.hosts import RemoteCommand, RemoteHost, RemoteHosts
from tests.helpers.cli import rankdeck_in_process

ProbedHost = multi_host.ProbedHost
_FACTS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "nccl": "2.27.5",
    "driver": None,
    "gpus": 2,
    "free_gpus": 2,
    "free_bytes": 1 << 40,
}


def fake_host(
    name: str, *steps: dict[str, Any], offset_s: float = 0.0, code: int | None = None, errors: bytes = b""
) -> ProbedHost:
    """A host that has said these."""
    link = SimpleNamespace(clock=SimpleNamespace(offset_s=offset_s), address="10.0.0.1")
    host = cast("RemoteHost", SimpleNamespace(name=name, link=link, error=None))
    out = b"a line of some library\n" + b"".join(json.dumps(step).encode() + b"\n" for step in steps)
    ran = RemoteCommand(host, 0)
    ran.out, ran.err, ran.exit_code = bytearray(out), bytearray(errors), code
    return ProbedHost(host, f"10.0.0.{len(name)}", ran)


def host_with_facts(name: str, offset_s: float = 0.0, **more: Any) -> ProbedHost:
    return fake_host(name, {"stage": "facts", **_FACTS, **more}, offset_s=offset_s)


NO_HOSTS = cast("RemoteHosts", SimpleNamespace(poll_until=lambda is_done, timeout_s=None: is_done()))


def test_two_good_hosts_pass_all_checks() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    done = rankdeck_in_process("doctor", "--hosts", f"localhost,{platform.node()}", "--json", exit_code=0)
    first, *rows, last = done.lines
    assert [row["name"] for row in first["rows"]] == [row["name"] for row in rows] == list(HOST_ROW_TITLES)
    assert {row["verdict"] for row in rows} == {"good"}, rows
    assert not last["broken"] and not last["look"]
    assert "All 2 connections work" in rows[1]["finding"] and "16 MiB runs at" in rows[-1]["finding"]
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("hosts", ["box1", "", ",", "-x,box1"])
def test_an_invalid_host_list_is_rejected(hosts: str) -> None:
    result = rankdeck_in_process("doctor", "--hosts", hosts, exit_code=2)
    reasons = ("at least two hosts", "is not a host name", "contains no host name")
    assert "Traceback" not in result.err and any(reason in result.err for reason in reasons)


@pytest.mark.parametrize(
    ("host", "needs_gpus", "verdict", "finding"),
    [
        (host_with_facts("b", torch=None), False, Verdict.FAILED, "b: torch is not installed."),
        (host_with_facts("b", torch="2.12.1"), False, Verdict.FAILED, "differ in torch"),
        (host_with_facts("b", python="3.12.1"), False, Verdict.FAILED, "differ in python"),
        (host_with_facts("b", python="3.11.2"), True, Verdict.OK, "the same on all hosts"),
        (host_with_facts("b", driver="550.1"), True, Verdict.WARNING, "different drivers"),
        (fake_host("b"), False, Verdict.FAILED, "differ in python and torch"),
        (fake_host("b"), True, Verdict.FAILED, "differ in python and torch and NCCL"),
        (host_with_facts("b", nccl="2.28.9"), True, Verdict.FAILED, "differ in NCCL"),
        (
            host_with_facts("b", nccl="2.28.9"),
            False,
            Verdict.WARNING,
            "have different NCCL versions: Rankdeck would refuse a run on GPUs",
        ),
        (host_with_facts("b", nccl=None), True, Verdict.FAILED, "differ in NCCL"),
        (host_with_facts("b"), True, Verdict.OK, "the same on all hosts"),
    ],
)
def test_version_differences(host: ProbedHost, needs_gpus: bool, verdict: Verdict, finding: str) -> None:
    line = multi_host._versions_row([host_with_facts("a"), host], needs_gpus=needs_gpus, code=None)
    assert line.verdict is verdict and finding in line.finding
    assert len(line.evidence) == 2 and (line.fix is not None) == (verdict is not Verdict.OK)
    assert line.evidence[0].startswith("a: python 3.11.7, torch 2.13.0, NCCL 2.27.5, driver ")


_HERE = {"numpy": "2.1.0", "einops": "0.8.0", "pip": "25.0"}
_LOCK = "".join(f'[[package]]\nname = "{name}"\nversion = "9"\n' for name in ("NumPy", "einops", "tqdm"))


@pytest.mark.parametrize(
    ("there", "lock", "verdict", "finding", "evidence"),
    [
        (_HERE, _LOCK, Verdict.OK, "the same on all hosts", ()),
        ({**_HERE, "pip": "24.0"}, _LOCK, Verdict.OK, "the same on all hosts", ()),
        (
            {**_HERE, "numpy": "2.2.0", "pip": "24.0"},
            _LOCK,
            Verdict.FAILED,
            "different versions of packages in uv.lock",
            ("bb has numpy 2.2.0, a has 2.1.0",),
        ),
        (
            {"numpy": "2.2.0", "tqdm": "4.0"},
            _LOCK,
            Verdict.FAILED,
            "different versions of packages in uv.lock",
            (
                "bb has numpy 2.2.0, a has 2.1.0",
                "bb has no einops; a has 0.8.0",
                "bb has tqdm 4.0; a lacks it",
            ),
        ),
        (
            {"numpy": "2.1.0", "pip": "25.0"},
            _LOCK,
            Verdict.WARNING,
            "Not all hosts have the packages in uv.lock",
            ("bb has no einops; a has 0.8.0",),
        ),
        ({**_HERE, "numpy": "2.2.0"}, "[[package", Verdict.WARNING, "uv.lock cannot be read: ", ()),
        (
            {"numpy": "2.1.0", "pip": "24.0"},
            None,
            Verdict.WARNING,
            "no lock file lists the packages",
            ("bb has pip 24.0, a has 25.0",),
        ),
        ({"numpy": "2.1.0", "more": "1"}, None, Verdict.OK, "the same on all hosts", ()),
        ("no table", _LOCK, Verdict.OK, "the same on all hosts", ()),
    ],
)
def test_locked_packages_must_match_for_user_code(
    tmp_path: Path, there: Any, lock: str | None, verdict: Verdict, finding: str, evidence: tuple[str, ...]
) -> None:
    if lock is not None:
        (tmp_path / "uv.lock").write_text(lock)
    hosts = [host_with_facts("a", installed=_HERE), host_with_facts("bb", installed=there)]
    line = multi_host._versions_row(hosts, needs_gpus=False, code=tmp_path)
    assert line.verdict is verdict and finding in line.finding
    differences = [text for text in line.evidence if ": python" not in text]
    assert differences == list(evidence) and (line.fix is not None) == (verdict is not Verdict.OK)
    if verdict is Verdict.FAILED:
        assert line.evidence[0] == evidence[0], "a command shows the first ones alone"
    formatted = {text: message.template.format(**message.arguments) for text, message in line.phrases.items()}
    assert {line.finding, *evidence} <= formatted.keys() and all(
        text == again for text, again in formatted.items()
    )


def test_package_differences_are_shortened_evidence() -> None:
    here, there = ({f"p{index}": version for index in range(9)} for version in ("1", "2"))
    hosts = [host_with_facts("a", installed=here), host_with_facts("bb", installed=there)]
    line = multi_host._versions_row(hosts, needs_gpus=False, code=None)
    assert line.verdict is Verdict.OK and line.fix is None
    assert line.evidence[2:] == [*(f"bb has p{index} 2, a has 1" for index in range(5)), "and 4 more"]


def test_the_worse_of_two_differences_comes_first(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(_LOCK)
    hosts = [
        host_with_facts("a", installed=_HERE),
        host_with_facts("bb", installed={**_HERE, "numpy": "3"}, driver="550"),
    ]
    line = multi_host._versions_row(hosts, needs_gpus=False, code=tmp_path)
    assert line.verdict is Verdict.FAILED and "uv.lock" in line.finding
    assert "Hosts have different drivers, which may slow down runs." in line.evidence
    assert set(line.evidence) - {text for text in line.evidence if ": python" in text} <= line.phrases.keys()
    hosts = [
        host_with_facts("a", installed=_HERE),
        host_with_facts("bb", installed={**_HERE, "numpy": "3"}, torch="1"),
    ]
    line = multi_host._versions_row(hosts, needs_gpus=False, code=tmp_path)
    assert line.finding == "Hosts differ in torch." and "bb has numpy 3, a has 2.1.0" in line.evidence


def make_rows(host: ProbedHost, *, needs_gpus: bool) -> list[CheckLine]:
    both = [host_with_facts("a"), host]
    return [
        multi_host._clocks_row(both),
        multi_host._disks_row(both),
        multi_host._free_devices_row(both, needs_gpus=needs_gpus),
    ]


@pytest.mark.parametrize(
    ("host", "needs_gpus", "verdicts"),
    [
        (host_with_facts("b"), True, ["good", "good", "good"]),
        (host_with_facts("b", offset_s=60.0), False, ["look", "good", "good"]),
        (host_with_facts("b", offset_s=-60.0), False, ["look", "good", "good"]),
        (host_with_facts("b", free_bytes=1 << 20), False, ["good", "look", "good"]),
        (host_with_facts("b", free_gpus=0), False, ["good", "good", "good"]),
        (host_with_facts("b", free_gpus=0), True, ["good", "good", "broken"]),
        (fake_host("b"), True, ["good", "look", "broken"]),
    ],
)
def test_clock_disk_and_device_verdicts(host: ProbedHost, needs_gpus: bool, verdicts: list[str]) -> None:
    rows = make_rows(host, needs_gpus=needs_gpus)
    assert [row.verdict.value for row in rows] == verdicts
    assert all("b" in row.finding + row.evidence[1] for row in rows)


def pair_step(number: int, **more: Any) -> dict[str, Any]:
    return {"stage": "pair", "number": number, **more}


_FAST_PAIR = {"num_wrong": 0, "num_bytes": 16 << 20, "seconds": 0.01}


@pytest.mark.parametrize(
    ("coordinator", "other", "verdict", "finding"),
    [
        ([pair_step(1, **_FAST_PAIR)], [pair_step(1, **_FAST_PAIR)], Verdict.OK, "at 1.6 GiB/s"),
        (
            [pair_step(1, **{**_FAST_PAIR, "seconds": 8.0})],
            [],
            Verdict.WARNING,
            "gradient exchange will be slow",
        ),
        ([pair_step(1, **{**_FAST_PAIR, "num_wrong": 3})], [], Verdict.FAILED, "b: 3 sums are wrong"),
        ([pair_step(1, error="Connection refused")], [], Verdict.FAILED, "b: Connection refused"),
        ([], [pair_step(1, error="No route to host")], Verdict.FAILED, "b: No route to host"),
        ([], [], Verdict.FAILED, "no answer within"),
    ],
)
def test_pair_verdicts(coordinator: list[Any], other: list[Any], verdict: Verdict, finding: str) -> None:
    line = multi_host._collective_row(NO_HOSTS, [fake_host("a", *coordinator), fake_host("b", *other)])
    assert line.verdict is verdict and finding in line.finding + " ".join(line.evidence)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            fake_host("b", {"stage": "torch", "error": "No module named 'torch'"}),
            "b: torch cannot be imported: No m",
        ),
        (fake_host("b", code=1, errors=b"\nIt went wrong.\nmore\n"), "b: It went wrong."),
        (fake_host("b", code=9), "b: rankdeck exited with status 9"),
    ],
)
def test_a_failed_host_gives_its_reason_and_not_the_network(other: ProbedHost, reason: str) -> None:
    line = multi_host._collective_row(NO_HOSTS, [fake_host("a", pair_step(1, error="wait timeout")), other])
    assert line.finding == "Ranks cannot start on b." and reason in line.evidence[0]
    assert "firewall" not in line.fix and "rankdeck --host b install" in line.fix


def test_a_host_that_cannot_listen_is_named() -> None:
    line = multi_host._reach_row(
        NO_HOSTS, [fake_host("a", {"stage": "listens", "reach": 1}), fake_host("bb")]
    )
    assert line.verdict is Verdict.FAILED and line.evidence == ["bb: 10.0.0.2"]
    lost = multi_host._interfaces_row([fake_host("a", {"stage": "listens", "interface": None})])
    assert lost.verdict is Verdict.WARNING
