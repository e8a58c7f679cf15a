"""Ranks that stand still are told and ended, and nobody is who is slow, saves, sleeps, or is looked at. What
a rank says of its own end counts, unless it says so because the supervisor was ending it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base import heartbeat
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import SAVING, HeartbeatWriter
from rankdeck.config.schema import LaunchConfig
from rankdeck.launch import stacks
from rankdeck.launch import watch as watching
from rankdeck.launch.control import request_stop
from rankdeck.launch.processes import ProcessWork
from rankdeck.launch.save_watch import save_marker
from rankdeck.launch.watch import Watch
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.launching import launch, wait_for_beats, wait_for_ranks
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun

LAUNCH = {"timeout_s": 2.0}


@dataclass
class FakeRanks:
    """A watch over ranks that are this process, at a time that only a test lets go on."""

    run: RunDir
    monkeypatch: pytest.MonkeyPatch
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    num_ranks: int = 1
    problems: list[Problem] = field(default_factory=list)
    elapsed_s: float = 0.0
    sleep_s: float = 0.0

    def __post_init__(self) -> None:
        clock = SimpleNamespace(
            monotonic=lambda: time.monotonic() + self.elapsed_s,
            clock_gettime=lambda _: time.monotonic() + self.elapsed_s + self.sleep_s,
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
        )
        for module in (watching, heartbeat):
            self.monkeypatch.setattr(module, "time", clock)
        self.monkeypatch.setattr(stacks, "_ANSWER_TIMEOUT_S", 0.0)  # nobody is asked
        self.watch = Watch(self.run, 0, self.launch, self.problems.append)
        ranks: list[Any] = [
            SimpleNamespace(rank=rank, pid=os.getpid(), exit_code=None, send_signal=lambda _: None)
            for rank in range(self.num_ranks)
        ]
        self.watch.start(ranks)
        self.hearts = [HeartbeatWriter(self.watch.heartbeats, rank) for rank in range(self.num_ranks)]

    def beat(self, step: int, phase: str) -> None:
        for page in self.hearts:
            page.beat(step, phase)

    def wait(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Whether the run had to end within so many seconds."""
        until_s = self.elapsed_s + seconds
        while self.elapsed_s < until_s:
            self.elapsed_s = min(until_s, self.elapsed_s + 1.5)
            meanwhile()
            if self.watch.poll():
                return True
        return False


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeRanks]]:
    run = WrittenRun(tmp_path / "runs")
    yield lambda **options: FakeRanks(**{"run": run.dir, "monkeypatch": monkeypatch, **options})
    run.lose()


def test_a_hanging_rank_is_reported_then_ended(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    alone.beat(7, "step")
    assert not alone.wait(13.5) and not alone.problems
    assert not alone.wait(4.5)
    (warning,) = alone.problems
    assert (warning.code, warning.rank) == ("hang-suspected", 0) and "in step 7" in warning.message
    assert not alone.wait(39) and alone.wait(6) and len(alone.problems) == 1


@pytest.mark.parametrize("phase", [SAVING, "evaluation", "first step"])
def test_slow_phases_are_reported_and_ended_later(watched: Callable[..., FakeRanks], phase: str) -> None:
    alone = watched()
    alone.beat(7, phase)
    assert not alone.wait(58) and not alone.problems
    assert not alone.wait(60) and len(alone.problems) == 1
    assert alone.wait(4)


def test_a_growing_save_is_progress(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    save_marker(alone.run.path).parent.mkdir()
    save_marker(alone.run.path).touch()
    checkpoint = alone.run.path / "checkpoints" / "7"
    checkpoint.mkdir(parents=True)

    def write() -> None:
        with open(checkpoint / "part", "ab") as file:
            file.write(b"0")

    alone.beat(7, SAVING)
    assert not alone.wait(600, write) and not alone.problems
    late = watched(run=alone.run, num_ranks=2)
    late.hearts[1].beat(7, "step")
    late.hearts[0].beat(7, SAVING)
    assert not late.wait(20, write) and [problem.rank for problem in late.problems] == [1], (
        "it does not come to the save"
    )


def test_machine_sleep_is_not_a_hang(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    alone.beat(7, "step")
    alone.wait(4)
    alone.elapsed_s += 1000
    assert not alone.wait(10) and not alone.problems, "its own process stood still as well"
    alone.sleep_s += 1000
    assert not alone.wait(10) and not alone.problems, "not even that clock went on"
    alone.wait(10)
    assert len(alone.problems) == 1


def test_time_without_polls_is_not_counted(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    alone.beat(7, "step")
    assert not alone.watch.poll()
    for _ in range(5):
        alone.elapsed_s += 4  # shorter than what is a sleep
        assert not alone.watch.poll() and not alone.problems
    alone.wait(12)
    assert len(alone.problems) == 1


def test_a_suspension_does_not_age_a_fresh_heartbeat(watched: Callable[..., FakeRanks]) -> None:
    alone = watched(launch=LaunchConfig(timeout_s=4.0))
    for step in range(1, 9):
        alone.beat(step, "step")
        alone.elapsed_s += 0.5
        alone.watch.poll()
    alone.beat(9, "step")
    alone.elapsed_s += 4
    assert not alone.watch.poll() and not alone.problems
    alone.wait(12)
    assert len(alone.problems) == 1


def test_a_single_computing_rank_may_be_slow(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    used = SimpleNamespace(s=0.0)
    alone.monkeypatch.setattr(watching, "work_of", lambda _: ProcessWork(used.s))
    alone.beat(7, "step")

    def compute() -> None:
        used.s += 1.4

    assert not alone.wait(300, compute)
    (warning,) = alone.problems
    assert warning.advice is not None and warning.advice.startswith("The rank is computing")


def test_a_rank_without_heartbeats_is_reported_unless_it_has_events(
    watched: Callable[..., FakeRanks],
) -> None:
    both = watched(num_ranks=2)
    both.hearts[0].beat(0, "joining the other ranks")
    both.wait(90)
    (warning,) = both.problems
    assert (warning.code, warning.rank) == ("hang-suspected", 1)
    assert "it is at startup, while the other ranks are waiting" in warning.message
    unheard = watched(num_ranks=2)
    for rank in range(2):
        unheard.run.writer(f"rank-{rank}").write(events.Phase(rank=rank, phase="training"))
    assert not unheard.wait(600) and not unheard.problems, "at work, without a page"


def test_several_computing_ranks_are_ended_after_their_first_step(
    watched: Callable[..., FakeRanks],
) -> None:
    both = watched(num_ranks=2)
    both.beat(0, "loading data")
    assert not both.wait(600) and len(both.problems) == 1, "each may be loading for itself"
    both.beat(7, "step")
    assert both.wait(70)


def test_on_hang_wait_only_reports(watched: Callable[..., FakeRanks]) -> None:
    alone = watched(launch=LaunchConfig(on_hang="wait"))
    alone.beat(7, "step")
    assert not alone.wait(600)
    (warning,) = alone.problems
    assert "rankdeck stop" in (warning.advice or "")


def test_a_rank_in_a_debugger_is_not_reported(watched: Callable[..., FakeRanks]) -> None:
    alone = watched()
    alone.monkeypatch.setattr(watching, "is_traced", lambda _: True)
    alone.beat(7, "step")
    assert not alone.wait(300) and not alone.problems
    alone.monkeypatch.setattr(watching, "is_traced", lambda _: False)
    assert not alone.wait(20) and len(alone.problems) == 1


@pytest.mark.parametrize(
    ("on_hang", "outcome", "attempts"), [("stop", "failed", 1), ("restart", "completed", 2)]
)
def test_a_real_hang_ends_or_restarts_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_hang: str, outcome: str, attempts: int
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "stuck")
    monkeypatch.setenv("FAKE_STEPS", "5")
    tables = {"strategy": {"use": "single"}, "devices": {"use": "cpu:1"}}
    run = launch(tmp_path / "runs", {**tables, "launch": {**LAUNCH, "on_hang": on_hang}})
    assert launching.wait_for_exit_record(run).outcome == outcome
    assert run.next_attempt() == attempts
    warning, *more = launching.read_problems(run, "warning")
    assert warning.code == "hang-suspected" and "in step 3, in wait_for_disk (" in warning.message
    if on_hang == "restart":
        assert [problem.code for problem in more] == ["restarted"]
        return
    (problem,) = launching.read_problems(run)
    assert (problem.code, problem.rank, more) == ("hang", 0, [])
    assert "in step 3, in wait_for_disk (" in problem.message


def test_a_suspended_rank_is_reported_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "1000000")
    tables = {"strategy": {"use": "single"}, "devices": {"use": "cpu:1"}}
    run = launch(tmp_path / "runs", {**tables, "launch": {"timeout_s": 0.5}})
    pid = wait_for_ranks(run, 1)[0]
    wait_for_beats(run, 1)
    os.kill(pid, signal.SIGSTOP)
    (warning,) = wait_until(lambda: launching.read_problems(run, "warning"), what="a warning")
    assert (warning.code, warning.rank) == ("rank-suspended", 0)
    assert "suspended by a signal" in warning.message and f"kill -CONT {pid}" in (warning.advice or "")
    time.sleep(2.5)  # nothing tells that it goes on waiting but time
    assert run.exit_record() is None
    os.kill(pid, signal.SIGCONT)
    request_stop(run)
    assert launching.wait_for_exit_record(run).outcome == "stopped"


@pytest.mark.parametrize(("ended_after_s", "counts"), [(None, True), (60.0, True), (-60.0, False)])
def test_errors_after_termination_are_not_failures(
    tmp_path: Path, ended_after_s: float | None, counts: bool
) -> None:
    """`ended_after_s`: when the rank was ended, after it had spoken; None where it ended by itself."""
    run = WrittenRun(tmp_path / "runs")
    failed = events.RankFailed(rank=0, problem=Problem("oom", "No memory.", rank=0))
    run.writer("rank-0").write(failed)
    ended_at = None if ended_after_s is None else time.time() + ended_after_s
    rank: Any = SimpleNamespace(rank=0, exit_code=1, terminated_at=ended_at, was_suspended=False)
    watch = Watch(run.dir, 0, LaunchConfig(), lambda problem: None)
    watch.ranks = [rank]
    (evidence,) = watch.evidence()
    assert (evidence.failure is not None) == counts
    assert evidence.exit_code == (1 if ended_at is None else None)
    run.lose()
