"""What happens to a command while its run starts: a disk without room, a terminal that is closed, a folder of
runs that goes. Here the command itself is tried, which stays with its run.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rankdeck.config import from_dict
from rankdeck.run_dir import RunDir, list_folder
from tests.faults.jobs import CLASSES, Class, Plan, tables, write
from tests.faults.kinds import Drawn
from tests.helpers import processes
from tests.helpers.cli import RANKDECK
from tests.helpers.terminals import Terminal
from tests.helpers.waiting import scale_timeout, wait_until

_END_S = 90.0
_LEFT_S = 5.0
_STEP_S = 0.2
"""So much later for each step that is drawn."""


@dataclass(frozen=True)
class Started:
    """How a command ended. `run` is the one that it began, if it has left one; `left` what else there is."""

    exit_code: int
    output: str
    run: RunDir | None
    left: list[str]


def start(what: str, drawn: Drawn, folder: Path, mark: str) -> Started:
    """The command, and what happens to it a while after it has made the folder of runs."""
    here = folder / "job"
    runs = here / "runs"
    write(here, Plan(steps=drawn.steps))
    with Terminal(_command(CLASSES[drawn.job], here, drawn.steps), cwd=here, columns=400) as terminal:
        wait_until(runs.exists, deadline_s=_END_S, what="the folder of runs")
        time.sleep(drawn.step * _STEP_S)
        if what == "fill disk":
            (here / "disk-is-full").touch()
        elif what == "remove runs":
            shutil.rmtree(runs, ignore_errors=True)
            shutil.rmtree(runs, ignore_errors=True)  # something may have come meanwhile
        else:
            _close(terminal)
        code = terminal.wait(_END_S)
    end_s = time.monotonic() + scale_timeout(_LEFT_S)
    while (left := processes.find_marked(mark)) and time.monotonic() < end_s:
        time.sleep(0.05)
    hidden = [path.name for path in runs.glob(".*")]
    output = terminal.output.decode(errors="replace")
    return Started(
        code, output, next(iter(list_folder(runs)), None), [*map(processes.process_text, left), *hidden]
    )


def _command(job: Class, here: Path, steps: int) -> list[str]:
    options = ["--runs", str(here / "runs")]
    if job.is_script:
        return [*RANKDECK, "run", *options, "--nproc-per-node", str(job.processes), str(here / "train.py")]
    config = from_dict(tables(job, Plan(steps=steps)), folder=here)
    (here / "job.toml").write_text(config.to_toml(), encoding="utf-8")
    return [*RANKDECK, "train", str(here / "job.toml"), *options]


def _close(terminal: Terminal) -> None:
    """As a window that is closed: its processes get SIGHUP, and nobody reads what they write."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, terminal.handle)
    os.close(null)
