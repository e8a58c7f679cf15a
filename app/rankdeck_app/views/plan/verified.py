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
    outcomes = [(line, verification.outcome_of(line)) for line in plan.lines]
    compared = [(line, outcome) for line, outcome in outcomes if outcome in (EQUAL, NOTED, DIFFERS)]
    said = []
    if compared:
        differing = [line.label for line, outcome in compared if outcome == DIFFERS]
        count, total = len(compared) - len(differing), len(compared)
        said.append(tr("Verified: {count} of {total} equal one device.", count=count, total=total))
        if differing:
            said.append(tr("These differ: {labels}.", labels="; ".join(differing)))
    if verification.failure:
        said.append(verification.failure)
    return " ".join(said)
