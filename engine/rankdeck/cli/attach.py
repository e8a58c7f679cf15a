"""`rankdeck watch` and `rankdeck stop`: for a run that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, find_race, find_run, is_script

if TYPE_CHECKING:
    from rankdeck.rundir import RaceDir

STOPPED_WITHIN_S = 30.0


def watch(name: RunName, as_json: AsJson = False) -> int:
    """Show a run as it goes on, or how it went. Ctrl-C leaves the run alone."""
    from rankdeck.cli.display import JsonLines
    from rankdeck.cli.follow import choose, follow
    from rankdeck.cli.summary import print_summary
    from rankdeck.run.summarising import summarise

    run = find_run(name)
    fold = follow(run, JsonLines() if as_json else choose(run))
    if not as_json:
        print_summary(summarise(run, fold), num_shown=len(fold.problems))
    return 0


def stop(
    name: RunName,
    now: Annotated[bool, typer.Option("--now", help="Do not let the step end first.")] = False,
    as_json: AsJson = False,
) -> int:
    """Stop a run or a race and everything that belongs to it."""
    from rankdeck.cli import staying
    from rankdeck.launch.control import request_stop, wait_ended

    race = find_race(name)
    if race is not None:
        return _stop_race(race, as_json)
    run = find_run(name)
    outcome = run.outcome()
    if outcome != "running":
        console.err().print(f"{run.name} is not running: {outcome}.")
        return 0
    request_stop(run, now=now)
    timeout_s = staying.STOPPED_WITHIN_S if is_script(run) else STOPPED_WITHIN_S
    if not wait_ended(run, timeout_s):
        raise MachineError(
            phrase("{run} has not stopped within {timeout_s:.0f} s.", run=run.name, timeout_s=timeout_s),
            code="not-stopped",
            advice=phrase("Try: rankdeck stop {run} --now", run=run.name),
        )
    return _say_outcome(run.name, run.outcome(), as_json)


def _say_outcome(name: str, outcome: str, as_json: bool) -> int:
    if as_json:
        console.as_json({"run": name, "outcome": outcome})
    else:
        console.out().print(f"{name}: {outcome}")
    return 0


def _stop_race(race: RaceDir, as_json: bool) -> int:
    from rankdeck.cli.race import stop_race
    from rankdeck.run.race import read_race

    if not race.is_alive():
        console.err().print(f"{race.name} is not running.")
        return 0
    if not stop_race(race, within_s=STOPPED_WITHIN_S):
        raise MachineError(
            phrase(
                "{race} has not stopped within {timeout_s:.0f} s.", race=race.name, timeout_s=STOPPED_WITHIN_S
            ),
            code="not-stopped",
            advice=phrase("The process id of who races is in {file}.", file=race.lock),
        )
    found = read_race(race)
    return _say_outcome(race.name, "stopped" if found is None else found.outcome, as_json)
