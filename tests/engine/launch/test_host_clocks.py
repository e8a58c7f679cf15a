"""The head asks what time it is, over the connections that guards hold on to each other with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck.launch import head_guard
from rankdeck.launch.head_guard import HostClocks
from tests.engine.launch.test_peers import Head, Other

RANKS = {"box1": range(1), "box 2": range(1, 3), "box3": range(3, 4)}


class Slow:
    """What is sent to the others, whose clocks go as they like and who may take their time."""

    def __init__(self, run: Path, head: Head) -> None:
        self.head, self.clocks = head, HostClocks(str(run), head.meeting.say_to)
        self.ahead_s = {"box 2": 60.0, "box3": -0.5}
        self.file = run / "clocks.jsonl"

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def exchange(self, *others: Other) -> None:
        """Ask, and wait for all answers."""
        names = self.head.meeting.names_there
        asked = len(self.head.heard) + len(names)
        self.clocks.look(time.monotonic(), names)

        def answered() -> bool:
            for name, other in zip(sorted(names), others, strict=True):
                for word in other.heard:
                    other.end.say({**word, "now": time.time() + self.ahead_s[name]})
                other.heard.clear()
            return len(self.head.heard) == asked

        self.head.until(answered, *others)
        for name, word in self.head.heard[-len(names) :]:
            self.clocks.take(name, word)


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head(2)
    yield made
    made.end()


def test_each_clock_is_kept_beside_the_run(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_guard, "ASK_S", 0.0)
    others = Other(head, "box 2"), Other(head, "box3")
    head.until(lambda: head.meeting.is_complete, *others)
    slow = Slow(tmp_path, head)
    slow.exchange(*others)
    assert not slow.told(), "it has no ranks yet"
    slow.clocks.begin(2, RANKS)
    box2, box3 = slow.told()
    assert (box2["host"], box2["ranks"], box2["attempt"], box2["since"]) == ("box-2", [1, 3], 2, 0.0)
    assert abs(box2["ahead_s"] - 60.0) <= box2["within_s"] + 0.001
    assert abs(box3["ahead_s"] + 0.5) <= box3["within_s"] + 0.001
    slow.exchange(*others)
    assert len(slow.told()) == 2, "nothing is new"
    monkeypatch.setattr("rankdeck.remote.clock.WINDOW_S", 0.0)
    slow.ahead_s["box3"], began = 7.0, time.time()
    time.sleep(0.01)
    slow.exchange(*others)
    *_, again = slow.told()
    assert again["host"] == "box3" and abs(again["ahead_s"] - 7.0) < 0.1
    assert 0 <= again["since"] - began - 7.0 < 5.0, "by its own clock"
    slow.clocks.begin(3, {"box1": range(1), "box3": range(1, 2)})
    assert [(line["host"], line["ranks"], line["since"]) for line in slow.told()[3:]] == [("box3", [1, 2], 0)]


def test_what_is_no_answer_is_none(head: Head, tmp_path: Path) -> None:
    others = Other(head, "box 2"), Other(head, "box3")
    head.until(lambda: head.meeting.is_complete, *others)
    slow = Slow(tmp_path, head)
    slow.clocks.begin(0, RANKS)
    slow.clocks.take("box 2", {"word": "clock", "asked": 1.0, "now": time.time()})
    asked: list[float] = []
    slow.clocks._ask = lambda name, word: asked.append(word["asked"])
    for now in (None, "late", True, float("nan"), -1.0, 1e300, [time.time()]):
        slow.clocks._next_s = 0.0
        slow.clocks.look(time.monotonic(), {"box 2"})
        slow.clocks.take("box 2", {"word": "clock", "asked": asked[-1], "now": now})
        slow.clocks.take("box 2", {"word": "clock", "asked": asked[-1], "now": time.time()})
    assert len(asked) == 7 and not slow.told(), "of each question the first answer counts"
