"""Format the result of the check before the first step, for people and for `--json`.

    verified_text    a whole line, for a header or a log
    verified_cell    a few words for a table row or column called ONE_DEVICE
    verified_detail  the details: the difference, the tensors, or why nothing was compared
    compared_text    how much was compared, and how long that took
    OUTCOME_TEXTS    a word or two for each outcome

Source: training/verify/, which writes the event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdeck import events
from rankdeck.base.phrases import Phrase, phrase, tr_noop

EQUAL, NOTED, DIFFERS, UNCHECKED = "equal", "noted", "differs", "unchecked"
ONE_DEVICE = tr_noop("One device")
OUTCOME_TEXTS: Mapping[str, str] = {
    EQUAL: tr_noop("equal"),
    NOTED: tr_noop("as expected"),
    DIFFERS: tr_noop("differs"),
    UNCHECKED: tr_noop("not verified"),
    "failed": tr_noop("cannot run"),
}
"""Texts by outcome of events.Verified. The additional key "failed" is for a strategy that refused to run:
nothing was compared."""

_EQUAL_TEXT = tr_noop(
    "Verified: matches one device (largest difference {largest} after two steps in {precision})"
)
_EQUAL_IN_ONE_STEP_TEXT = tr_noop(
    "Verified in one step: matches one device (largest difference {largest} in {precision})"
)
_EQUAL_IN_A_FEW_LAYERS_TEXT = tr_noop(
    "Verified with {layers} layers of each kind: matches one device (largest difference "
    "{largest} in {precision})"
)
_NOTED_TEXTS = {
    "batch-norm": tr_noop("Verified: matches one device except for its batch norms"),
    "staleness": tr_noop("Verified: its stages match one device; its weights are stale by design"),
    "compress": tr_noop("Verified: matches one device except for gradient compression"),
}
_DIFFERS_TEXT = tr_noop("Differs from one device: {names}")
_COMPARED_TEXT = tr_noop("two steps of {samples} samples in {precision}, {seconds:.1f} s")
_COMPARED_LAYERS_TEXT = tr_noop("{how}, {layers} layers of each kind")
_COMPARED_ONE_STEP_TEXT = tr_noop("one step of {samples} samples in {precision}, {seconds:.1f} s")
_UNCHECKED_TEXT = tr_noop("Not verified: {why}")

_NOTED_CELLS = {
    "batch-norm": tr_noop("equal except for batch norms"),
    "staleness": tr_noop("stages equal, weights stale"),
    "compress": tr_noop("equal except for compression"),
}


def verified_text(verified: events.Verified) -> Phrase:
    """Format one line for a header or a log, without a full stop."""
    if verified.outcome == UNCHECKED:
        return phrase(_UNCHECKED_TEXT, why=_reason(verified))
    if verified.outcome == DIFFERS:
        return phrase(_DIFFERS_TEXT, names=_names_text(verified))
    if verified.outcome == NOTED and (template := _NOTED_TEXTS.get(verified.cause or "")):
        return phrase(template)
    arguments = {"largest": _largest_text(verified), "precision": verified.precision or ""}
    if verified.layers is not None:
        return phrase(_EQUAL_IN_A_FEW_LAYERS_TEXT, layers=verified.layers, **arguments)
    return phrase(_EQUAL_TEXT if verified.steps > 1 else _EQUAL_IN_ONE_STEP_TEXT, **arguments)


def verified_cell(verified: events.Verified) -> Phrase:
    """Format a cell for a table row or column called "one device", such as 'equal except for batch norms'."""
    cause = verified.cause if verified.outcome == NOTED else None
    return phrase(_NOTED_CELLS.get(cause or "") or OUTCOME_TEXTS.get(verified.outcome, verified.outcome))


def verified_detail(verified: events.Verified) -> str:
    """Return the outcome's detail: the largest difference, the tensors that differ most, or the reason."""
    if verified.outcome == UNCHECKED:
        return _reason(verified)
    if verified.outcome == DIFFERS:
        return _names_text(verified)
    return phrase("largest difference {largest}", largest=_largest_text(verified))


def _reason(verified: events.Verified) -> str:
    # The reason is put into a line without a full stop.
    return (verified.why or "").rstrip(".")


def _names_text(verified: events.Verified) -> str:
    return ", ".join(verified.names) or verified.cause or ""


def _largest_text(verified: events.Verified) -> str:
    return "0" if not verified.largest else f"{verified.largest:.0e}"


def compared_text(verified: events.Verified) -> str:
    """Format how much was compared: 'two steps of 32 samples in fp64, 0.4 s'; "" if nothing was compared."""
    if verified.precision is None:
        return ""
    how = phrase(
        _COMPARED_TEXT if verified.steps > 1 else _COMPARED_ONE_STEP_TEXT,
        samples=verified.samples,
        precision=verified.precision,
        seconds=verified.seconds,
    )
    return how if verified.layers is None else phrase(_COMPARED_LAYERS_TEXT, how=how, layers=verified.layers)


def newest_verified(
    attempts: Sequence[tuple[events.RunStarted | None, events.Verified | None]],
) -> events.Verified | None:
    """Return the newest result for the last attempt's strategy and options.

    `attempts` lists (start event, result) of each attempt, oldest first.
    """
    results = [
        verified
        for started, verified in reversed(attempts)
        if verified is not None and _strategy_and_options(started) == _strategy_and_options(attempts[-1][0])
    ]
    return results[0] if results else None


def _strategy_and_options(started: events.RunStarted | None) -> tuple[str | None, dict[str, object]] | None:
    return None if started is None else (started.strategy, started.options)
