"""Carry out a start that the queue's dispatcher has recorded. Read rankdeck/queue/starts.py first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.files import lease_path
from rankdeck.base.parsing import parse_toml
from rankdeck.base.phrases import phrase
from rankdeck.config import load
from rankdeck.config.script import load_script
from rankdeck.launch.environment_facts import git_commit
from rankdeck.launch.guard_launcher import NotResumableError
from rankdeck.launch.start import QueuedStart, resume_run, start_run, start_script
from rankdeck.queue.entry import Entry, Start
from rankdeck.queue.spool import Spool
from rankdeck.run_dir import RunDir

_TAKEN_CODES = ("device-busy",)
"""Codes of errors after which the start is repeated: another run has taken a device in the meantime."""


def start_queued(spool: Spool, number: int, started: float) -> int:
    """Start the run of an entry's last start, detached from this process, and return the exit code.

    `started`: when this process started (Unix seconds). An error is recorded in the start.
    """
    entry = spool.entry(number)
    if entry is None or entry.last_start is None or entry.is_removed:
        return 2
    try:
        _start(spool, entry, entry.last_start, started)
    except RankdeckError as error:
        is_taken = any(problem.code in _TAKEN_CODES for problem in error.problems)
        _record_error(spool, number, error.problems, "not-started" if is_taken else "failed")
        return error.exit_code
    return 0


def _start(spool: Spool, entry: Entry, start: Start, started: float) -> None:
    is_cpu = entry.need.kind == "cpu"
    queued = QueuedStart(
        facts={"entry": entry.number, "key": entry.key, "start": len(entry.starts), "devices": start.devices},
        leases=[lease_path(name) for name in start.devices] if is_cpu else [],
        warnings=_changes_since(entry, spool.config_file(entry.number)),
        record_run=lambda path, attempt: _record_run(spool, entry.number, path, attempt),
    )
    devices = f"cpu:{entry.need.num_devices}" if is_cpu else f"gpu:{','.join(start.devices)}"
    command_line = ["rankdeck", *entry.command]
    if entry.kind == "script":
        script = load_script(spool.config_file(entry.number))
        assert script is not None
        # A script that gets CPU slots keeps its own selection: "cpu:2" would also set its number of ranks.
        chosen = script if is_cpu else script.model_copy(update={"devices": devices})
        start_script(
            chosen,
            runs=Path(entry.runs),
            detach=True,
            command_line=command_line,
            started=started,
            queued=queued,
        )
        return
    if (run := _run_to_resume(entry)) is not None:
        try:
            config = load(run.config_to_resume, devices=devices)
            resume_run(run, config, detach=True, command_line=command_line, started=started, queued=queued)
            return
        except NotResumableError:
            pass  # without a complete checkpoint, it starts from the beginning, as a new run
    config = load(spool.config_file(entry.number), devices=devices)
    start_run(
        config,
        runs=Path(entry.runs),
        detach=True,
        command_line=command_line,
        started=started,
        queued=queued,
    )


def _run_to_resume(entry: Entry) -> RunDir | None:
    """Return the run of the last start that had one, if the run still exists."""
    path = next((Path(start.run) for start in reversed(entry.starts[:-1]) if start.run), None)
    return RunDir(path) if path is not None and path.is_dir() else None


def _changes_since(entry: Entry, file: Path) -> list[Problem]:
    """Return a warning if the code that the run executes has changed since the entry was added."""
    if entry.commit is None:
        return []
    tables = parse_toml(file.read_text("utf-8"))
    folder = tables.get("script", tables)["folder"]
    commit = git_commit(folder, reads_files=True)
    if commit == entry.commit:
        return []
    message = phrase(
        "The code in {folder} has changed since the run was queued: it was at commit {before} and is at "
        "{now}.",
        folder=folder,
        before=entry.commit[:12],
        now="-" if commit is None else commit[:12],
    )
    advice = phrase("If the change was not meant for this run, stop the run and restore the commit.")
    return [Problem("code-changed", message, advice=advice, severity="warning")]


def _record_run(spool: Spool, number: int, path: Path, attempt: int) -> None:
    def record(entry: Entry) -> None:
        start = entry.last_start
        if start is not None:
            start.run, start.attempt = str(path), attempt

    spool.update(number, record)


def _record_error(spool: Spool, number: int, problems: Sequence[Problem], outcome: str) -> None:
    lines = [text for problem in problems for text in (problem.message, problem.advice) if text]

    def record(entry: Entry) -> None:
        start = entry.last_start
        if start is not None and not start.outcome:
            start.outcome, start.error, start.ended_at = outcome, "\n".join(map(str, lines)), time.time()

    spool.update(number, record)
