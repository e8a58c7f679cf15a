"""Watches of two hosts: each tells where its ranks stand, and the first one alone judges, of all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base import heartbeat
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import SAVING, HeartbeatWriter
from rankdeck.config.schema import LaunchConfig
from rankdeck.diagnose.cause import find_cause
from rankdeck.diagnose.stacks import CollectiveCall, Frame
from rankdeck.launch import host_watch, stacks
from rankdeck.launch import watch as watching
from rankdeck.launch.host_watch import CoordinatorWatch, NodeWatch
from rankdeck.launch.save_watch import save_marker
from rankdeck.launch.stacks import StackReport
from rankdeck.run_dir import EventWriter, RunDir
from tests.helpers.written_run import WrittenRun

WAITING = StackReport(
    frames=[Frame("/x/torch/distributed/c.py", 7, "all_reduce"), Frame("/home/me/train.py", 3, "step")],
    calls=[CollectiveCall("0", 84, "all_reduce", "650 Float")],
)
COMPUTING = StackReport(frames=[Frame("/home/me/train.py", 22, "loss")], calls=[])


class TwoHosts:
    """Ranks 0 and 1 on the first host, 2 on the other; time goes on where the test says so. What the other
    one tells takes `delays_s` seconds to arrive, by turns."""

    delays_s: tuple[float, ...] = (0.0,)

    def __init__(self, run: RunDir, other: RunDir, monkeypatch: pytest.MonkeyPatch, **launch: Any) -> None:
        self.run, self.elapsed_s, self.monkeypatch = run, 0.0, monkeypatch
        clock = SimpleNamespace(
            monotonic=lambda: time.monotonic() + self.elapsed_s,
            clock_gettime=lambda _: time.monotonic() + self.elapsed_s,
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
        )
        for module in (watching, heartbeat, host_watch):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(stacks, "_ANSWER_TIMEOUT_S", 0.0)
        self.answers = {0: WAITING, 1: WAITING, 2: COMPUTING}
        for kind in (CoordinatorWatch, NodeWatch):
            monkeypatch.setattr(
                kind, "_request_stacks", lambda _, ranks: {rank: self.answers[rank] for rank in ranks}
            )
        self.problems: list[Problem] = []
        self.node_events: list[events.StoodStill] = []
        self.in_transit: list[tuple[float, events.StoodStill]] = []
        config = LaunchConfig(**launch)
        self.coordinator = CoordinatorWatch(run, 0, config, self.problems.append)
        self.node = NodeWatch(other, 0, config, self.problems.append, report=self._send)
        self.writer = EventWriter(run.events_folder / "supervisor-box2.0.jsonl")
        self.is_disconnected = False
        for watch, ranks in ((self.coordinator, (0, 1)), (self.node, (2,))):
            watch.start([self._rank(rank) for rank in ranks], 3)
        self.heartbeats = {
            rank: HeartbeatWriter((self.node if rank == 2 else self.coordinator).heartbeats, rank)
            for rank in range(3)
        }

    @staticmethod
    def _rank(rank: int) -> Any:
        return SimpleNamespace(
            rank=rank,
            pid=os.getpid(),
            exit_code=None,
            terminated_at=None,
            was_suspended=False,
            send=lambda _: None,
        )

    def _send(self, event: events.StoodStill) -> None:
        late_s = self.delays_s[len(self.node_events) % len(self.delays_s)]
        self.node_events.append(event)
        if not self.is_disconnected:
            self.in_transit.append((self.elapsed_s + late_s, event))

    def beat(self, step: int, *phases: str) -> None:
        for rank, phase in enumerate(phases):
            self.heartbeats[rank].beat(step, phase)

    def wait(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Whether the run had to end within so many seconds."""
        until_s = self.elapsed_s + seconds
        while self.elapsed_s < until_s:
            self.elapsed_s += 1.0
            meanwhile()
            assert not self.node.poll(), "it ends nothing"
            for at_s, event in [message for message in self.in_transit if message[0] <= self.elapsed_s]:
                self.in_transit.remove((at_s, event))
                self.writer.write(event)
            if self.coordinator.poll():
                return True
        return False


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TwoHosts]]:
    runs, hosts = [WrittenRun(tmp_path / name) for name in ("box1", "box2")], list[TwoHosts]()

    def make(**launch: Any) -> TwoHosts:
        hosts.append(TwoHosts(runs[0].dir, runs[1].dir, monkeypatch, **launch))
        return hosts[-1]

    yield make
    for host in hosts:
        host.writer.close()
    for run in runs:
        run.lose()


def test_a_missing_rank_is_found_on_the_other_host(both: Callable[..., TwoHosts]) -> None:
    hosts = both(timeout_s=40.0)
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(14) and not hosts.problems
    assert not hosts.wait(8)
    (warning,) = hosts.problems
    assert (warning.code, warning.rank) == ("hang-suspected", 2)
    assert "in loss (/home/me/train.py, line 22)" in warning.message
    assert "the other ranks are waiting in all_reduce number 84" in warning.message
    assert not hosts.wait(14) and hosts.wait(8) and len(hosts.problems) == 1
    cause = find_cause(hosts.coordinator.evidence(), hosts.coordinator._polled_s)
    assert (cause.problem.code, cause.problem.rank) == ("hang", 2)


def test_a_missing_rank_is_found_on_the_first_host(both: Callable[..., TwoHosts]) -> None:
    hosts = both(timeout_s=40.0)
    hosts.answers |= {1: COMPUTING, 2: WAITING}
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(22)
    assert [problem.rank for problem in hosts.problems] == [1] and hosts.wait(22)
    assert find_cause(hosts.coordinator.evidence(), hosts.coordinator._polled_s).problem.rank == 1


def test_an_earlier_step_on_another_host_gets_its_own_timeout(
    both: Callable[..., TwoHosts],
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.beat(7, "step", "step", "evaluation")
    hosts.beat(8, "step", "step")
    assert not hosts.wait(58) and not hosts.problems
    assert not hosts.wait(10)
    (warning,) = hosts.problems
    assert warning.rank == 2 and 'in "evaluation" of step 7' in warning.message
    assert not hosts.wait(40), "twice as long"


def test_a_growing_save_on_another_host_is_not_a_hang(both: Callable[..., TwoHosts], tmp_path: Path) -> None:
    hosts = both(timeout_s=40.0)
    other = hosts.node._run.path
    save_marker(other).parent.mkdir()
    save_marker(other).touch()
    checkpoint = other / "checkpoints" / "7"
    checkpoint.mkdir(parents=True)

    def write() -> None:
        with open(checkpoint / "part", "ab") as file:
            file.write(b"0")

    hosts.beat(7, SAVING, SAVING, SAVING)
    assert not hosts.wait(400, write) and not hosts.problems


def test_ranks_that_make_progress_send_no_reports(both: Callable[..., TwoHosts]) -> None:
    hosts = both()
    steps = iter(range(1, 1000))
    assert not hosts.wait(120, lambda: hosts.beat(next(steps), "step", "step", "step"))
    assert not hosts.problems and not hosts.node_events


def test_without_reports_the_coordinator_judges_its_own_ranks(
    both: Callable[..., TwoHosts],
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.is_disconnected = True
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(20) and not hosts.problems, "they may be about to tell"
    assert not hosts.wait(6)
    (warning,) = hosts.problems
    assert warning.rank is None and "rank 0 in" in warning.message and "rank 1 in" in warning.message
    assert not hosts.wait(16) and hosts.wait(8)


def test_reports_about_local_or_unknown_ranks_are_ignored(both: Callable[..., TwoHosts]) -> None:
    hosts = both(timeout_s=40.0)
    for rank in (0, 1, -1, 3, 10**9):
        hosts.writer.write(
            events.StoodStill(rank=rank, pid=1, step=1, phase="step", silent_s=1.0, until_told_s=1e9)
        )
    hosts.writer.write(
        events.StoodStill(rank=2, pid=1, step=1, phase="step", silent_s=-1e300, until_told_s=-1.0)
    )
    with open(hosts.run.events_folder / "supervisor-box2.0.jsonl", "ab") as file:
        file.write(b"\xff\n{}\n")
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(22)
    assert [problem.rank for problem in hosts.problems] == [2]


@pytest.mark.parametrize("way_s", [(0.0,), (2.0, 0.0), (0.0, 2.0, 1.0)])
def test_late_reports_do_not_restart_the_timeout(
    both: Callable[..., TwoHosts], way_s: tuple[float, ...]
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.delays_s = way_s
    hosts.beat(7, "step", "step", "step")
    waited = next(seconds for seconds in range(60) if hosts.wait(1))
    assert len(hosts.node_events) > 4 and 39 <= waited <= 43
