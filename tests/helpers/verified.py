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


def with_verification(outcome: str, line: PlanLine) -> PlanLine:
    """The line, with what a rehearsal found."""
    line.verified, line.verified_outcome = _format(outcome, line.phrases), outcome
    return line


def with_race_verification(outcome: str, entry: RaceEntry) -> RaceEntry:
    """The entry, with what its run found."""
    entry.verified, entry.verified_outcome = _format(outcome, entry.phrases), outcome
    return entry


def _format(outcome: str, phrases: dict[str, PhraseSource]) -> str:
    text = verified_text(VERIFIED[outcome])
    phrases[str(text)] = PhraseSource(text.template, text.plain_arguments())
    return str(text)
