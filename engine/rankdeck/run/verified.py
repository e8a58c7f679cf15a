"""What the check before the first step found, in words and as `--json` has it.

    verified_text    a whole line, for a header or a log
    verified_cell    a few words for a table whose row or column is called ONE_DEVICE
    verified_more    what stands behind them: how large, which tensors, or why not
    compared_text    over how much it was compared, and how long that took
    OUTCOME_WORDS    by outcome, where there is room for a word or two

Source: training/verify/, which writes the event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdeck import events
from rankdeck.base.phrases import Phrase, marked, phrase

EQUAL, NOTED, DIFFERS, UNCHECKED = "equal", "noted", "differs", "unchecked"
ONE_DEVICE = marked("One device")
OUTCOME_WORDS: Mapping[str, str] = {
    EQUAL: marked("equal"),
    NOTED: marked("as expected"),
    DIFFERS: marked("differs"),
    UNCHECKED: marked("not verified"),
    "failed": marked("cannot run"),
}
"""Of events.Verified, and "failed" where the strategy refused before anything was compared."""

_EQUAL = marked("Verified: equals one device (largest difference {largest} after two steps in {precision})")
_EQUAL_IN_ONE_STEP = marked(
    "Verified in one step: equals one device (largest difference {largest} in {precision})"
)
_EQUAL_IN_A_FEW_LAYERS = marked(
    "Verified with {layers} layers of each kind: equals one device "
    "(largest difference {largest} in {precision})"
)
_NOTED = {
    "batch-norm": marked("Verified: equals one device but for its batch norms"),
    "staleness": marked("Verified: its stages equal one device; its weights are stale by nature"),
    "compress": marked("Verified: equals one device but for the compression of gradients"),
}
_DIFFERS = marked("Differs from one device: {names}")
_COMPARED = marked("two steps of {samples} samples in {precision}, {seconds:.1f} s")
_COMPARED_LAYERS = marked("{how}, {layers} layers of each kind")
_COMPARED_ONE_STEP = marked("one step of {samples} samples in {precision}, {seconds:.1f} s")
_UNCHECKED = marked("Not verified: {why}")

_NOTED_CELLS = {
    "batch-norm": marked("equal but for batch norms"),
    "staleness": marked("stages equal, weights stale"),
    "compress": marked("equal but for compression"),
}


def verified_text(verified: events.Verified) -> Phrase:
    """One line for a header or a log, without a full stop."""
    if verified.outcome == UNCHECKED:
        return phrase(_UNCHECKED, why=_why(verified))
    if verified.outcome == DIFFERS:
        return phrase(_DIFFERS, names=_names(verified))
    if verified.outcome == NOTED and (said := _NOTED.get(verified.cause or "")):
        return phrase(said)
    found = {"largest": _largest(verified), "precision": verified.precision or ""}
    if verified.layers is not None:
        return phrase(_EQUAL_IN_A_FEW_LAYERS, layers=verified.layers, **found)
    return phrase(_EQUAL if verified.steps > 1 else _EQUAL_IN_ONE_STEP, **found)


def verified_cell(verified: events.Verified) -> Phrase:
    """'equal but for batch norms', for the cell of a table that says "one device" beside it."""
    cause = verified.cause if verified.outcome == NOTED else None
    return phrase(_NOTED_CELLS.get(cause or "") or OUTCOME_WORDS.get(verified.outcome, verified.outcome))


def verified_more(verified: events.Verified) -> str:
    """'largest difference 6e-16', the names of tensors, or why nothing was compared."""
    if verified.outcome == UNCHECKED:
        return _why(verified)
    if verified.outcome == DIFFERS:
        return _names(verified)
    return phrase("largest difference {largest}", largest=_largest(verified))


def _why(verified: events.Verified) -> str:
    return (verified.why or "").rstrip(".")


def _names(verified: events.Verified) -> str:
    return ", ".join(verified.names) or verified.cause or ""


def _largest(verified: events.Verified) -> str:
    return "0" if not verified.largest else f"{verified.largest:.0e}"


def compared_text(verified: events.Verified) -> str:
    """'two steps of 32 samples in fp64, 0.4 s'; "" where nothing was compared."""
    if verified.precision is None:
        return ""
    how = phrase(
        _COMPARED if verified.steps > 1 else _COMPARED_ONE_STEP,
        samples=verified.samples,
        precision=verified.precision,
        seconds=verified.seconds,
    )
    return how if verified.layers is None else phrase(_COMPARED_LAYERS, how=how, layers=verified.layers)


def newest_verified(
    attempts: Sequence[tuple[events.RunStarted | None, events.Verified | None]],
) -> events.Verified | None:
    """The newest result among attempts in their order that train with the strategy of the last one."""
    results = [
        verified
        for started, verified in reversed(attempts)
        if verified is not None and _strategy(started) == _strategy(attempts[-1][0])
    ]
    return results[0] if results else None


def _strategy(started: events.RunStarted | None) -> tuple[str | None, dict[str, object]] | None:
    return None if started is None else (started.strategy, started.options)
