"""Find why two steps under a strategy differ from the same steps on one device, by computing on one device
with the strategy's splits.

    result on one device                                                    cause of the difference
    forward passes over slices differ from the unsliced forward pass        the model mixes samples
    losses of separate slices differ from the unsliced loss                 the loss is not additive
    passing state from slice to slice gives the strategy's results          state
    none of these                                                           the strategy itself

In the first two tests, all slices of a microstep start with the state from before the microstep. If the cause
is the strategy, the first difference within a step shows which part of the step is wrong. If time runs out,
the cause is reported as unknown. Read check.py next.
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
"""Kinds of values, in the order in which a step computes them."""


@dataclass(frozen=True)
class Discrepancy:
    """A cause of differences, and the differences that it explains."""

    cause: Cause
    differences: tuple[TensorDifference, ...]

    @property
    def names(self) -> list[str]:
        """Names of the tensors that differ, without repetition, the largest difference first."""
        ordered = sorted(self.differences, key=lambda found: (not found.is_missing, -found.relative))
        return list(dict.fromkeys(difference.name for difference in ordered if difference.kind != "loss"))


def find_cause(expected: StepResults, computed: StepResults, one_device: OneDevice) -> Discrepancy:
    """Find why `computed`, the strategy's results, differ from `expected`, one device's results."""
    comparison = one_device.compare(expected, computed)
    steps = comparison.without_kinds("state")
    if steps.is_equal:  # if other values differ too, state differs for the same cause
        return Discrepancy("state", comparison.differences)
    try:
        return _find_step_cause(steps, computed, one_device)
    except OutOfTimeError:
        return Discrepancy("unknown", steps.differences)


def _find_step_cause(steps: StepComparison, computed: StepResults, one_device: OneDevice) -> Discrepancy:
    """Find why losses, gradients or weights differ. Raises: OutOfTimeError."""
    has_norms = one_device.scope.norms != "none"
    cause = None if has_norms else _find_batch_dependence(one_device)  # batch norms always depend on it
    if cause is not None:
        return Discrepancy(cause, steps.differences)
    on_slices = list(_compare_with_slices(computed, one_device))
    if any(comparison.is_equal for comparison in on_slices):
        # Then norms that should see the whole batch see its slices.
        return Discrepancy("samples" if one_device.scope.norms == "whole" else "state", steps.differences)
    closest = max([steps, *on_slices], key=_first_difference)
    return Discrepancy(_cause_in_step(closest, one_device), closest.differences)


def _find_batch_dependence(one_device: OneDevice) -> Cause | None:
    """Test on one device whether the model or the loss depends on how a batch is split; return the first
    cause found, None if neither depends on it."""
    unsliced = one_device.full_batches()
    for loss_by_slice, cause in _BATCH_DEPENDENCES:
        sliced = one_device.in_slices(loss_by_slice, whole_state=True)
        if sliced is not None and not one_device.compare(unsliced, sliced).without_kinds("state").is_equal:
            return cause
    return None


def _compare_with_slices(computed: StepResults, one_device: OneDevice) -> Iterator[StepComparison]:
    """Compare `computed` with the results of `OneDevice.in_slices` for each combination of its options."""
    for whole_state in (False, True):
        for loss_by_slice in (False, True):
            sliced = one_device.in_slices(loss_by_slice, whole_state)
            if sliced is not None:
                yield one_device.compare(sliced, computed).without_kinds("state")


def _first_difference(comparison: StepComparison) -> tuple[float, int]:
    """Return the step of a comparison's first difference, and the index of that difference's kind in
    `_COMPUTE_ORDER`."""
    return min(
        ((d.step, _COMPUTE_ORDER.index(d.kind)) for d in comparison.differences), default=(math.inf, 0)
    )


def _cause_in_step(comparison: StepComparison, one_device: OneDevice) -> Cause:
    step, position = _first_difference(comparison)
    if _COMPUTE_ORDER[position] == "loss" or step in comparison.steps_with_other_loss:
        return "state" if step > 1 and _depends_on_state(one_device) else "forward"
    changed = {(d.step, d.name) for d in comparison.of_kind("weight") if d.step == step}
    return (
        "gradient"
        if _COMPUTE_ORDER[position] == "gradient" or changed <= comparison.one_sided
        else "optimizer"
    )


def _depends_on_state(one_device: OneDevice) -> bool:
    """Check whether steps give different results if the state left by earlier steps is reset."""
    return (
        not one_device.compare(one_device.full_batches(), one_device.without_state())
        .without_kinds("state")
        .is_equal
    )
