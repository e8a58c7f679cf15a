"""Runs of small scripts of a person's own, most of them standard library only."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path
from typing import Any

from rankdeck.config.script import ScriptConfig, ScriptTable
from rankdeck.launch.start import start_script
from rankdeck.launch.streams import AttachedStreams
from rankdeck.run_dir import ExitRecord, RunDir, find_run
from tests.helpers import launching
from tests.helpers.script_python import PYTHON


def script_config(job_folder: Path, source: str, *, devices: str | None = None, **table: Any) -> ScriptConfig:
    """A script of this source in `folder`, called train.py; `table` are entries of [script]."""
    job_folder.mkdir(parents=True, exist_ok=True)
    (job_folder / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
    defaults = {"run": "train.py", "folder": str(job_folder), "python": PYTHON, "observe": "none"}
    return ScriptConfig(name="train.py", script=ScriptTable(**{**defaults, **table}), devices=devices)


def launch_script(
    job_folder: Path,
    source: str,
    *,
    attached: AttachedStreams | None = None,
    detach: bool = True,
    devices: str | None = None,
    **table: Any,
) -> RunDir:
    """Such a run that has begun, in `folder`/runs."""
    return start_script(
        script_config(job_folder, source, devices=devices, **table),
        runs=job_folder / "runs",
        detach=detach,
        command_line=["rankdeck", "run", "train.py"],
        started=time.time(),
        attached=attached,
    )


def last_run() -> RunDir:
    """The newest run of the commands that a test has started."""
    return find_run("last", Path(os.environ["RANKDECK_RUNS"]))


def log(run: RunDir, rank: int = 0, kind: str = "out", attempt: int = 0) -> bytes:
    """What a rank has written so far."""
    path = run.logs_folder / f"rank-{rank}.{attempt}.{kind}"
    return path.read_bytes() if path.exists() else b""


def wait_for_script_end(run: RunDir) -> tuple[ExitRecord, int | None]:
    """The guard's last word and the script's own status."""
    end = launching.wait_for_exit_record(run)
    launching.wait_until_gone(run)
    statuses = [
        event.script_status for _, event in launching.all_events(run) if hasattr(event, "script_status")
    ]
    return end, statuses[-1]


def read_all(handle: int) -> bytes:
    """Until every process has closed the other end."""
    data = b""
    while True:
        try:
            chunk = os.read(handle, 65536)
        except OSError:  # a terminal whose other end is gone
            return data
        if not chunk:
            return data
        data += chunk
