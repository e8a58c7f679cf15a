"""RUN and RUN@ATTEMPT: which run a person means, and which part of it.

`last@0` is attempt 0 of the newest run alone: its own steps and its own figures, as if nothing had gone on
from it. So a run is compared with itself before and after a resume. A run whose name holds an @ is still
found by that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.rundir import RunDir, attempt_of, find_run

LEAST_RUNS, MOST_RUNS = 2, 8
"""More than eight can neither be told apart by their dashes nor read side by side."""


class RunAt(NamedTuple):
    """A run as it is now, or one attempt of it alone."""

    path: Path
    attempt: int | None = None

    @property
    def run(self) -> RunDir:
        return RunDir(self.path)

    def __str__(self) -> str:
        return str(self.path) if self.attempt is None else f"{self.path}@{self.attempt}"


def find(text: str, folder: Path | None = None) -> RunAt:
    """What `text` names, as `find_run` finds runs.

    Raises:
        RunNotFoundError: no run, or several, are called so.
        ConfigError: the run has no such attempt.
    """
    name, at, number = text.rpartition("@")
    try:
        return RunAt(find_run(text, folder).path)
    except RunNotFoundError as error:
        if not (at and name and number.isdecimal()) or error.code == "ambiguous-run":
            raise
    run = find_run(name, folder)
    check_attempt(run, int(number))
    return RunAt(run.path, int(number))


def parse(text: str) -> RunAt:
    """The opposite of `str`, of a path that is known to be one: nothing is looked up."""
    name, at, number = text.rpartition("@")
    is_attempt = bool(at and number.isdecimal()) and not Path(text).exists()
    return RunAt(Path(name), int(number)) if is_attempt else RunAt(Path(text))


def ats_of(saved: object) -> list[RunAt]:
    """Runs as they were written down by `str`; what is none is left out."""
    return [parse(one) for one in saved if isinstance(one, str) and one] if isinstance(saved, list) else []


def attempts_of(run: RunDir) -> list[int]:
    """The attempts that have told anything."""
    return sorted({attempt_of(path.name) for path in run.events_folder.glob("*.jsonl")})


def check_attempt(run: RunDir, attempt: int) -> None:
    """Raises: ConfigError where the run has no such attempt."""
    known = attempts_of(run)
    if attempt in known:
        return
    if len(known) > 1:
        numbers = f"{', '.join(map(str, known[:-1]))} and {known[-1]}"
        advice = f"It has the attempts {numbers}."
    else:
        only = f"{run.name}@{known[0]} is the same as {run.name}." if known else "It has told nothing yet."
        advice = f"It was never resumed: {only}" if known else only
    raise ConfigError(f"{run.name} has no attempt {attempt}.", code="no-attempt", advice=advice)


def check_number(runs: list[RunAt]) -> None:
    """Raises: ConfigError where these are too few or too many, or one is named twice."""
    twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
    if twice is not None:
        raise ConfigError(
            f"{twice.run.name} is named twice.",
            code="same-run",
            advice="Name another run, or two of its attempts: RUN@0 RUN@1.",
        )
    if len(runs) < LEAST_RUNS:
        raise ConfigError(
            "One run cannot be compared with itself.",
            code="too-few-runs",
            advice=f"Name {LEAST_RUNS} to {MOST_RUNS} runs. All of them: rankdeck runs.",
        )
    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"These are {len(runs)} runs; at most {MOST_RUNS} can be compared.",
            code="too-many-runs",
            advice="Leave some out: more cannot be told apart.",
        )
