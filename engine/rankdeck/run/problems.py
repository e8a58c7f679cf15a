"""Describe failed runs that did not report a cause, and events that could not be read."""

from __future__ import annotations

import os
import signal
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankdeck import events
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.run_dir import LineCounts, RunDir, events_from_end

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig


def lost_problem(run: RunDir) -> Problem:
    """Return the problem of a run that has no readable exit record, and whose guard no longer runs."""
    if not os.path.lexists(run.path):
        return Problem(
            "removed",
            phrase("The run ended because its folder was removed: {folder}.", folder=run.path),
            path=str(run.path),
            advice=phrase(
                "All files of the run were removed with its folder. Start the run again, and keep "
                "the folder until the run ends."
            ),
        )
    last_word = run.path / "end.json"
    return Problem(
        "lost",
        phrase(
            "The run's guard process has ended, and its exit record cannot be read: {file}.",
            file=last_word,
        )
        if os.path.lexists(last_word)
        else phrase(
            "The run was killed from outside: its guard process ended without writing an exit record."
        ),
        path=str(run.path),
        advice=phrase(
            "The output that the ranks wrote before the run ended is in {folder}.", folder=run.logs_folder
        ),
    )


def failed_problem(run: RunDir) -> Problem:
    """Return the problem of a failed run whose ranks reported no problem."""
    end = run.exit_record()
    unsaid = phrase("The run failed without an error message.")
    reason = (end.reason if end else None) or _status_text(run) or unsaid
    advice = phrase("See the files in {folder}.", folder=run.logs_folder)
    return Problem("failed", reason, path=str(run.path), advice=advice)


def _status_text(run: RunDir) -> str | None:
    """Format the exit status of a user script; None if it was not reported."""
    script = read_script_config(run)
    status = script_status_of(run) if script is not None else None
    return exit_status_text(script_name(script), status) if script is not None and status else None


def reading_problems(counts: LineCounts, refused: int = 0) -> list[Problem]:
    """Return a warning for events from a newer version and one for damaged events, if there are any.

    `refused` is the number of events that were read but rejected as invalid; they count as damaged.
    """
    problems = []
    if counts.newer:
        problems.append(
            Problem(
                "newer-events",
                phrase(
                    "Events written by a newer version of Rankdeck are not shown: {count}.",
                    count=counts.newer,
                ),
                advice=phrase("Update Rankdeck to see events of newer versions."),
                severity="warning",
            )
        )
    if counts.unreadable + refused:
        problems.append(
            Problem(
                "unreadable-events",
                phrase("Damaged events are not shown: {count}.", count=counts.unreadable + refused),
                advice=phrase("Check the disk, and whether another program writes to the events folder."),
                severity="warning",
            )
        )
    return problems


# Texts about a user script: its name, and how it ended.


def read_script_config(run: RunDir) -> ScriptConfig | None:
    """Return a run's script configuration; None if the run has a training configuration, or if the file is
    damaged."""
    try:
        return run.script()
    except ConfigError:
        return None


def is_lightly_observed(run: RunDir) -> bool:
    """Check whether the run is a script under light or full observation, in which not every check runs
    at every step."""
    config = read_script_config(run)
    return config is not None and config.script.observe in ("light", "full")


def script_name(config: ScriptConfig) -> str:
    """Return the script's display name: its file name, module or program."""
    script = config.script
    return script.run if script.kind == "module" else PurePath(script.folder, script.run).name


def exit_status_text(name: str, status: int) -> Phrase:
    """Format an exit status: 'train.py exited with status 3.'"""
    try:
        # Shells report 128 + n for a process that signal n ended; not every such number is a signal.
        ended_by = signal.Signals(status - 128).name if status > 128 else ""
    except ValueError:
        ended_by = ""
    if not ended_by:
        return phrase("{name} exited with status {status}.", name=name, status=status)
    return phrase("{name} exited with status {status} ({signal}).", name=name, status=status, signal=ended_by)


def no_steps_text(*, has_started: bool, is_over: bool) -> Phrase:
    """Explain why a script's run has no recorded steps.

    `has_started` is true if any rank has reported its start, which a rank does only after its first step.
    """
    if has_started and is_over:
        return phrase("it ended before its first steps were recorded")
    return (
        phrase("no optimizer step was observed")
        if is_over
        else phrase("no optimizer step has been observed yet")
    )


def script_status_of(run: RunDir) -> int | None:
    """Return the exit status of the latest attempt's script; None if not reported (yet)."""
    newest_first = events_from_end(run.events_folder / f"supervisor.{run.next_attempt() - 1}.jsonl")
    end = next((event for event in newest_first if isinstance(event, events.RunEnded)), None)
    return None if end is None else end.script_status
