"""What the check before the first step found, in words and as `--json` has it.

Source: training/verify/, which writes the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankdeck import events
from rankdeck.base.phrases import Phrase, marked, phrase

_EQUAL = marked("Verified: equals one device (largest difference {largest} after two steps in {precision})")
_NOTED = {
    "batch-norm": marked("Verified: equals one device but for its batch norms"),
    "staleness": marked("Verified: its stages equal one device; its weights are stale by nature"),
    "compress": marked("Verified: equals one device but for the compression of gradients"),
}
_DIFFERS = marked("Differs from one device: {names}")
_UNCHECKED = marked("Not verified: {why}")


def verified_text(verified: events.Verified) -> Phrase:
    """One line for a header or a table's cell, without a full stop."""
    if verified.outcome == "unchecked":
        return phrase(_UNCHECKED, why=(verified.why or "").rstrip("."))
    if verified.outcome == "differs":
        return phrase(_DIFFERS, names=", ".join(verified.names) or verified.cause or "")
    if verified.outcome == "noted" and verified.cause in _NOTED:
        return phrase(_NOTED[verified.cause])
    largest = "0" if not verified.largest else f"{verified.largest:.0e}"
    return phrase(_EQUAL, largest=largest, precision=verified.precision or "")


def newest_verified(
    attempts: Sequence[tuple[events.RunStarted | None, events.Verified | None]],
) -> events.Verified | None:
    """The newest result among attempts in their order that train with the strategy of the last one."""
    strategies = [(started.strategy, started.options) if started else None for started, _ in attempts]
    results = [
        verified
        for strategy, (_, verified) in zip(strategies, attempts, strict=True)
        if strategy == strategies[-1]
    ]
    return next((verified for verified in reversed(results) if verified is not None), None)


def verified_facts(verified: events.Verified) -> dict[str, Any]:
    """The keys under "verified" of `show --json`."""
    return {
        "outcome": verified.outcome,
        "cause": verified.cause,
        "names": verified.names,
        "largest": verified.largest,
        "precision": verified.precision,
        "samples": verified.samples,
        "seconds": verified.seconds,
        "text": str(verified_text(verified)),
    }
