"""Findings: a run that trains, or trained, but not as it should, told from the figures that it recorded.

    fold (run/fold.py) -> SeenRun -> each rule of the table -> problems of severity "warning", cause first

A rule is a row: a code, and a small function that looks at a `SeenRun` and gives one problem, with what was
seen as evidence, a next step, and a cure where an option mends it; or None. Every threshold is a named
constant with its reason. A rule is silent while too little is measured, and where the figure could be
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

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.config.cures import cured
from rankdeck.diagnose.findings import learning, machine, pace, samples, waits
from rankdeck.diagnose.findings.machine import CODE, ImbalanceAlert
from rankdeck.diagnose.findings.seen import FindingRule, SeenRun

if TYPE_CHECKING:
    from rankdeck.config import RunConfig

__all__ = ["RULES", "FindingRule", "Findings", "SeenRun", "findings"]

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
        """As it stands now. It costs less than a millisecond, but for a cure that it has not had before."""
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

    def _takes(self, cure: Mapping[str, Any]) -> bool:
        """Whether the configuration's own rules take a cure."""
        if not cure or self._config is None:
            return not cure
        key = json.dumps(cure, sort_keys=True)
        if key not in self._can_take:
            try:
                cured(self._config, cure)
                self._can_take[key] = True
            except ConfigError:
                self._can_take[key] = False
        return self._can_take[key]

    def _steady(self, problem: Problem) -> tuple[Problem, float]:
        said, now = self._said.get(_key(problem)), self._clock()
        return said if said is not None and now - said[1] < RESTATED_S else (problem, now)


def _key(problem: Problem) -> object:
    return problem.code, problem.rank, tuple(problem.cure.items())
