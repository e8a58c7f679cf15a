"""Several hosts looked at together: two names of this one for real, and every verdict on what hosts tell."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rankdeck.doctor import over_hosts
from rankdeck.doctor.lines import TITLES_OF_HOSTS, CheckLine, Verdict
from rankdeck.remote.hosts import Host, Hosts, Ran
from tests.helpers.cli import rankdeck_here

Asked = over_hosts.AskedHost
_FACTS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "nccl": "2.27.5",
    "driver": None,
    "gpus": 2,
    "free_gpus": 2,
    "free_bytes": 1 << 40,
}


def told(
    name: str, *steps: dict[str, Any], offset_s: float = 0.0, code: int | None = None, errors: bytes = b""
) -> Asked:
    """A host that has said these."""
    link = SimpleNamespace(clock=SimpleNamespace(offset_s=offset_s), address="10.0.0.1")
    host = cast("Host", SimpleNamespace(name=name, link=link, error=None))
    out = b"a line of some library\n" + b"".join(json.dumps(step).encode() + b"\n" for step in steps)
    ran = Ran(host, 0)
    ran.out, ran.errors, ran.code = bytearray(out), bytearray(errors), code
    return Asked(host, f"10.0.0.{len(name)}", ran)


def facts(name: str, offset_s: float = 0.0, **more: Any) -> Asked:
    return told(name, {"stage": "facts", **_FACTS, **more}, offset_s=offset_s)


NOBODY = cast("Hosts", SimpleNamespace(poll_until=lambda is_done, within_s=None: is_done()))


def test_two_hosts_that_can_train_together_are_good_in_every_row_and_nothing_is_left() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    done = rankdeck_here("doctor", "--hosts", f"localhost,{platform.node()}", "--json", code=0)
    first, *rows, last = done.lines
    assert [row["name"] for row in first["rows"]] == [row["name"] for row in rows] == list(TITLES_OF_HOSTS)
    assert {row["verdict"] for row in rows} == {"good"}, rows
    assert not last["broken"] and not last["look"]
    assert "2 ways are open" in rows[1]["finding"] and "16 MiB runs at" in rows[-1]["finding"]
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("hosts", ["box1", "", ",", "-x,box1"])
def test_what_is_no_list_of_hosts_is_refused(hosts: str) -> None:
    told = rankdeck_here("doctor", "--hosts", hosts, code=2)
    reasons = ("two hosts or more", "no name of a host", "names no host")
    assert "Traceback" not in told.err and any(reason in told.err for reason in reasons)


@pytest.mark.parametrize(
    ("one", "needs_gpus", "verdict", "words"),
    [
        (facts("b", torch=None), False, Verdict.BROKEN, "b: torch is not installed."),
        (facts("b", torch="2.12.1"), False, Verdict.BROKEN, "differ in torch"),
        (facts("b", python="3.12.1"), False, Verdict.BROKEN, "differ in python"),
        (facts("b", python="3.11.2"), True, Verdict.GOOD, "the same everywhere"),
        (facts("b", driver="550.1"), True, Verdict.LOOK, "other drivers"),
        (told("b"), False, Verdict.BROKEN, "differ in python and torch"),
        (told("b"), True, Verdict.BROKEN, "differ in python and torch and NCCL"),
        (facts("b", nccl="2.28.9"), True, Verdict.BROKEN, "differ in NCCL"),
        (
            facts("b", nccl="2.28.9"),
            False,
            Verdict.LOOK,
            "differ in NCCL, and a run of GPUs would be refused",
        ),
        (facts("b", nccl=None), True, Verdict.BROKEN, "differ in NCCL"),
        (facts("b"), True, Verdict.GOOD, "the same everywhere"),
    ],
)
def test_versions(one: Asked, needs_gpus: bool, verdict: Verdict, words: str) -> None:
    line = over_hosts._alike([facts("a"), one], needs_gpus=needs_gpus, code=None)
    assert line.verdict is verdict and words in line.finding
    assert len(line.evidence) == 2 and (line.fix is not None) == (verdict is not Verdict.GOOD)
    assert line.evidence[0].startswith("a: python 3.11.7, torch 2.13.0, NCCL 2.27.5, driver ")


_HERE = {"numpy": "2.1.0", "einops": "0.8.0", "pip": "25.0"}
_LOCK = "".join(f'[[package]]\nname = "{name}"\nversion = "9"\n' for name in ("NumPy", "einops", "tqdm"))


@pytest.mark.parametrize(
    ("there", "lock", "verdict", "words", "seen"),
    [
        (_HERE, _LOCK, Verdict.GOOD, "the same everywhere", ()),
        ({**_HERE, "pip": "24.0"}, _LOCK, Verdict.GOOD, "the same everywhere", ()),
        (
            {**_HERE, "numpy": "2.2.0", "pip": "24.0"},
            _LOCK,
            Verdict.BROKEN,
            "other versions of what uv.lock names",
            ("bb has numpy 2.2.0, a has 2.1.0",),
        ),
        (
            {"numpy": "2.2.0", "tqdm": "4.0"},
            _LOCK,
            Verdict.BROKEN,
            "other versions of what uv.lock names",
            (
                "bb has numpy 2.2.0, a has 2.1.0",
                "bb has no einops, a has 0.8.0",
                "bb has tqdm 4.0, a none",
            ),
        ),
        (
            {"numpy": "2.1.0", "pip": "25.0"},
            _LOCK,
            Verdict.LOOK,
            "Not all hosts have what uv.lock names",
            ("bb has no einops, a has 0.8.0",),
        ),
        ({**_HERE, "numpy": "2.2.0"}, "[[package", Verdict.LOOK, "uv.lock cannot be read: ", ()),
        (
            {"numpy": "2.1.0", "pip": "24.0"},
            None,
            Verdict.LOOK,
            "no lock file says which",
            ("bb has pip 24.0, a has 25.0",),
        ),
        ({"numpy": "2.1.0", "more": "1"}, None, Verdict.GOOD, "the same everywhere", ()),
        ("no table", _LOCK, Verdict.GOOD, "the same everywhere", ()),
    ],
)
def test_packages_that_a_lock_file_names_are_the_same_for_own_code(
    tmp_path: Path, there: Any, lock: str | None, verdict: Verdict, words: str, seen: tuple[str, ...]
) -> None:
    if lock is not None:
        (tmp_path / "uv.lock").write_text(lock)
    hosts = [facts("a", installed=_HERE), facts("bb", installed=there)]
    line = over_hosts._alike(hosts, needs_gpus=False, code=tmp_path)
    assert line.verdict is verdict and words in line.finding
    told = [words for words in line.evidence if ": python" not in words]
    assert told == list(seen) and (line.fix is not None) == (verdict is not Verdict.GOOD)
    if verdict is Verdict.BROKEN:
        assert line.evidence[0] == seen[0], "a command shows the first ones alone"
    made = {words: said.template.format(**said.arguments) for words, said in line.phrases.items()}
    assert {line.finding, *seen} <= made.keys() and all(words == again for words, again in made.items())


def test_without_own_code_other_packages_are_evidence_and_few_are_named() -> None:
    here, there = ({f"p{index}": version for index in range(9)} for version in ("1", "2"))
    hosts = [facts("a", installed=here), facts("bb", installed=there)]
    line = over_hosts._alike(hosts, needs_gpus=False, code=None)
    assert line.verdict is Verdict.GOOD and line.fix is None
    assert line.evidence[2:] == [*(f"bb has p{index} 2, a has 1" for index in range(5)), "and 4 more"]


def test_of_two_differences_the_worse_is_said_first_and_the_other_is_seen(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(_LOCK)
    hosts = [facts("a", installed=_HERE), facts("bb", installed={**_HERE, "numpy": "3"}, driver="550")]
    line = over_hosts._alike(hosts, needs_gpus=False, code=tmp_path)
    assert line.verdict is Verdict.BROKEN and "uv.lock" in line.finding
    assert "Hosts have other drivers, which may be slower together." in line.evidence
    assert set(line.evidence) - {one for one in line.evidence if ": python" in one} <= line.phrases.keys()
    hosts = [facts("a", installed=_HERE), facts("bb", installed={**_HERE, "numpy": "3"}, torch="1")]
    line = over_hosts._alike(hosts, needs_gpus=False, code=tmp_path)
    assert line.finding == "Hosts differ in torch." and "bb has numpy 3, a has 2.1.0" in line.evidence


def rows_of(one: Asked, *, needs_gpus: bool) -> list[CheckLine]:
    both = [facts("a"), one]
    return [over_hosts._clocks(both), over_hosts._disks(both), over_hosts._free(both, needs_gpus=needs_gpus)]


@pytest.mark.parametrize(
    ("one", "needs_gpus", "verdicts"),
    [
        (facts("b"), True, ["good", "good", "good"]),
        (facts("b", offset_s=60.0), False, ["look", "good", "good"]),
        (facts("b", offset_s=-60.0), False, ["look", "good", "good"]),
        (facts("b", free_bytes=1 << 20), False, ["good", "look", "good"]),
        (facts("b", free_gpus=0), False, ["good", "good", "good"]),
        (facts("b", free_gpus=0), True, ["good", "good", "broken"]),
        (told("b"), True, ["good", "look", "broken"]),
    ],
)
def test_clocks_disks_and_devices(one: Asked, needs_gpus: bool, verdicts: list[str]) -> None:
    rows = rows_of(one, needs_gpus=needs_gpus)
    assert [row.verdict.value for row in rows] == verdicts
    assert all("b" in row.finding + row.evidence[1] for row in rows)


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"stage": "pair", "number": number, **more}


_FAST = {"num_wrong": 0, "num_bytes": 16 << 20, "seconds": 0.01}


@pytest.mark.parametrize(
    ("head", "other", "verdict", "words"),
    [
        ([pair(1, **_FAST)], [pair(1, **_FAST)], Verdict.GOOD, "at 1.6 GiB/s"),
        ([pair(1, **{**_FAST, "seconds": 8.0})], [], Verdict.LOOK, "gradients will wait"),
        ([pair(1, **{**_FAST, "num_wrong": 3})], [], Verdict.BROKEN, "b: 3 sums are wrong"),
        ([pair(1, error="Connection refused")], [], Verdict.BROKEN, "b: Connection refused"),
        ([], [pair(1, error="No route to host")], Verdict.BROKEN, "b: No route to host"),
        ([], [], Verdict.BROKEN, "no answer within"),
    ],
)
def test_pairs(head: list[Any], other: list[Any], verdict: Verdict, words: str) -> None:
    line = over_hosts._together(NOBODY, [told("a", *head), told("b", *other)])
    assert line.verdict is verdict and words in line.finding + " ".join(line.evidence)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            told("b", {"stage": "torch", "error": "No module named 'torch'"}),
            "b: torch cannot be imported: No m",
        ),
        (told("b", code=1, errors=b"\nIt went wrong.\nmore\n"), "b: It went wrong."),
        (told("b", code=9), "b: it ended with 9"),
    ],
)
def test_a_host_that_cannot_do_its_part_says_why_and_no_network_is_blamed(other: Asked, words: str) -> None:
    line = over_hosts._together(NOBODY, [told("a", pair(1, error="wait timeout")), other])
    assert line.finding == "b: no rank can begin there." and words in line.evidence[0]
    assert "firewall" not in line.fix and "rankdeck --host b install" in line.fix


def test_who_cannot_listen_is_named() -> None:
    line = over_hosts._reached(NOBODY, [told("a", {"stage": "listens", "reach": 1}), told("bb")])
    assert line.verdict is Verdict.BROKEN and line.evidence == ["bb: 10.0.0.2"]
    lost = over_hosts._interfaces([told("a", {"stage": "listens", "interface": None})])
    assert lost.verdict is Verdict.LOOK
