"""Why two steps under a strategy differ from one device: found by computing them on one device once more, cut
as the strategy cuts them.

    forwards over the strategy's slices, one loss      as under the strategy: the model looks across samples
    forwards and losses over these slices              as under the strategy: the loss does, or the model
    neither                                            the strategy itself: what differs first in a step
                                                       (loss, gradient, weight) says where

Where there is no time left for that, the cause is unknown. Read check.py next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankdeck.training.verify.compare import ComputedComparison, TensorDifference
from rankdeck.training.verify.computed import Computed
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError

Cause = Literal["samples", "loss", "state", "forward", "gradient", "optimizer", "unknown"]


@dataclass(frozen=True)
class Discrepancy:
    """A cause and what it makes differ, the largest difference first."""

    cause: Cause
    differences: tuple[TensorDifference, ...]

    @property
    def names(self) -> list[str]:
        """Of tensors that differ, each once."""
        ordered = sorted(self.differences, key=lambda found: (not found.is_missing, -found.relative))
        return list(dict.fromkeys(found.name for found in ordered if found.kind != "loss"))


def explain(computed: Computed, one_device: OneDevice) -> Discrepancy:
    """Why what was computed is not what one device computes."""
    whole = one_device.compare(one_device.whole(), computed)
    steps = whole.but("state")
    if steps.is_equal:  # state that differs beside weights comes of the same
        return Discrepancy("state", whole.differences)
    try:
        return Discrepancy(_cause(steps, computed, one_device), steps.differences)
    except OutOfTimeError:
        return Discrepancy("unknown", steps.differences)


def _cause(steps: ComputedComparison, computed: Computed, one_device: OneDevice) -> Cause:
    """Of losses, gradients or weights that differ. Raises: OutOfTimeError."""

    def equals(loss_by_slice: bool, expected: Computed) -> bool | None:
        on_slices = one_device.sliced(loss_by_slice)
        if on_slices is None:
            return None
        return one_device.compare(on_slices, expected).but("state").is_equal

    if equals(False, computed):
        return "samples"
    if equals(True, computed):
        return "samples" if equals(False, one_device.whole()) is False else "loss"
    return _first_in_a_step(steps)


def _first_in_a_step(steps: ComputedComparison) -> Cause:
    step = min(found.step for found in steps.differences)
    kinds = {found.kind for found in steps.differences if found.step == step}
    if "loss" in kinds:
        return "forward"
    return "gradient" if "gradient" in kinds else "optimizer"
