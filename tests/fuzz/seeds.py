"""Runs as the engine wrote them: of configurations, of a script, and a race. Written once, then copied."""

from __future__ import annotations

import tarfile
from pathlib import Path

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.run.plan_lines import encode
from rankdeck.run_dir import Labels, RunDir, write_labels
from tests.helpers.checkout import CHECKOUT
from tests.helpers.racing import plan_line
from tests.helpers.written_race import WrittenRace, make_entry
from tests.helpers.written_script import WrittenScript

REAL = ("single-f291", "pipeline-schedule-1f1b-4a54", "resumed-twice-9ed3", "failed-3133")


def write_seeds(folder: Path) -> list[Path]:
    """Their folders, in an order that stays."""
    runs = folder / "runs"
    with tarfile.open(CHECKOUT / "tests/fixtures/runs-0.1.0.tar.xz") as packed:
        packed.extractall(
            folder, [member for member in packed if any(name in member.name for name in REAL)], filter="data"
        )
    for run in sorted(runs.iterdir()):
        (run / "plan.json").write_bytes(encode(plan_line("ddp")))
        (run / "ways-out.0.jsonl").write_bytes(encode(plan_line("ddp")) + encode(plan_line("fsdp")))
        write_labels(run, Labels(name="a b", tags=("x",), note="n"))
        _add_rare(RunDir(run))
    return [*sorted(runs.iterdir()), _script(runs), _race(runs)]


def _add_rare(run: RunDir) -> None:
    """What hardly a run tells."""
    writer = run.writer("rank-0")
    writer.write(events.DeviceNotice(code="lost", message="gone", device=0))
    writer.write(events.ProblemRaised(problem=Problem("slow", "It is slow.", rank=0, severity="warning")))
    allocation = Allocation(asked_bytes=2**30)
    writer.write(events.OutOfMemory(rank=0, step=9, allocation=allocation, device=0, module="blocks.0"))
    writer.close()


def _script(runs: Path) -> Path:
    run = WrittenScript(runs)
    run.start_script(2)
    for rank in (0, 1):
        run.observe_rank(rank, wrapper="DistributedDataParallel", world_size=2)
        run.write_step_line(rank, 1, [1.0, None, 0.5, 0.25], samples=4, wait_s=0.1, grad_norm=1.0)
        run.write_owner_memory(rank, {"parameters": 1000})
    run.write_logged(0, steps=[1, 2, 3], loss=[1.0, 0.5, None])
    run.end_script(0)
    return run.path


def _race(runs: Path) -> Path:
    race = WrittenRace(runs)
    race.write(
        make_entry(1, "ddp"),
        make_entry(2, "fsdp", 0.2),
        make_entry(3, "dp", None),
        make_entry(4, "ddp", repeats=1),
    )
    race.lose()
    return race.folder.path
