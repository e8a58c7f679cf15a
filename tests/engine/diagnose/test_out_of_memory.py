"""Why memory ran out is told from what the run told: the moment itself where somebody counted, else how long
before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.compare.figures import read
from rankdeck.compare.naming import RunAt
from rankdeck.diagnose.out_of_memory import RanOut, ran_out
from tests.helpers.hungry import CUDA_WORDS
from tests.helpers.written_run import MIB, WrittenRun, device_infos

GIB = 2**30
NO_ROOM = Problem("out-of-memory", f"OutOfMemoryError: {CUDA_WORDS}", rank=1)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    made = WrittenRun(tmp_path / "runs", "hungry", {"strategy": {"use": "ddp"}, "devices": {"use": "cpu:2"}})
    made.begin(2, device_infos(2))
    for rank in range(2):
        made.steps(rank, 1, [3.0, 2.0, 1.0])
        made.memory(rank, 3, {rank: {"parameters": 8 * MIB, "activations": (20 + rank) * MIB}})
    return made


def raised(run: WrittenRun, problem: Problem) -> None:
    run.writer("supervisor").write(events.ProblemRaised(problem=problem))


def found(run: WrittenRun, capacity_bytes: int | None = None) -> RanOut:
    run.end("failed", 1)
    fold = read(RunAt(run.path)).fold
    ran = ran_out(fold, capacity_bytes)
    assert ran is not None
    return ran


def test_what_a_rank_counted_at_that_moment_is_told(run: WrittenRun) -> None:
    held = events.DeviceMemory(
        device=1, live_bytes=50 * MIB, peak_bytes=60 * MIB,
        live_by_kind={"parameters": 8 * MIB, "activations": 42 * MIB, "buffers": 0},
    )  # fmt: skip
    run.writer("rank-1").write(
        events.OutOfMemory(
            rank=1, step=4, device=1, module="blocks.2 (Block)", devices=[held],
            source=events.MEASURED_ON_GPU,
            allocation=Allocation(asked_bytes=2 * GIB, capacity_bytes=16 * GIB, free_bytes=GIB),
            modules={"blocks.2": {"parameters": 4 * MIB}},
        )
    )  # fmt: skip
    raised(run, NO_ROOM)
    ran = found(run)
    assert (ran.place, ran.step, ran.held_step, ran.age_s) == (1, 4, 4, 0.0)
    assert ran.held == {"activations": 42 * MIB, "parameters": 8 * MIB} and ran.held_bytes == 50 * MIB
    assert ran.headline == "Virtual 1 ran out of memory in step 4."
    assert ran.tipped == (
        "An allocation of 2.0 GiB failed in blocks.2 (Block). Of 16.0 GiB, 1.0 GiB were free."
    )
    assert ran.moment == "when it failed, in step 4"
    assert ran.short_moments == ["step 4"]


def test_without_that_the_last_sampled_step_stands_in_with_its_age(run: WrittenRun) -> None:
    run.writer("rank-1").write(events.OutOfMemory(rank=1, step=9, device=1, allocation=Allocation()))
    raised(run, NO_ROOM)
    ran = found(run)
    assert (ran.held_step, ran.step) == (3, 9) and ran.age_s is not None
    assert ran.held == {"activations": 21 * MIB, "parameters": 8 * MIB}
    assert ran.moment.startswith("peak of step 3, the last one that was sampled, ")
    words = replace(ran, age_s=1.44).short_moments
    assert words == ["step 3, 1.4 s before it failed", "step 3"]
    assert "nobody said" in ran.tipped


def test_a_script_tells_in_the_words_of_its_exception_alone(run: WrittenRun) -> None:
    raised(run, NO_ROOM)
    ran = found(run)
    assert ran.allocation.asked_bytes == int(1.95 * GIB) and ran.place == 1 and ran.age_s is None
    assert ran.tipped.startswith("An allocation of 1.9 GiB failed. Of 14.6 GiB, 1.6 GiB were")
    assert ran.moment == "peak of step 3, the last one that was sampled"


def test_a_rehearsal_that_holds_more_than_is_pretended_says_so(run: WrittenRun) -> None:
    raised(run, Problem("over-capacity", "Virtual device 1 held more.", severity="warning"))
    ran = found(run, 24 * MIB)
    assert ran.is_pretended and ran.place == 1 and ran.age_s == 0.0
    assert ran.headline.endswith("the rehearsal went on.")
    assert ran.tipped == "It held 29.0 MiB, and rehearsal.capacity is 24.0 MiB."
    assert ran.moment == "at the peak of step 3"


def test_a_run_without_a_step_and_one_that_had_room_have_no_invented_figures(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    raised(empty, Problem("out-of-memory", "The process was ended by SIGKILL.", rank=0))
    ran = found(empty)
    assert (ran.place, ran.device, ran.step, dict(ran.held), ran.age_s) == (None, "", None, {}, None)
    assert ran.headline == "A process ran out of memory."
    assert ran.moment.startswith("No step was sampled")
    other = WrittenRun(tmp_path / "runs", "other")
    raised(other, Problem("rank-exception", "ValueError: out of memory"))
    other.end("failed", 1)
    fold = read(RunAt(other.path)).fold
    assert ran_out(fold) is None
