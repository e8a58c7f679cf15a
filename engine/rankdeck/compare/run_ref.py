"""RUN and RUN@ATTEMPT: which run a person means, and which part of it.

`last@0` is attempt 0 of the newest run alone: its own steps and its own figures, as if nothing had gone on
from it. So a run is compared with itself before and after a resume. A run whose name holds an @ is still
found by that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.base.phrases import phrase
from rankdeck.run_dir import RunDir, find_run, parse_attempt

MIN_RUNS, MAX_RUNS = 2, 8
"""More than eight can neither be told apart by their dashes nor read side by side."""


class RunRef(NamedTuple):
    """A run as it is now, or one attempt of it alone."""

    path: Path
    attempt: int | None = None

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.path)

    def __str__(self) -> str:
        return str(self.path) if self.attempt is None else f"{self.path}@{self.attempt}"


def find_run_ref(text: str, folder: Path | None = None) -> RunRef:
    """What `text` names, as `find_run` finds runs.

    Raises:
        RunNotFoundError: no run, or several, are called so.
        ConfigError: the run has no such attempt.
    """
    name, at, number = text.rpartition("@")
    try:
        return RunRef(find_run(text, folder).path)
    except RunNotFoundError as error:
        if not (at and name and _is_attempt_number(number)) or error.code == "ambiguous-run":
            raise
    run = find_run(name, folder)
    check_attempt(run, int(number))
    return RunRef(run.path, int(number))


def parse_run_ref(text: str) -> RunRef:
    """The opposite of `str`, of a path that is known to be one: nothing is looked up."""
    name, at, number = text.rpartition("@")
    is_attempt = bool(at and _is_attempt_number(number)) and not Path(text).exists()
    return RunRef(Path(name), int(number)) if is_attempt else RunRef(Path(text))


def _is_attempt_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 100


def parse_run_refs(saved: object) -> list[RunRef]:
    """Runs as they were written down by `str`; what is none is left out."""
    return (
        [parse_run_ref(one) for one in saved if isinstance(one, str) and one]
        if isinstance(saved, list)
        else []
    )


def list_attempts(run: RunDir) -> list[int]:
    """The attempts that have told anything."""
    return sorted({parse_attempt(path.name) for path in run.events_folder.glob("*.jsonl")})


def check_attempt(run: RunDir, attempt: int) -> None:
    """Raises: ConfigError where the run has no such attempt."""
    known = list_attempts(run)
    if attempt in known:
        return
    if len(known) > 1:
        before = ", ".join(map(str, known[:-1]))
        advice = phrase("It has the attempts {before} and {last}.", before=before, last=known[-1])
    elif known:
        advice = phrase(
            "It was never resumed: {run}@{attempt} is the same as {run}.", run=run.name, attempt=known[0]
        )
    else:
        advice = phrase("It has told nothing yet.")
    message = phrase("{run} has no attempt {attempt}.", run=run.name, attempt=attempt)
    raise ConfigError(message, code="no-attempt", advice=advice)


def check_run_count(runs: list[RunRef]) -> None:
    """Raises: ConfigError where these are too few or too many, or one is named twice."""
    twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
    if twice is not None:
        raise ConfigError(
            phrase("{run} is named twice.", run=twice.run_dir.name),
            code="same-run",
            advice=phrase("Name another run, or two of its attempts: RUN@0 RUN@1."),
        )
    if len(runs) < MIN_RUNS:
        raise ConfigError(
            phrase("One run cannot be compared with itself."),
            code="too-few-runs",
            advice=phrase(
                "Name {least} to {most} runs. All of them: rankdeck runs.", least=MIN_RUNS, most=MAX_RUNS
            ),
        )
    if len(runs) > MAX_RUNS:
        raise ConfigError(
            phrase("These are {count} runs; at most {most} can be compared.", count=len(runs), most=MAX_RUNS),
            code="too-many-runs",
            advice=phrase("Leave some out: more cannot be told apart."),
        )
