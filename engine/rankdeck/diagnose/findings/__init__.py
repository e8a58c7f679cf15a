"""Findings: a run that trains, or trained, but not as it should, told from the figures that it recorded.

    fold (run/run_state.py) -> SeenRun -> each rule of the table
        -> problems of severity "warning", cause first

A rule is a row: a code, and a small function that looks at a `SeenRun` and gives one problem, with what was
seen as evidence and a fix (in words, and as changes where an option does it); or None. Every threshold is a
named constant with its reason. A rule is silent while too little is measured, and where the figure could be
something else. What makes a run fail is not here: exceptions.py and cause.py say that.

rule_context.py       what rules look at
learning.py   losses, gradients, learning rates
samples.py    which samples each rank sees
machine.py    cores, memory, and a device that holds more than the others
waits.py      what steps wait for
pace.py       a slow rank, a bubble, saves, idle GPUs
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import learning, machine, pace, samples, waits
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
    *learning.RULES,
    *samples.RULES,
    FindingRule(IMBALANCE_CODE, lambda seen: ImbalanceAlert().check(seen)),
    *machine.RULES,
    *pace.STRAGGLER_RULES,
    *waits.RULES,
    *pace.RULES,
)
"""What makes learning worthless first, then what makes it slow. A rule stands behind those that it is a
consequence of."""
REFRESH_S = 60.0
"""How long a finding of a run that is followed keeps its words: its figures change all the time."""
_SEVERITY_ORDER = {"error": 0, "warning": 1}
"""By severity, where a problem stands; all else is behind."""


def problems_and_findings(run: RunDir, fold: RunState) -> list[Problem]:
    """What a run says of itself and what its figures say, errors first. `fold` has curves."""
    from rankdeck.run.summary_builder import problems_of

    outcome = run.outcome()
    found = problems_of(run, fold, outcome) + run_findings(run, fold, is_over=outcome != "running")
    return sorted(found, key=lambda problem: _SEVERITY_ORDER.get(problem.severity, 2))


def run_findings(run: RunDir, fold: RunState, *, is_over: bool) -> list[Problem]:
    """What a run's figures say. `fold` has curves."""
    return check_rules(RuleContext(fold, config_or_none(run), is_over=is_over))


def check_rules(seen: RuleContext) -> list[Problem]:
    """What there is to say of a run."""
    return FindingTracker().check(seen)


class FindingTracker:
    """Of one run that is followed. What was said stays as it was said, for as long as it holds."""

    def __init__(
        self, rules: Sequence[FindingRule] = FINDING_RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._reported: dict[object, tuple[Problem, float]] = {}
        self._config: RunConfig | None = None
        self._was_over = False
        self._accepted_changes: dict[str, bool] = {}

    def check(self, seen: RuleContext) -> list[Problem]:
        """As it stands now. It costs less than a millisecond, but for a fix that it has not had before."""
        if seen.config is not self._config:
            self._config, self._accepted_changes = seen.config, {}
        if seen.is_over != self._was_over:
            self._was_over, self._reported = seen.is_over, {}
        self._reported = {
            _problem_key(problem): self._keep_text(problem) for problem in self._check_rules(seen)
        }
        return [problem for problem, _ in self._reported.values()]

    def _check_rules(self, seen: RuleContext) -> Iterator[Problem]:
        codes: set[str] = set()
        for rule in self._rules:
            problem = None if codes.intersection(rule.unless) else rule.check(seen)
            if problem is not None:
                codes.add(rule.code)
                yield problem if self._accepts(problem.cure) else problem.replace_fields(cure={})

    def _accepts(self, changes: Mapping[str, Any]) -> bool:
        """Whether the configuration's own rules accept the changes of a fix."""
        if not changes or self._config is None:
            return not changes
        key = json.dumps(changes, sort_keys=True)
        if key not in self._accepted_changes:
            self._accepted_changes[key] = accepts_changes(self._config, changes)
        return self._accepted_changes[key]

    def _keep_text(self, problem: Problem) -> tuple[Problem, float]:
        said, now = self._reported.get(_problem_key(problem)), self._clock()
        return said if said is not None and now - said[1] < REFRESH_S else (problem, now)


def _problem_key(problem: Problem) -> object:
    return problem.code, problem.rank, tuple(problem.cure.items())
