"""What is said of a run that ended badly and did not say why, and of events that could not be read."""

from __future__ import annotations

import os

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.run.script_words import name_of, script_of, status_in_words, status_of
from rankdeck.rundir import LineCounts, RunDir


def lost_problem(run: RunDir) -> Problem:
    """What is said of a run that has no last word, or none that can be read, and no guard."""
    if not os.path.lexists(run.path):
        return Problem(
            "removed",
            phrase("The run ended because its folder was removed: {folder}.", folder=run.path),
            path=str(run.path),
            advice=phrase(
                "What it wrote went with it. Start it again, and leave its folder until it is over."
            ),
        )
    last_word = run.path / "end.json"
    return Problem(
        "lost",
        phrase(
            "Nothing holds the run's lock, and its last word cannot be read: {file}.",
            file=last_word,
        )
        if os.path.lexists(last_word)
        else phrase("The run was killed from outside: nothing holds its lock and it left no last word."),
        path=str(run.path),
        advice=phrase("What its ranks wrote until then is in {folder}.", folder=run.logs_folder),
    )


def failed_problem(run: RunDir) -> Problem:
    """What is said of a run that failed and whose ranks raised no problem."""
    end = run.end()
    unsaid = phrase("The run failed without saying why.")
    reason = (end.reason if end else None) or _status(run) or unsaid
    advice = phrase("See the files in {folder}.", folder=run.logs_folder)
    return Problem("failed", reason, path=str(run.path), advice=advice)


def _status(run: RunDir) -> str | None:
    """What a person's own script exited with, in words; None where nobody told."""
    script = script_of(run)
    status = status_of(run) if script is not None else None
    return status_in_words(name_of(script), status) if script is not None and status else None


def reading_problems(counts: LineCounts, refused: int = 0) -> list[Problem]:
    """One warning for each kind of event that could not be taken."""
    problems = []
    if counts.newer:
        problems.append(
            Problem(
                "newer-events",
                phrase(
                    "{count} events were written by a newer version of Rankdeck and are not shown.",
                    count=counts.newer,
                ),
                advice=phrase("Update Rankdeck to see them."),
                severity="warning",
            )
        )
    if counts.unreadable + refused:
        problems.append(
            Problem(
                "unreadable-events",
                phrase("{count} events are damaged and are not shown.", count=counts.unreadable + refused),
                advice=phrase("Look at the disk, and at who else writes into the folder of events."),
                severity="warning",
            )
        )
    return problems
