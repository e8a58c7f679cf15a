"""The rule that finds a rank that has left out or added a collective. Read rule_context.py first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import join_sentences, phrase, plural_phrase, tr_noop
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding
from rankdeck.run.collective_counts import CountDifference

_MIN_RATIO = 3
"""Minimum ratio between the steps in which the ranks make equal and unequal numbers of calls, counted from
the first unequal step. With a smaller ratio, a rank may just make a call after a step that the others make
before it, or take more steps between two calls (federated averaging)."""


def find_unequal_calls(context: RuleContext) -> Problem | None:
    """Find ranks that left out or added a collective call: since then, the ranks' collectives have belonged
    to different steps."""
    script, attempt = context.state.script, context.attempt
    if attempt is None or attempt.started is None:
        return None
    difference = attempt.script.calls_by_step.find_difference(attempt.started.world_size)
    if difference is None or difference.num_together < _MIN_RATIO * difference.num_apart:
        return None
    # Ranks that skipped steps alone count their steps differently.
    if len({observation.skipped for observation in script.observations.values()}) > 1:
        return None
    previous = difference.previous
    # The ranks differed in the step before, too: the number of the majority counts.
    if previous is None:
        previous = Counter(difference.calls.values()).most_common()[0][0]
    ranks = [rank for rank, num in difference.calls.items() if num != previous]
    if not ranks:
        return None
    return make_finding(
        "collectives-out-of-step",
        _message(difference, previous, ranks),
        _totals(difference),
        _place(difference),
        advice=phrase(
            "Call {name} equally often on every rank in every step: look for an if, continue or return that "
            "depends on the rank or on its data. A rank that has nothing to add passes zeros.",
            name=difference.name,
        ),
    )


def _message(difference: CountDifference, previous: int, ranks: Sequence[int]) -> str:
    # The ranks may differ by different numbers of calls; the first of them stands for all.
    num = difference.calls[ranks[0]]
    if num < previous:
        texts = (
            tr_noop(
                "On rank {ranks}, a call of {name} is missing in step {step} ({num} instead of {previous})."
            ),
            tr_noop(
                "On ranks {ranks}, a call of {name} is missing in step {step} ({num} instead of {previous})."
            ),
        )
    else:
        texts = (
            tr_noop(
                "On rank {ranks}, there is an additional call of {name} in step {step} ({num} instead of "
                "{previous})."
            ),
            tr_noop(
                "On ranks {ranks}, there is an additional call of {name} in step {step} ({num} instead of "
                "{previous})."
            ),
        )
    message = plural_phrase(
        *texts,
        len(ranks),
        ranks=", ".join(map(str, ranks[:8])),
        name=difference.name,
        step=difference.step,
        num=num,
        previous=previous,
    )
    consequence = phrase(
        "Since then, the ranks' collectives have belonged to different steps, so their results are wrong."
    )
    return join_sentences([message, consequence])


def _totals(difference: CountDifference) -> Evidence:
    totals = ", ".join(
        phrase("{num} on rank {rank}", num=num, rank=rank)
        for rank, num in sorted(difference.totals.items())[:8]
    )
    return Evidence(
        phrase(
            "calls of {name} from step {step} to step {last}: {totals}",
            name=difference.name,
            step=difference.step,
            last=difference.last_step,
            totals=totals,
        )
    )


def _place(difference: CountDifference) -> Evidence | None:
    if not difference.line:
        return None
    path, _, line = difference.line.rpartition(":")
    return Evidence(phrase("the line that calls {name}", name=difference.name), path, int(line))


RULES = (FindingRule("collectives-out-of-step", find_unequal_calls),)
