"""Several hosts looked at together: two names of this one for real, and every verdict on what hosts tell."""

from __future__ import annotations

import json
import platform
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rankdeck.doctor import over_hosts
from rankdeck.doctor.lines import TITLES_OF_HOSTS, CheckLine, Verdict
from rankdeck.remote.hosts import Host, Hosts
from tests.helpers.cli import rankdeck_here

Asked = over_hosts._Asked
_FACTS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "driver": None,
    "gpus": 2,
    "free_gpus": 2,
    "free_bytes": 1 << 40,
}


def told(name: str, *steps: dict[str, Any], offset_s: float = 0.0, code: int | None = None) -> Asked:
    """A host that has said these."""
    link = SimpleNamespace(clock=SimpleNamespace(offset_s=offset_s), address="10.0.0.1")
    host = cast("Host", SimpleNamespace(name=name, link=link, error=None))
    out = b"a line of some library\n" + b"".join(json.dumps(step).encode() + b"\n" for step in steps)
    ran = SimpleNamespace(host=host, out=bytearray(out), code=code)
    return Asked(host, f"10.0.0.{len(name)}", cast("Any", ran))


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
    assert "Traceback" not in told.err and (
        "two hosts or more" in told.err or "no name of a host" in told.err
    )


@pytest.mark.parametrize(
    ("one", "verdict", "words"),
    [
        (facts("b", torch="2.12.1"), Verdict.BROKEN, "differ in torch"),
        (facts("b", python="3.12.1"), Verdict.BROKEN, "differ in python"),
        (facts("b", python="3.11.2"), Verdict.GOOD, "the same everywhere"),
        (facts("b", driver="550.1"), Verdict.LOOK, "other drivers"),
        (told("b"), Verdict.BROKEN, "differ in python and torch"),
    ],
)
def test_versions(one: Asked, verdict: Verdict, words: str) -> None:
    line = over_hosts._alike([facts("a"), one])
    assert line.verdict is verdict and words in line.finding
    assert len(line.evidence) == 2 and (line.fix is not None) == (verdict is not Verdict.GOOD)


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


def test_who_cannot_listen_is_named() -> None:
    line = over_hosts._reached(NOBODY, [told("a", {"stage": "listens", "reach": 1}), told("bb", code=3)])
    assert line.verdict is Verdict.BROKEN and line.evidence == ["bb: 10.0.0.2"]
    lost = over_hosts._interfaces([told("a", {"stage": "listens", "interface": None})])
    assert lost.verdict is Verdict.LOOK
