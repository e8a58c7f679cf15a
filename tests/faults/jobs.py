"""Jobs that fail where they are told to: a configuration of each strategy, or a person's own script.

Their code is in inside/, which is copied beside each.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdeck.config import from_dict
from rankdeck.config.script import ScriptConfig, ScriptTable
from rankdeck.launch.start import start_run, start_script
from rankdeck.run_dir import RunDir

_INSIDE = Path(__file__).with_name("inside")
_COMMAND = ["rankdeck", "train", "job.toml"]


@dataclass(frozen=True)
class Class:
    """A class of jobs. `processes`: ranks; `devices`: of a configuration's rehearsal."""

    name: str
    processes: int
    devices: int = 1
    strategy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_script(self) -> bool:
        return not self.strategy


SPLIT = {str(layer): "column" if layer % 2 else "row" for layer in (1, 4)}
CLASSES = {
    job_class.name: job_class
    for job_class in (
        Class("single", 1, 1, {"use": "single"}),
        Class("dp", 1, 2, {"use": "dp"}),
        Class("model", 1, 2, {"use": "model"}),
        Class("ddp", 3, 3, {"use": "ddp"}),
        Class("ddp, ring", 2, 2, {"use": "ddp", "sync": "ring"}),
        Class("fsdp", 2, 2, {"use": "fsdp"}),
        Class("pipeline", 2, 2, {"use": "pipeline"}),
        Class("pipeline-async", 2, 2, {"use": "pipeline-async"}),
        Class("tensor", 2, 2, {"use": "tensor", "plan": SPLIT}),
        Class("hybrid", 4, 4, {"use": "hybrid", "data": 2, "stage": 2}),
        Class("script", 1),
        Class("script, ddp", 2),
    )
}


@dataclass(frozen=True)
class Plan:
    """What happens in a job: `act` of inside/acts.py at the place `where` after `step` steps in `ranks`."""

    act: str = ""
    where: str = ""
    step: int = 0
    ranks: tuple[int, ...] = ()
    attempts: tuple[int, ...] = (0,)
    steps: int = 120
    workers: int = 0
    waits: bool = False
    pace_s: float = 0.003
    debugged_s: float = 0.0


def write(folder: Path, plan: Plan) -> None:
    """A job's code, and what happens in it."""
    folder.mkdir(parents=True)
    for file in _INSIDE.glob("*.py"):
        shutil.copy(file, folder)
    fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    (folder / "fault.json").write_text(json.dumps(fields))


def tables(kind: Class, plan: Plan, **more: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration; `more` goes into its tables."""
    defaults: dict[str, dict[str, Any]] = {
        "model": {"use": "mine.py:model"},
        "data": {"use": "mine.py:data", "workers": plan.workers},
        "loss": {"use": "mine.py:loss"},
        "train": {
            "steps": plan.steps,
            "global_batch": 24,
            "evaluate_every": 30,
            "checkpoint_every": 25,
            "optimizer": {"use": "mine.py:Optimizer", "lr": 0.01},
        },
        "strategy": dict(kind.strategy),
        "devices": {"use": f"cpu:{kind.devices}"},
        "launch": {"timeout_s": 4.0},
    }
    return {"name": "job"} | {
        name: defaults.get(name, {}) | dict(more.get(name, {})) for name in {*defaults, *more}
    }


def start_job(kind: Class, plan: Plan, folder: Path, **more: Mapping[str, Any]) -> RunDir:
    """The job, begun, in a folder of its own."""
    write(folder, plan)
    runs = folder / "runs"
    if not kind.is_script:
        config = from_dict(tables(kind, plan, **more), folder=folder)
        return start_run(config, runs=runs, detach=True, command_line=_COMMAND, started=time.time())
    table = {
        "run": "train.py",
        "folder": str(folder),
        "python": sys.executable,
        "ranks": kind.processes,
        **more.get("script", {}),
    }
    script = ScriptConfig(name="train.py", script=ScriptTable(**table))
    return start_script(script, runs=runs, detach=True, command_line=_COMMAND, started=time.time())
