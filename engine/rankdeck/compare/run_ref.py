"""Resolve RUN and RUN@ATTEMPT to the run that the user means, and to an attempt of that run.

`last@0` means attempt 0 of the newest run, with only that attempt's steps and metrics, as if no other attempt
had followed. This makes it possible to compare a run with itself before and after a resume. A run whose name
contains an @ is still found by that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.base.phrases import phrase
from rankdeck.run_dir import RunDir, find_run, parse_attempt

MIN_RUNS, MAX_RUNS = 2, 8
"""Limits on the number of runs to compare. The lines of more than eight runs could not be distinguished by
dash pattern, nor could more than eight columns be read side by side."""


class RunRef(NamedTuple):
    """A run in its current state, or a single attempt of the run."""

    path: Path
    attempt: int | None = None

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.path)

    def __str__(self) -> str:
        return str(self.path) if self.attempt is None else f"{self.path}@{self.attempt}"


def find_run_ref(text: str, folder: Path | None = None) -> RunRef:
    """Return the run or attempt that `text` names; the run's name is resolved with `find_run`.

    Raises:
        RunNotFoundError: no run, or more than one, has that name.
        ConfigError: the run has no such attempt.
    """
    name, at, number = text.rpartition("@")
    try:
        # The whole text first, as the name of a run may contain an @.
        return RunRef(find_run(text, folder).path)
    except RunNotFoundError as error:
        if not (at and name and _is_attempt_number(number)) or error.code == "ambiguous-run":
            raise
    run = find_run(name, folder)
    check_attempt(run, int(number))
    return RunRef(run.path, int(number))


def parse_run_ref(text: str) -> RunRef:
    """Parse the result of `str(RunRef)`; it contains the run's path, so no search for the run is needed."""
    name, at, number = text.rpartition("@")
    # The name of a run's folder may itself end in an @ and a number.
    is_attempt = bool(at and _is_attempt_number(number)) and not Path(text).exists()
    return RunRef(Path(name), int(number)) if is_attempt else RunRef(Path(text))


def _is_attempt_number(text: str) -> bool:
    # int() raises an error for numbers with thousands of digits.
    return text.isdecimal() and len(text) < 100


def parse_run_refs(saved: object) -> list[RunRef]:
    """Parse a saved list of run references; invalid entries are skipped."""
    return (
        [parse_run_ref(text) for text in saved if isinstance(text, str) and text]
        if isinstance(saved, list)
        else []
    )


def list_attempts(run: RunDir) -> list[int]:
    """Return the attempts that have event files."""
    return sorted({parse_attempt(path.name) for path in run.events_folder.glob("*.jsonl")})


def check_attempt(run: RunDir, attempt: int) -> None:
    """Check that the run has this attempt.

    Raises:
        ConfigError: the run has no attempt with this number.
    """
    attempts = list_attempts(run)
    if attempt in attempts:
        return
    if len(attempts) > 1:
        before = ", ".join(map(str, attempts[:-1]))
        advice = phrase("The run's attempts are {before} and {last}.", before=before, last=attempts[-1])
    elif attempts:
        advice = phrase(
            "The run was never resumed: {run}@{attempt} is the same as {run}.",
            run=run.name,
            attempt=attempts[0],
        )
    else:
        advice = phrase("The run has not reported anything yet.")
    message = phrase("{run} has no attempt {attempt}.", run=run.name, attempt=attempt)
    raise ConfigError(message, code="no-attempt", advice=advice)


def check_run_count(runs: list[RunRef]) -> None:
    """Check the number of runs to compare.

    Raises:
        ConfigError: there are too few or too many runs, or the same run is named twice.
    """
    twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
    if twice is not None:
        raise ConfigError(
            phrase("{run} is listed twice.", run=twice.run_dir.name),
            code="same-run",
            advice=phrase("Specify another run, or two attempts of this run: RUN@0 RUN@1."),
        )
    if len(runs) < MIN_RUNS:
        raise ConfigError(
            phrase("A comparison needs more than one run."),
            code="too-few-runs",
            advice=phrase(
                "Specify {least} to {most} runs. To list all runs, use: rankdeck runs.",
                least=MIN_RUNS,
                most=MAX_RUNS,
            ),
        )
    if len(runs) > MAX_RUNS:
        raise ConfigError(
            phrase(
                "{count} runs are listed, but at most {most} can be compared.", count=len(runs), most=MAX_RUNS
            ),
            code="too-many-runs",
            advice=phrase("Leave some of the runs out: so many would be hard to distinguish."),
        )
