"""Why a model cannot be followed on tensors without memory, in a sentence. figures.py says it in a line."""

from __future__ import annotations

from rankdeck.base.phrases import marked, phrase
from rankdeck.diagnose.exceptions import own_place

_ASKS = {
    "DataDependentOutputException": (
        marked("The model reads the value of a tensor, so that it cannot be followed without running it."),
        marked(
            "The model reads the value of a tensor, so that it cannot be followed without running it "
            "({file}, line {line})."
        ),
    ),
    "DynamicOutputShapeException": (
        marked(
            "The model makes a tensor whose shape depends on values, so that it cannot be followed without "
            "running it."
        ),
        marked(
            "The model makes a tensor whose shape depends on values, so that it cannot be followed without "
            "running it ({file}, line {line})."
        ),
    ),
}
"""By what torch raises where values are missing: without a place in a person's code, and with one."""


def in_words(error: BaseException) -> str:
    """What kept a model from being followed, with the place in a person's code where there is one."""
    while error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    file, number = own_place(error)
    if name in _ASKS:
        if not file:
            return phrase(_ASKS[name][0])
        return phrase(_ASKS[name][1], file=file, line=number)
    first = (str(error).strip().splitlines() or [""])[0][:200]
    if not file:
        return phrase(
            "The model cannot be followed without memory: {kind}: {message}", kind=name, message=first
        )
    return phrase(
        "The model cannot be followed without memory: {kind}: {message} ({file}, line {line})",
        kind=name,
        message=first,
        file=file,
        line=number,
    )
