"""What the kernel sends again and again to another host is told before the first step, nothing else is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rankdeck.base.errors import TrainingError
from rankdeck.base.heartbeat import CHECK_STEP, STEP, Beat
from rankdeck.launch import unanswered
from rankdeck.launch.children import Child
from rankdeck.launch.layout import HostPart, Layout
from rankdeck.launch.unanswered import UnansweredWatch

_ROW = "0: 02004D0A:A2C4 {other}:9026 01 00066230:00000000 {timer}:0000009F {times:08X} 0 0 {inode} 2 0 2 1 8"
_BOX2, _STRANGER = "03004D0A", "09004D0A"
_LAYOUT = Layout([HostPart("box1", "10.77.0.2", 1, []), HostPart("box2", "10.77.0.3", 1, [])])
_BUILDS = Beat(0, "building the model", 0.0)
Look = Callable[..., None]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """Look at a table of one connection, a second later than the last time; this process is rank 0."""
    watch, now_s, table = UnansweredWatch(_LAYOUT), [100.0], tmp_path / "tcp"
    monkeypatch.setattr(unanswered, "_TABLE", table)
    monkeypatch.setattr("rankdeck.launch.unanswered.time.monotonic", lambda: now_s[0])
    rank = SimpleNamespace(rank=0, pid=os.getpid())
    with socket.socket() as own:

        def one(
            times: int, other: str = _BOX2, timer: str = "01", beat: Beat = _BUILDS, inode: int = 0
        ) -> None:
            inode = inode or os.fstat(own.fileno()).st_ino
            row = _ROW.format(other=other, timer=timer, times=times, inode=inode)
            table.write_text(f"sl local_address\n{row}\n")
            now_s[0] += 1.0
            watch.look([cast(Child, rank)], lambda: {0: beat})

        yield one


def test_what_is_not_acknowledged_for_ten_seconds_names_the_network(look: Look) -> None:
    for times in (1, 2, 3, 3, 4, 4, 4, 5, 5, 5):
        look(times)
    with pytest.raises(TrainingError, match="the network between box1 and box2") as raised:
        look(5)
    assert (raised.value.problem.code, raised.value.problem.rank) == ("network", 0)
    assert "doctor --hosts box1,box2" in str(raised.value.problem.advice)


@pytest.mark.parametrize(
    "more",
    [
        {"other": _STRANGER},
        {"inode": 1},
        {"timer": "04"},
        {"beat": Beat(0, CHECK_STEP, 0.0)},
        {"beat": Beat(3, STEP, 0.0)},
    ],
    ids=["to another machine", "of another process", "a full receiver", "in the check", "in a step"],
)
def test_nothing_else_is_told(look: Look, more: dict[str, object]) -> None:
    for _ in range(30):
        look(5, **more)


def test_a_network_that_loses_some_is_none_that_loses_all(look: Look) -> None:
    for times in (1, 2, 3, 4, 5, 1, 2, 0, 1, 3, 4, 5, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3):
        look(times)


def test_a_table_that_cannot_be_read_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unanswered, "_TABLE", Path("/nowhere"))
    UnansweredWatch(_LAYOUT).look([], lambda: {0: _BUILDS})
