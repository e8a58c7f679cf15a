"""The head asks what time it is, over the connections that guards hold on to each other with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck.launch import coordinator_guard
from rankdeck.launch.coordinator_guard import HostClocks
from tests.engine.launch.test_peers import FakeCoordinator, FakeNode

RANKS = {"box1": range(1), "box 2": range(1, 3), "box3": range(3, 4)}


class SlowHosts:
    """What is sent to the others, whose clocks go as they like and who may take their time."""

    def __init__(self, run: Path, coordinator: FakeCoordinator) -> None:
        self.coordinator, self.clocks = coordinator, HostClocks(str(run), coordinator.server.send_to)
        self.ahead_s = {"box 2": 60.0, "box3": -0.5}
        self.file = run / "clocks.jsonl"

    def written_offsets(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def exchange_clocks(self, *others: FakeNode) -> None:
        """Ask, and wait for all answers."""
        names = self.coordinator.server.connected_names
        expected = len(self.coordinator.received) + len(names)
        self.clocks.poll(time.monotonic(), names)

        def answered() -> bool:
            for name, other in zip(sorted(names), others, strict=True):
                for word in other.received:
                    other.client.send({**word, "now": time.time() + self.ahead_s[name]})
                other.received.clear()
            return len(self.coordinator.received) == expected

        self.coordinator.poll_until(answered, *others)
        for name, word in self.coordinator.received[-len(names) :]:
            self.clocks.on_answer(name, word)


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    coordinator = FakeCoordinator(2)
    yield coordinator
    coordinator.close()


def test_clock_offsets_are_written_into_the_run_folder(
    coordinator: FakeCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_guard, "CLOCK_INTERVAL_S", 0.0)
    others = FakeNode(coordinator, "box 2"), FakeNode(coordinator, "box3")
    coordinator.poll_until(lambda: coordinator.server.is_complete, *others)
    slow = SlowHosts(tmp_path, coordinator)
    slow.exchange_clocks(*others)
    assert not slow.written_offsets(), "it has no ranks yet"
    slow.clocks.start_attempt(2, RANKS)
    box2, box3 = slow.written_offsets()
    assert (box2["host"], box2["ranks"], box2["attempt"], box2["since"]) == ("box-2", [1, 3], 2, 0.0)
    assert abs(box2["ahead_s"] - 60.0) <= box2["within_s"] + 0.001
    assert abs(box3["ahead_s"] + 0.5) <= box3["within_s"] + 0.001
    slow.exchange_clocks(*others)
    assert len(slow.written_offsets()) == 2, "nothing is new"
    monkeypatch.setattr("rankdeck.remote.clock.WINDOW_S", 0.0)
    slow.ahead_s["box3"], start_s = 7.0, time.time()
    time.sleep(0.01)
    slow.exchange_clocks(*others)
    *_, again = slow.written_offsets()
    assert again["host"] == "box3" and abs(again["ahead_s"] - 7.0) < 0.1
    assert 0 <= again["since"] - start_s - 7.0 < 5.0, "by its own clock"
    slow.clocks.start_attempt(3, {"box1": range(1), "box3": range(1, 2)})
    assert [(line["host"], line["ranks"], line["since"]) for line in slow.written_offsets()[3:]] == [
        ("box3", [1, 2], 0)
    ]


def test_invalid_clock_answers_are_ignored(coordinator: FakeCoordinator, tmp_path: Path) -> None:
    others = FakeNode(coordinator, "box 2"), FakeNode(coordinator, "box3")
    coordinator.poll_until(lambda: coordinator.server.is_complete, *others)
    slow = SlowHosts(tmp_path, coordinator)
    slow.clocks.start_attempt(0, RANKS)
    slow.clocks.on_answer("box 2", {"word": "clock", "asked": 1.0, "now": time.time()})
    question_times: list[float] = []
    slow.clocks._send = lambda name, word: question_times.append(word["asked"])
    for now in (None, "late", True, float("nan"), -1.0, 1e300, [time.time()]):
        slow.clocks._next_s = 0.0
        slow.clocks.poll(time.monotonic(), {"box 2"})
        slow.clocks.on_answer("box 2", {"word": "clock", "asked": question_times[-1], "now": now})
        slow.clocks.on_answer("box 2", {"word": "clock", "asked": question_times[-1], "now": time.time()})
    assert len(question_times) == 7 and not slow.written_offsets(), "of each question the first answer counts"
