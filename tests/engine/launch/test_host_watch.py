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
from rankdeck.launch.host_watch import HeadWatch, MemberWatch
from rankdeck.launch.saves import sign_of
from rankdeck.launch.stacks import Answer
from rankdeck.rundir import EventWriter, RunDir
from tests.helpers.written_run import WrittenRun

WAITS = Answer(
    frames=[Frame("/x/torch/distributed/c.py", 7, "all_reduce"), Frame("/home/me/train.py", 3, "step")],
    calls=[CollectiveCall("0", 84, "all_reduce", "650 Float")],
)
BUSY = Answer(frames=[Frame("/home/me/train.py", 22, "loss")], calls=[])


class Both:
    """Ranks 0 and 1 on the first host, 2 on the other; time goes on where the test says so. What the other
    one tells takes `way_s` seconds to arrive, by turns."""

    way_s: tuple[float, ...] = (0.0,)

    def __init__(self, run: RunDir, other: RunDir, monkeypatch: pytest.MonkeyPatch, **launch: Any) -> None:
        self.run, self.after_s, self.monkeypatch = run, 0.0, monkeypatch
        clock = SimpleNamespace(
            monotonic=lambda: time.monotonic() + self.after_s,
            clock_gettime=lambda _: time.monotonic() + self.after_s,
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
        )
        for module in (watching, heartbeat, host_watch):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(stacks, "_ANSWERED_S", 0.0)
        self.answers = {0: WAITS, 1: WAITS, 2: BUSY}
        for kind in (HeadWatch, MemberWatch):
            monkeypatch.setattr(kind, "_ask", lambda _, ranks: {rank: self.answers[rank] for rank in ranks})
        self.told: list[Problem] = []
        self.of_member: list[events.StoodStill] = []
        self.under_way: list[tuple[float, events.StoodStill]] = []
        config = LaunchConfig(**launch)
        self.head = HeadWatch(run, 0, config, self.told.append)
        self.member = MemberWatch(other, 0, config, self.told.append, tell=self._tell)
        self.way = EventWriter(run.events_folder / "supervisor-box2.0.jsonl")
        self.is_cut = False
        for watch, ranks in ((self.head, (0, 1)), (self.member, (2,))):
            watch.begin([self._rank(rank) for rank in ranks], 3)
        self.hearts = {
            rank: HeartbeatWriter((self.member if rank == 2 else self.head).heartbeats, rank)
            for rank in range(3)
        }

    @staticmethod
    def _rank(rank: int) -> Any:
        return SimpleNamespace(
            rank=rank,
            pid=os.getpid(),
            exit_code=None,
            ended_at=None,
            was_suspended=False,
            send=lambda _: None,
        )

    def _tell(self, event: events.StoodStill) -> None:
        late_s = self.way_s[len(self.of_member) % len(self.way_s)]
        self.of_member.append(event)
        if not self.is_cut:
            self.under_way.append((self.after_s + late_s, event))

    def beat(self, step: int, *phases: str) -> None:
        for rank, phase in enumerate(phases):
            self.hearts[rank].beat(step, phase)

    def wait(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Whether the run had to end within so many seconds."""
        until_s = self.after_s + seconds
        while self.after_s < until_s:
            self.after_s += 1.0
            meanwhile()
            assert not self.member.poll(), "it ends nothing"
            for at_s, event in [one for one in self.under_way if one[0] <= self.after_s]:
                self.under_way.remove((at_s, event))
                self.way.write(event)
            if self.head.poll():
                return True
        return False


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Both]]:
    runs, made = [WrittenRun(tmp_path / name) for name in ("box1", "box2")], list[Both]()

    def make(**launch: Any) -> Both:
        made.append(Both(runs[0].dir, runs[1].dir, monkeypatch, **launch))
        return made[-1]

    yield make
    for one in made:
        one.way.close()
    for run in runs:
        run.lose()


def test_who_does_not_arrive_is_found_on_the_other_host(both: Callable[..., Both]) -> None:
    hosts = both(timeout_s=40.0)
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(14) and not hosts.told
    assert not hosts.wait(8)
    (warning,) = hosts.told
    assert (warning.code, warning.rank) == ("hang-suspected", 2)
    assert "in loss (/home/me/train.py, line 22)" in warning.message
    assert "the others wait in all_reduce number 84" in warning.message
    assert not hosts.wait(14) and hosts.wait(8) and len(hosts.told) == 1
    cause = find_cause(hosts.head.evidence(), hosts.head._polled_s)
    assert (cause.problem.code, cause.problem.rank) == ("hang", 2)


def test_and_on_the_first_one(both: Callable[..., Both]) -> None:
    hosts = both(timeout_s=40.0)
    hosts.answers |= {1: BUSY, 2: WAITS}
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(22)
    assert [one.rank for one in hosts.told] == [1] and hosts.wait(22)
    assert find_cause(hosts.head.evidence(), hosts.head._polled_s).problem.rank == 1


def test_who_is_in_an_earlier_step_elsewhere_and_may_take_longer_there_is_waited_for(
    both: Callable[..., Both],
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.beat(7, "step", "step", "evaluation")
    hosts.beat(8, "step", "step")
    assert not hosts.wait(58) and not hosts.told
    assert not hosts.wait(10)
    (warning,) = hosts.told
    assert warning.rank == 2 and 'in "evaluation" of step 7' in warning.message
    assert not hosts.wait(40), "twice as long"


def test_a_save_on_the_other_host_that_grows_is_no_hang_here(
    both: Callable[..., Both], tmp_path: Path
) -> None:
    hosts = both(timeout_s=40.0)
    other = hosts.member._run.path
    sign_of(other).parent.mkdir()
    sign_of(other).touch()
    part = other / "checkpoints" / "7"
    part.mkdir(parents=True)

    def write() -> None:
        with open(part / "part", "ab") as file:
            file.write(b"0")

    hosts.beat(7, SAVING, SAVING, SAVING)
    assert not hosts.wait(400, write) and not hosts.told


def test_ranks_that_go_on_tell_nothing(both: Callable[..., Both]) -> None:
    hosts = both()
    steps = iter(range(1, 1000))
    assert not hosts.wait(120, lambda: hosts.beat(next(steps), "step", "step", "step"))
    assert not hosts.told and not hosts.of_member


def test_where_nothing_is_heard_of_the_others_the_first_host_judges_by_what_it_knows(
    both: Callable[..., Both],
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.is_cut = True
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(20) and not hosts.told, "they may be about to tell"
    assert not hosts.wait(6)
    (warning,) = hosts.told
    assert warning.rank is None and "rank 0 in" in warning.message and "rank 1 in" in warning.message
    assert not hosts.wait(16) and hosts.wait(8)


def test_what_another_host_says_of_ranks_here_or_of_none_is_left_out(both: Callable[..., Both]) -> None:
    hosts = both(timeout_s=40.0)
    for rank in (0, 1, -1, 3, 10**9):
        hosts.way.write(
            events.StoodStill(rank=rank, pid=1, step=1, phase="step", silent_s=1.0, until_told_s=1e9)
        )
    hosts.way.write(
        events.StoodStill(rank=2, pid=1, step=1, phase="step", silent_s=-1e300, until_told_s=-1.0)
    )
    with open(hosts.run.events_folder / "supervisor-box2.0.jsonl", "ab") as file:
        file.write(b"\xff\n{}\n")
    hosts.beat(7, "step", "step", "step")
    assert not hosts.wait(22)
    assert [one.rank for one in hosts.told] == [2]


@pytest.mark.parametrize("way_s", [(0.0,), (2.0, 0.0), (0.0, 2.0, 1.0)])
def test_news_that_comes_late_begins_no_new_count(
    both: Callable[..., Both], way_s: tuple[float, ...]
) -> None:
    hosts = both(timeout_s=40.0)
    hosts.way_s = way_s
    hosts.beat(7, "step", "step", "step")
    waited = next(seconds for seconds in range(60) if hosts.wait(1))
    assert len(hosts.of_member) > 4 and 39 <= waited <= 43
