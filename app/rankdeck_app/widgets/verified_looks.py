"""How it looks whether a strategy computes what one device computes: the same sign in every view."""

from __future__ import annotations

from collections.abc import Mapping

from rankdeck import events
from rankdeck.run.verified import (
    DIFFERS,
    EQUAL,
    NOTED,
    ONE_DEVICE,
    UNCHECKED,
    compared_text,
    verified_more,
    verified_text,
)
from rankdeck_app.language import spoken, tr
from rankdeck_app.widgets.facts_line import Fact

VERIFIED_LOOKS: Mapping[str, tuple[str, str]] = {
    EQUAL: ("verified", "ok"),
    NOTED: ("info", "muted"),
    DIFFERS: ("error", "error"),
    UNCHECKED: ("question", "muted"),
    "failed": ("circle-slash", "muted"),
}
"""(icon, tone) by outcome."""


def verified_fact(verified: events.Verified) -> Fact:
    """For the header of a run."""
    icon, tone = VERIFIED_LOOKS.get(verified.outcome, VERIFIED_LOOKS[UNCHECKED])
    more = map(spoken, (verified_more(verified), compared_text(verified)))
    return Fact(icon, tr(ONE_DEVICE), spoken(verified_text(verified)), "\n".join(filter(None, more)), tone)
