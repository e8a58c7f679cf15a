"""Findings: a run that trains, or trained, but not as it should, told from the figures that it recorded.

    fold (run/fold.py) -> SeenRun -> each rule of the table -> problems of severity "warning", cause first

A rule is a row: a code, and a small function that looks at a `SeenRun` and gives one problem, with what was
seen as evidence and a fix (in words, and as changes where an option does it); or None. Every threshold is a
named constant with its reason. A rule is silent while too little is measured, and where the figure could be
something else. What makes a run fail is not here: exceptions.py and cause.py say that.

seen.py       what rules look at
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
from rankdeck.diagnose.findings.machine import CODE, ImbalanceAlert
from rankdeck.diagnose.findings.seen import FindingRule, SeenRun
from rankdeck.diagnose.fixes import can_take, config_of

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.run.fold import Fold
    from rankdeck.rundir import RunDir

__all__ = [
    "RULES", "FindingRule", "Findings", "SeenRun", "findings", "findings_of", "problems_and_findings",
]  # fmt: skip

RULES: tuple[FindingRule, ...] = (
    *learning.RULES,
    *samples.RULES,
    FindingRule(CODE, lambda seen: ImbalanceAlert().look_at(seen)),
    *machine.RULES,
    *pace.SLOW,
    *waits.RULES,
    *pace.RULES,
)
"""What makes learning worthless first, then what makes it slow. A rule stands behind those that it is a
consequence of."""
RESTATED_S = 60.0
"""How long a finding of a run that is followed keeps its words: its figures change all the time."""
_ORDER = {"error": 0, "warning": 1}
"""By severity, where a problem stands; all else is behind."""


def problems_and_findings(run: RunDir, fold: Fold) -> list[Problem]:
    """What a run says of itself and what its figures say, errors first. `fold` has curves."""
    from rankdeck.run.summarising import problems_of

    outcome = run.outcome()
    found = problems_of(run, fold, outcome) + findings_of(run, fold, is_over=outcome != "running")
    return sorted(found, key=lambda problem: _ORDER.get(problem.severity, 2))


def findings_of(run: RunDir, fold: Fold, *, is_over: bool) -> list[Problem]:
    """What a run's figures say. `fold` has curves."""
    return findings(SeenRun(fold, config_of(run), is_over=is_over))


def findings(seen: SeenRun) -> list[Problem]:
    """What there is to say of a run."""
    return Findings().look(seen)


class Findings:
    """Of one run that is followed. What was said stays as it was said, for as long as it holds."""

    def __init__(
        self, rules: Sequence[FindingRule] = RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._said: dict[object, tuple[Problem, float]] = {}
        self._config: RunConfig | None = None
        self._was_over = False
        self._can_take: dict[str, bool] = {}

    def look(self, seen: SeenRun) -> list[Problem]:
        """As it stands now. It costs less than a millisecond, but for a fix that it has not had before."""
        if seen.config is not self._config:
            self._config, self._can_take = seen.config, {}
        if seen.is_over != self._was_over:
            self._was_over, self._said = seen.is_over, {}
        self._said = {_key(problem): self._steady(problem) for problem in self._spoken(seen)}
        return [problem for problem, _ in self._said.values()]

    def _spoken(self, seen: SeenRun) -> Iterator[Problem]:
        codes: set[str] = set()
        for rule in self._rules:
            problem = None if codes.intersection(rule.unless) else rule.look(seen)
            if problem is not None:
                codes.add(rule.code)
                yield problem if self._takes(problem.cure) else problem.but(cure={})

    def _takes(self, changes: Mapping[str, Any]) -> bool:
        """Whether the configuration's own rules accept the changes of a fix."""
        if not changes or self._config is None:
            return not changes
        key = json.dumps(changes, sort_keys=True)
        if key not in self._can_take:
            self._can_take[key] = can_take(self._config, changes)
        return self._can_take[key]

    def _steady(self, problem: Problem) -> tuple[Problem, float]:
        said, now = self._said.get(_key(problem)), self._clock()
        return said if said is not None and now - said[1] < RESTATED_S else (problem, now)


def _key(problem: Problem) -> object:
    return problem.code, problem.rank, tuple(problem.cure.items())
