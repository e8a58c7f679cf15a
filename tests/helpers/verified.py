"""What the check before the first step can find, as rank 0 writes it."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import PhraseSource
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.race import RaceEntry
from rankdeck.run.verified import verified_text

VERIFIED = {
    "equal": events.Verified(
        rank=0, outcome="equal", largest=6e-16, precision="fp64", samples=32, seconds=0.42
    ),
    "noted": events.Verified(
        rank=0, outcome="noted", cause="batch-norm", names=["norm.running_var"], largest=2e-3,
        precision="fp64", samples=32, seconds=1.4,
    ),
    "differs": events.Verified(
        rank=0, outcome="differs", cause="samples", names=["head.weight", "head.bias"], largest=0.02,
        precision="fp64", samples=32, seconds=0.9,
    ),
    "unchecked": events.Verified(
        rank=0, outcome="unchecked", why="Two steps of the model on one device do not fit the memory."
    ),
}  # fmt: skip
"""By outcome."""


def with_verification(outcome: str, one: PlanLine) -> PlanLine:
    """The line, with what a rehearsal found."""
    one.verified, one.verified_outcome = _format(outcome, one.phrases), outcome
    return one


def with_race_verification(outcome: str, one: RaceEntry) -> RaceEntry:
    """The entry, with what its run found."""
    one.verified, one.verified_outcome = _format(outcome, one.phrases), outcome
    return one


def _format(outcome: str, phrases: dict[str, PhraseSource]) -> str:
    said = verified_text(VERIFIED[outcome])
    phrases[str(said)] = PhraseSource(said.template, said.plain_arguments())
    return str(said)
