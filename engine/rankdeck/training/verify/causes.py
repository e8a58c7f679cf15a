"""Why two steps under a strategy differ from one device: found by computing them on one device once more, cut
as the strategy cuts them.

    forwards over the strategy's slices, each as the batch's begins      otherwise: the model mixes samples
    losses over these slices                                             otherwise: the loss does
    slices one after another, each with the state that the last left     as under the strategy: state
    none of these                                                        the strategy itself: what differs
                                                                         first in a step says where

Where there is no time left for that, the cause is unknown. Read check.py next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rankdeck.training.verify.compare import Computed, ComputedComparison, Kind, TensorDifference
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError

Cause = Literal["samples", "loss", "state", "forward", "gradient", "optimizer", "unknown"]
_SEES: tuple[tuple[bool, Cause], ...] = ((False, "samples"), (True, "loss"))
_ORDER: tuple[Kind, ...] = ("loss", "gradient", "weight")
"""In which a step computes."""


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


def explain(expected: Computed, computed: Computed, one_device: OneDevice) -> Discrepancy:
    """Why what was computed is not what was expected of one device."""
    whole = one_device.compare(expected, computed)
    steps = whole.but("state")
    if steps.is_equal:  # state that differs beside weights comes of the same
        return Discrepancy("state", whole.differences)
    try:
        return _of_steps(steps, computed, one_device)
    except OutOfTimeError:
        return Discrepancy("unknown", steps.differences)


def _of_steps(steps: ComputedComparison, computed: Computed, one_device: OneDevice) -> Discrepancy:
    """Of losses, gradients or weights that differ. Raises: OutOfTimeError."""
    has_norms = one_device.scope.norms != "none"
    cause = None if has_norms else _seen_by_cut(one_device)  # batch norms see it in any case
    if cause is not None:
        return Discrepancy(cause, steps.differences)
    on_slices = list(_on_slices(computed, one_device))
    if any(comparison.is_equal for comparison in on_slices):
        # Norms that should see the batch see its slices then.
        return Discrepancy("samples" if one_device.scope.norms == "whole" else "state", steps.differences)
    closest = max([steps, *on_slices], key=_first_kind)
    return Discrepancy(_first_in_a_step(closest, one_device), closest.differences)


def _seen_by_cut(one_device: OneDevice) -> Cause | None:
    """What sees on one device that the batch is cut: the model, or else the loss."""
    whole = one_device.whole()
    for loss_by_slice, cause in _SEES:
        sliced = one_device.sliced(loss_by_slice, whole_state=True)
        if sliced is not None and not one_device.compare(whole, sliced).but("state").is_equal:
            return cause
    return None


def _on_slices(computed: Computed, one_device: OneDevice) -> Iterator[ComputedComparison]:
    """With the steps over the strategy's slices, in all ways that make a difference."""
    for whole_state in (False, True):
        for loss_by_slice in (False, True):
            sliced = one_device.sliced(loss_by_slice, whole_state)
            if sliced is not None:
                yield one_device.compare(sliced, computed).but("state")


def _first_kind(comparison: ComputedComparison) -> tuple[float, int]:
    """When a comparison first finds something: the step, and how far in it."""
    return min(((d.step, _ORDER.index(d.kind)) for d in comparison.differences), default=(math.inf, 0))


def _first_in_a_step(comparison: ComputedComparison, one_device: OneDevice) -> Cause:
    step, place = _first_kind(comparison)
    if _ORDER[place] == "loss" or step in comparison.lossy:
        return "state" if step > 1 and _needs_state(one_device) else "forward"
    changed = {(d.step, d.name) for d in comparison.of("weight") if d.step == step}
    return "gradient" if _ORDER[place] == "gradient" or changed <= comparison.one_sided else "optimizer"


def _needs_state(one_device: OneDevice) -> bool:
    """Whether a step comes out otherwise without the state that the one before it has left."""
    return not one_device.compare(one_device.whole(), one_device.forgetful()).but("state").is_equal
