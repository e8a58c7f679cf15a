"""Findings: signs of training problems in a run's recorded metrics.

    run state (run/run_state.py) -> RuleContext -> each rule of the table
        -> problems of severity "warning", causes first

A rule is a row: a code, and a small function that inspects a `RuleContext` and returns one problem or None.
The problem has evidence and a fix (as text, and as changes if an option can fix it). Every threshold is a
named constant with its reason. A rule reports nothing while there is too little data, or if the metric could
have another explanation. Causes of failure are not here: see exceptions.py and cause.py.

rule_context.py  what rules inspect
drift.py         ranks whose weights differ
collective_calls.py  ranks that have left out or added a collective
parameters.py    gradients, optimizers and updates of a script's parameters
script_checks.py order of calls, modes, schedulers and loaded weights of a script
growth.py        what grows with every step of a script
anomaly_rules.py makes rules from the anomalies that a script's ranks reported
not_finite.py    a loss that becomes NaN or infinite
resumed.py       scripts that resume training from a file
schedules.py     learning rates of 0, and schedulers that step too often
learning.py      losses and gradients
sample_shares.py how the ranks divide the samples among themselves
batch_checks.py  labels and repeated samples in a script's batches
samples.py       the order of samples, and how many are processed at once
machine.py       cores, memory, and a device that uses more memory than the others
waits.py         what steps wait for
pace.py          a slow rank, a pipeline bubble, slow checkpoint saves, idle GPUs
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import (
    batch_checks,
    collective_calls,
    drift,
    growth,
    learning,
    machine,
    not_finite,
    pace,
    parameters,
    resumed,
    sample_shares,
    samples,
    schedules,
    script_checks,
    waits,
)
from rankdeck.diagnose.findings.machine import IMBALANCE_CODE, ImbalanceAlert
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext
from rankdeck.diagnose.fixes import accepts_changes, config_or_none

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.run.run_state import RunState
    from rankdeck.run_dir import RunDir

__all__ = [
    "FINDING_RULES",
    "FindingRule",
    "FindingTracker",
    "RuleContext",
    "check_rules",
    "problems_and_findings",
    "run_findings",
]  # fmt: skip

FINDING_RULES: tuple[FindingRule, ...] = (
    *drift.RULES,
    *collective_calls.RULES,
    *parameters.RULES,
    *script_checks.RULES,
    *growth.RULES,
    *schedules.RULES,
    *resumed.RULES,
    *not_finite.RULES,
    *learning.RULES,
    *sample_shares.RULES,
    *batch_checks.RULES,
    *samples.RULES,
    FindingRule(IMBALANCE_CODE, lambda rule_context: ImbalanceAlert().check(rule_context)),
    *machine.RULES,
    *pace.STRAGGLER_RULES,
    *waits.RULES,
    *pace.RULES,
)
"""Rules in order: problems that make training useless come before those that make it slow, and causes before
their possible consequences."""
REFRESH_S = 60.0
"""Seconds for which a finding's text stays the same while a run is followed, although the run's metrics
change all the time."""
_SEVERITY_ORDER = {"error": 0, "warning": 1}
"""Sort position by severity; severities without an entry come last."""


def problems_and_findings(run: RunDir, state: RunState) -> list[Problem]:
    """Return the problems that a run reported and the findings in its metrics, errors first.

    `state` must include curves.
    """
    from rankdeck.run.summary_builder import problems_of

    outcome = run.outcome()
    problems = problems_of(run, state, outcome) + run_findings(run, state, is_over=outcome != "running")
    return sorted(problems, key=lambda problem: _SEVERITY_ORDER.get(problem.severity, 2))


def run_findings(run: RunDir, state: RunState, *, is_over: bool) -> list[Problem]:
    """Return the findings in a run's metrics. `state` must include curves."""
    return check_rules(RuleContext(state, config_or_none(run), is_over=is_over))


def check_rules(context: RuleContext) -> list[Problem]:
    """Return all findings of a run."""
    return FindingTracker().check(context)


class FindingTracker:
    """The findings of one followed run. While a finding persists, its text stays the same for `REFRESH_S`."""

    def __init__(
        self, rules: Sequence[FindingRule] = FINDING_RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._reported: dict[object, tuple[Problem, float]] = {}
        self._config: RunConfig | None = None
        self._was_over = False
        self._accepted_changes: dict[str, bool] = {}

    def check(self, context: RuleContext) -> list[Problem]:
        """Return the current findings.

        A call takes less than a millisecond, except when a fix appears for the first time.
        """
        # A resume may change the configuration, and with it which changes it accepts.
        if context.config is not self._config:
            self._config, self._accepted_changes = context.config, {}
        if context.is_over != self._was_over:
            self._was_over, self._reported = context.is_over, {}
        self._reported = {
            _problem_key(problem): self._keep_text(problem) for problem in self._check_rules(context)
        }
        return [problem for problem, _ in self._reported.values()]

    def _check_rules(self, context: RuleContext) -> Iterator[Problem]:
        codes: set[str] = set()
        for rule in self._rules:
            problem = None if codes.intersection(rule.unless) else rule.check(context)
            if problem is not None:
                codes.add(rule.code)
                yield problem if self._accepts(problem.cure) else problem.replace_fields(cure={})

    def _accepts(self, changes: Mapping[str, Any]) -> bool:
        """Check whether the configuration would still be valid with the changes of a fix."""
        if not changes or self._config is None:
            return not changes
        key = json.dumps(changes, sort_keys=True)
        if key not in self._accepted_changes:
            self._accepted_changes[key] = accepts_changes(self._config, changes)
        return self._accepted_changes[key]

    def _keep_text(self, problem: Problem) -> tuple[Problem, float]:
        reported, now = self._reported.get(_problem_key(problem)), self._clock()
        return reported if reported is not None and now - reported[1] < REFRESH_S else (problem, now)


def _problem_key(problem: Problem) -> object:
    # Not the message, whose numbers change all the time.
    return problem.code, problem.rank, tuple(problem.cure.items())
