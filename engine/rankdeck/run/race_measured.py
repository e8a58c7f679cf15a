"""What an entry of a race came to, from the fold of its run."""

from __future__ import annotations

import math
import statistics

import numpy as np

from rankdeck.base.phrases import Said
from rankdeck.run.fold import Fold
from rankdeck.run.problems import failed_problem
from rankdeck.run.race import (
    COMPLETED,
    FAILED,
    RUNNING,
    STOPPED,
    Measured,
    Race,
    RaceEntry,
)
from rankdeck.run.summarising import problems_of
from rankdeck.run.verified import verified_text
from rankdeck.rundir import RunDir


def finish(race: Race, entry: RaceEntry, run: RunDir, fold: Fold, seconds: float) -> None:
    """The entry with what its run came to: figures where it completed, the cause where it failed."""
    outcome = run.outcome()
    states = {COMPLETED: COMPLETED, STOPPED: STOPPED, RUNNING: STOPPED}  # running: whoever raced has left it
    entry.state = states.get(outcome, FAILED)
    problems = problems_of(run, fold, outcome)
    told = [problem for problem in problems if problem.severity == "info"]
    entry.seen = {problem.code: problem.message for problem in told}
    entry.phrases |= {
        problem.message: Said(problem.templates["message"], problem.arguments.get("message", {}))
        for problem in told
        if "message" in problem.templates
    }
    if fold.verified is not None:
        said = verified_text(fold.verified)
        entry.verified, entry.verified_outcome = str(said), fold.verified.outcome
        entry.phrases |= {str(said): Said(said.template, said.plain_arguments())}
    if entry.state == COMPLETED:
        entry.measured = _measured(race, fold, seconds)
    elif entry.state == FAILED:
        errors = [problem for problem in problems if problem.severity == "error"]
        entry.problem = errors[0] if errors else failed_problem(run)


def _measured(race: Race, fold: Fold, seconds: float) -> Measured:
    steps = fold.column("step")
    late = steps > race.warm_up_steps
    times, samples = fold.column("step_s")[late], fold.column("samples")[late]
    losses: list[float | None] = [None] * race.steps
    for step, loss in zip(steps.astype(int).tolist(), fold.column("loss").tolist(), strict=True):
        if 1 <= step <= race.steps and math.isfinite(loss):
            losses[step - 1] = loss
    with_both = np.isfinite(times) & np.isfinite(samples) & (times > 0)
    rates = (samples[with_both] / times[with_both]).tolist()
    sent = [sum(by_name.values()) for by_name in fold.comm.values()]
    return Measured(
        step_s=times[np.isfinite(times)].tolist(),
        samples_per_s=statistics.median(rates) if rates else None,
        peak_bytes=[device.peak_bytes for device in fold.devices.values()],
        sent_bytes=sum(sent) if sent else None,
        losses=losses,
        seconds=seconds,
    )
