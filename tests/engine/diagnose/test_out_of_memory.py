"""Why memory ran out is told from what the run told: the moment itself where somebody counted, else how long
before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.diagnose.out_of_memory import OutOfMemoryReport, find_out_of_memory
from tests.helpers.hungry import CUDA_WORDS
from tests.helpers.written_run import MIB, WrittenRun, device_infos

GIB = 2**30
OUT_OF_MEMORY = Problem("out-of-memory", f"OutOfMemoryError: {CUDA_WORDS}", rank=1)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    written_run = WrittenRun(
        tmp_path / "runs", "hungry", {"strategy": {"use": "ddp"}, "devices": {"use": "cpu:2"}}
    )
    written_run.start(2, device_infos(2))
    for rank in range(2):
        written_run.write_steps(rank, 1, [3.0, 2.0, 1.0])
        written_run.write_memory(rank, 3, {rank: {"parameters": 8 * MIB, "activations": (20 + rank) * MIB}})
    return written_run


def write_problem(run: WrittenRun, problem: Problem) -> None:
    run.writer("supervisor").write(events.ProblemRaised(problem=problem))


def find_report(run: WrittenRun, capacity_bytes: int | None = None) -> OutOfMemoryReport:
    run.end("failed", 1)
    state = load_run(RunRef(run.path)).state
    ran = find_out_of_memory(state, capacity_bytes)
    assert ran is not None
    return ran


def test_memory_counted_at_the_failure_is_reported(run: WrittenRun) -> None:
    memory = events.DeviceMemory(
        device=1, live_bytes=50 * MIB, peak_bytes=60 * MIB,
        live_by_kind={"parameters": 8 * MIB, "activations": 42 * MIB, "buffers": 0},
    )  # fmt: skip
    run.writer("rank-1").write(
        events.OutOfMemory(
            rank=1, step=4, device=1, module="blocks.2 (Block)", devices=[memory],
            source=events.MEASURED_ON_GPU,
            allocation=Allocation(asked_bytes=2 * GIB, capacity_bytes=16 * GIB, free_bytes=GIB),
            modules={"blocks.2": {"parameters": 4 * MIB}},
        )
    )  # fmt: skip
    write_problem(run, OUT_OF_MEMORY)
    ran = find_report(run)
    assert (ran.device_index, ran.step, ran.memory_step, ran.age_s) == (1, 4, 4, 0.0)
    assert (
        ran.memory_by_kind == {"activations": 42 * MIB, "parameters": 8 * MIB}
        and ran.memory_bytes == 50 * MIB
    )
    assert ran.headline == "Virtual 1 ran out of memory in step 4."
    assert ran.failed_allocation == (
        "An allocation of 2.0 GiB failed in blocks.2 (Block). Of 16.0 GiB, 1.0 GiB was free."
    )
    assert ran.memory_time == "when it failed, in step 4"
    assert ran.short_memory_times == ["step 4"]


def test_the_last_sampled_step_is_used_with_its_age(run: WrittenRun) -> None:
    run.writer("rank-1").write(events.OutOfMemory(rank=1, step=9, device=1, allocation=Allocation()))
    write_problem(run, OUT_OF_MEMORY)
    ran = find_report(run)
    assert (ran.memory_step, ran.step) == (3, 9) and ran.age_s is not None
    assert ran.memory_by_kind == {"activations": 21 * MIB, "parameters": 8 * MIB}
    assert ran.memory_time.startswith("peak of step 3, the last sampled step, ")
    texts = replace(ran, age_s=1.44).short_memory_times
    assert texts == ["step 3, 1.4 s before the failure", "step 3"]
    assert "The failed allocation is unknown" in ran.failed_allocation


def test_a_scripts_exception_text_gives_the_sizes(run: WrittenRun) -> None:
    write_problem(run, OUT_OF_MEMORY)
    ran = find_report(run)
    assert ran.allocation.asked_bytes == int(1.95 * GIB) and ran.device_index == 1 and ran.age_s is None
    assert ran.failed_allocation.startswith("An allocation of 1.9 GiB failed. Of 14.6 GiB, 1.6 GiB was")
    assert ran.memory_time == "peak of step 3, the last sampled step"


def test_a_rehearsal_over_its_capacity_is_reported(run: WrittenRun) -> None:
    write_problem(run, Problem("over-capacity", "Virtual device 1 held more.", severity="warning"))
    ran = find_report(run, 24 * MIB)
    assert ran.is_over_capacity and ran.device_index == 1 and ran.age_s == 0.0
    assert ran.headline.endswith("the rehearsal continued.")
    assert ran.failed_allocation == "It held 29.0 MiB, but rehearsal.capacity is 24.0 MiB."
    assert ran.memory_time == "at the peak of step 3"


def test_missing_numbers_are_not_invented(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    write_problem(empty, Problem("out-of-memory", "The process was killed by SIGKILL.", rank=0))
    ran = find_report(empty)
    assert (ran.device_index, ran.device, ran.step, dict(ran.memory_by_kind), ran.age_s) == (
        None,
        "",
        None,
        {},
        None,
    )
    assert ran.headline == "A process ran out of memory."
    assert ran.memory_time.startswith("No step was sampled")
    other = WrittenRun(tmp_path / "runs", "other")
    write_problem(other, Problem("rank-exception", "ValueError: out of memory"))
    other.end("failed", 1)
    state = load_run(RunRef(other.path)).state
    assert find_out_of_memory(state) is None
