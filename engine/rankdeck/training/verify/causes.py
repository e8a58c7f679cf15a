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

from rankdeck.training.verify.compare import Kind, StepComparison, StepResults, TensorDifference
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError

Cause = Literal["samples", "loss", "state", "forward", "gradient", "optimizer", "unknown"]
_BATCH_DEPENDENCES: tuple[tuple[bool, Cause], ...] = ((False, "samples"), (True, "loss"))
_COMPUTE_ORDER: tuple[Kind, ...] = ("loss", "gradient", "weight")
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


def find_cause(expected: StepResults, computed: StepResults, one_device: OneDevice) -> Discrepancy:
    """Why what was computed is not what was expected of one device."""
    whole = one_device.compare(expected, computed)
    steps = whole.without_kinds("state")
    if steps.is_equal:  # state that differs beside weights comes of the same
        return Discrepancy("state", whole.differences)
    try:
        return _find_step_cause(steps, computed, one_device)
    except OutOfTimeError:
        return Discrepancy("unknown", steps.differences)


def _find_step_cause(steps: StepComparison, computed: StepResults, one_device: OneDevice) -> Discrepancy:
    """Of losses, gradients or weights that differ. Raises: OutOfTimeError."""
    has_norms = one_device.scope.norms != "none"
    cause = None if has_norms else _find_batch_dependence(one_device)  # batch norms see it in any case
    if cause is not None:
        return Discrepancy(cause, steps.differences)
    on_slices = list(_compare_with_slices(computed, one_device))
    if any(comparison.is_equal for comparison in on_slices):
        # Norms that should see the batch see its slices then.
        return Discrepancy("samples" if one_device.scope.norms == "whole" else "state", steps.differences)
    closest = max([steps, *on_slices], key=_first_difference)
    return Discrepancy(_cause_in_step(closest, one_device), closest.differences)


def _find_batch_dependence(one_device: OneDevice) -> Cause | None:
    """What sees on one device that the batch is cut: the model, or else the loss."""
    whole = one_device.full_batches()
    for loss_by_slice, cause in _BATCH_DEPENDENCES:
        sliced = one_device.in_slices(loss_by_slice, whole_state=True)
        if sliced is not None and not one_device.compare(whole, sliced).without_kinds("state").is_equal:
            return cause
    return None


def _compare_with_slices(computed: StepResults, one_device: OneDevice) -> Iterator[StepComparison]:
    """With the steps over the strategy's slices, in all ways that make a difference."""
    for whole_state in (False, True):
        for loss_by_slice in (False, True):
            sliced = one_device.in_slices(loss_by_slice, whole_state)
            if sliced is not None:
                yield one_device.compare(sliced, computed).without_kinds("state")


def _first_difference(comparison: StepComparison) -> tuple[float, int]:
    """When a comparison first finds something: the step, and how far in it."""
    return min(
        ((d.step, _COMPUTE_ORDER.index(d.kind)) for d in comparison.differences), default=(math.inf, 0)
    )


def _cause_in_step(comparison: StepComparison, one_device: OneDevice) -> Cause:
    step, place = _first_difference(comparison)
    if _COMPUTE_ORDER[place] == "loss" or step in comparison.steps_with_other_loss:
        return "state" if step > 1 and _depends_on_state(one_device) else "forward"
    changed = {(d.step, d.name) for d in comparison.of_kind("weight") if d.step == step}
    return (
        "gradient" if _COMPUTE_ORDER[place] == "gradient" or changed <= comparison.one_sided else "optimizer"
    )


def _depends_on_state(one_device: OneDevice) -> bool:
    """Whether a step comes out otherwise without the state that the one before it has left."""
    return (
        not one_device.compare(one_device.full_batches(), one_device.without_state())
        .without_kinds("state")
        .is_equal
    )
