"""The samples of each epoch that no step sees, as ranks tell them once they have read their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdeck.base.phrases import phrase

if TYPE_CHECKING:  # whoever has words alone to say needs no numpy
    from rankdeck.run.fold import Fold


def training_data(fold: Fold) -> dict[str, int | None] | None:
    """How many samples there are to train on, and how many of them each epoch leaves out; None until a rank
    has told."""
    told = [one.data for one in fold.attempts.values() if one.data is not None]
    return {"samples": told[-1].samples, "left_out": told[-1].left_out} if told else None


def left_out_in_words(samples: int | None = None, left_out: int | None = None) -> str:
    """What a person reads; empty where nothing is left out, or nothing is known."""
    if not left_out:
        return ""
    return phrase(
        '{left_out} of {samples} samples are left out of each epoch (data.last = "drop")',
        left_out=left_out,
        samples=samples,
    )
