"""Turn the anomalies that a script's ranks reported into problems.

A row names a finding, the codes of its anomalies, and the function that describes the first of these
anomalies. Read rule_context.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding

Report = tuple[str, str, str]
"""(message, evidence, advice)"""
AnomalyRow = tuple[str, tuple[str, ...], Callable[[events.Anomaly], Report]]
"""(code of the finding, codes of the anomalies, function that describes the first anomaly)"""
_MAX_NAMES = 3


def anomaly_rules(rows: Iterable[AnomalyRow]) -> tuple[FindingRule, ...]:
    """Return the rules that these rows describe, in the same order."""
    return tuple(_rule(*row) for row in rows)


def _rule(code: str, kinds: tuple[str, ...], word: Callable[[events.Anomaly], Report]) -> FindingRule:
    def check(context: RuleContext) -> Problem | None:
        by_kind = context.state.script.anomalies
        found = [event for kind in kinds for reported in by_kind.get(kind, {}).values() for event in reported]
        if not found:
            return None
        # Ranks report independently, and the earliest step is nearest to the cause.
        first = min(found, key=lambda event: (event.step, event.rank))
        message, evidence, advice = word(first)
        path, _, line = first.line.rpartition(":")
        location = (path, int(line)) if path and line.isdecimal() else (None, None)
        # If all ranks do the same, no rank is to blame.
        ranks = {event.rank for event in found}
        return make_finding(
            code,
            message,
            Evidence(evidence, *location),
            advice=advice,
            rank=first.rank if len(ranks) < len(context.state.script.observations) else None,
        )

    return FindingRule(code, check)


def list_names(event: events.Anomaly) -> str:
    """Return the first few of the anomaly's `names` as text, with the number of the others."""
    first_names = ", ".join(event.names[:_MAX_NAMES])
    more = number_of(event, "names") - min(len(event.names), _MAX_NAMES)
    return first_names if more <= 0 else phrase("{names} and {n} more", names=first_names, n=more)


def number_of(event: events.Anomaly, name: str) -> int:
    """Return the anomaly's number called `name` as an integer; 0 if the anomaly does not have it."""
    return int(event.numbers.get(name, 0))
