"""What the page of the plan says of strategies that were verified: a few words in a row, a sentence above."""

from __future__ import annotations

from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.verified import DIFFERS, EQUAL, NOTED, OUTCOME_WORDS
from rankdeck_app.language import tr
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_verification import PENDING


def verified_figure(plan: DraftPlan, line: PlanLine) -> tuple[str, str]:
    """(outcome, a few words): whether it computes what one device does; "" of one device itself, and where
    nothing is known."""
    outcome = plan.verification.outcome_of(line) or ""
    if outcome == PENDING:
        return outcome, tr("verifying…")
    return outcome, tr(OUTCOME_WORDS[outcome]) if outcome in OUTCOME_WORDS else ""


def verified_sentence(plan: DraftPlan) -> str:
    """How many strategies are equal to one device, and which are not; "" where none was verified."""
    verification = plan.verification
    by_outcome: dict[str | None, list[str]] = {EQUAL: [], NOTED: [], DIFFERS: []}
    for line in plan.lines:
        by_outcome.setdefault(verification.outcome_of(line), []).append(line.label)
    equal, noted, differing = (by_outcome[outcome] for outcome in (EQUAL, NOTED, DIFFERS))
    said = []
    if total := len(equal) + len(noted) + len(differing):
        said.append(tr("Verified: {count} of {total} equal one device.", count=len(equal), total=total))
    if noted:
        said.append(tr("These differ as expected: {labels}.", labels="; ".join(noted)))
    if differing:
        said.append(tr("These differ: {labels}.", labels="; ".join(differing)))
    return " ".join(filter(None, (*said, verification.failure)))
