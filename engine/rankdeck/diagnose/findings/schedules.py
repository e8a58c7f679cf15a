"""Rules about a learning rate that is 0, and about schedulers that step too often or too rarely."""

from __future__ import annotations

import math

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, number_of
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding

ZERO_RATES, ZERO_RATES_SHARE = 50, 0.1
"""Minimum number and share of steps with a rate of zero for a problem to be reported. A schedule can start
and end at zero, but for less than a tenth of a run."""


def _scheduler_name(event: events.Anomaly) -> str:
    return event.names[0] if event.names else phrase("the scheduler")


def _scheduler_steps_often(event: events.Anomaly) -> Report:
    ratio, length = number_of(event, "ratio"), number_of(event, "length") or number_of(event, "counter")
    name = _scheduler_name(event)
    if event.numbers.get("accelerate"):
        advice = phrase(
            "Multiply the schedule's length by accelerator.num_processes: after accelerator.prepare, a "
            "scheduler steps once per process. Or do not pass the scheduler to prepare."
        )
    else:
        advice = phrase(
            "Call scheduler.step() once after each optimizer.step() (not in each micro-batch, nor in two "
            "places), or make the schedule {ratio} times as long.",
            ratio=ratio,
        )
    return (
        phrase(
            "{name} steps {ratio} times per optimizer step: the learning rate has been 0 since step {step}.",
            name=name,
            ratio=ratio,
            step=event.step,
        )
        if event.numbers.get("zero")
        else phrase(
            "{name} steps {ratio} times per optimizer step: its schedule was over at step {step}.",
            name=name,
            ratio=ratio,
            step=event.step,
        ),
        phrase(
            "{name} has {length} steps and was over after {done} steps of the optimizer; training "
            "continued to at least step {steps}",
            name=name,
            length=length,
            done=event.step - 1,
            steps=number_of(event, "steps"),
        ),
        advice,
    )


def _rate_zero(event: events.Anomaly) -> Report:
    if event.numbers.get("never"):
        return _rate_never_above_zero(event)
    length, counter = number_of(event, "length"), number_of(event, "counter")
    steps = number_of(event, "steps")
    name = _scheduler_name(event)
    if not counter:
        evidence = phrase(
            "0, or less than a millionth of its maximum, in all parameter groups from step {step} to {steps}",
            step=event.step,
            steps=steps,
        )
    elif length:
        evidence = phrase(
            "{name} has {length} steps and was over after {counter}; training continued to at least step "
            "{steps}",
            name=name,
            length=length,
            counter=counter,
            steps=steps,
        )
    else:
        evidence = phrase(
            "{name} reached 0 after {counter} of its steps; training continued to at least step {steps}",
            name=name,
            counter=counter,
            steps=steps,
        )
    return (
        phrase(
            "The learning rate has been 0 since step {step}: steps no longer change the parameters.",
            step=event.step,
        ),
        evidence,
        phrase(
            "Make the schedule as long as the run: epochs * len(loader) steps, divided by the number of "
            "micro-batches per step. If its length is in epochs, call scheduler.step() once per epoch."
        ),
    )


def _rate_never_above_zero(event: events.Anomaly) -> Report:
    return (
        phrase("The learning rate is 0 in every step: steps do not change the parameters."),
        phrase(
            "in all parameter groups from step {step} to {steps}",
            step=event.step,
            steps=number_of(event, "steps"),
        ),
        phrase(
            "Check the lr that the optimizer gets, and the factor of its schedule: step // warmup_steps is 0 "
            "during the whole warm-up, step / warmup_steps is not."
        ),
    )


def find_learning_rate_zero(context: RuleContext) -> Problem | None:
    """Find a learning rate of zero in the newest steps, which therefore changed no weights."""
    if (problem := _RATE_ZERO.check(context)) is not None:
        return problem
    lead = context.state.script.lead_observation
    # Only the first group's rate is recorded.
    if context.attempt is None or (lead is not None and len(lead.parameter_groups) > 1):
        return None
    steps, rates = context.attempt.table.column("step"), context.attempt.table.column("lr")
    num = max(ZERO_RATES, math.ceil(ZERO_RATES_SHARE * len(context.attempt.table)))
    newest, oldest = rates[-num:], rates[:num]
    known_rates = newest[newest == newest]  # without NaN: a script reports rates in sampled steps only
    if len(newest) < num or len(known_rates) < ZERO_RATES / 5 or known_rates.any():
        return None
    # The observer itself reports a script's rate that reached 0.
    if context.is_observed and oldest[oldest == oldest].any():
        return None
    return make_finding(
        "learning-rate-zero",
        phrase("The learning rate is 0: steps do not change the parameters."),
        Evidence(
            phrase(
                "in every step from {first} to {last} whose learning rate is known",
                first=int(steps[-num]),
                last=int(steps[-1]),
            )
        ),
        advice=phrase("Make the schedule as long as the run, or let it end above zero.")
        if not context.is_observed
        else phrase(
            "Make the schedule as long as the run (the scheduler counts its own step() calls, not "
            "epochs), or let it end above zero."
        ),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    ("scheduler-steps-often", ("scheduler-steps-often",), _scheduler_steps_often),
    ("learning-rate-zero", ("rate-zero",), _rate_zero),
)
_STEPS_OFTEN, _RATE_ZERO = anomaly_rules(_ROWS)

RULES = (
    _STEPS_OFTEN,
    FindingRule("learning-rate-zero", find_learning_rate_zero, unless=("scheduler-steps-often",)),
)
