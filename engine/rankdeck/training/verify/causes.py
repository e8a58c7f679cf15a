"""Why two steps under a strategy differ from one device: found by computing them on one device once more, cut
as the strategy cuts them.

    forwards over the strategy's slices, one loss      as under the strategy: the model looks across samples
    forwards and losses over these slices              as under the strategy: the loss does, or the model
    neither                                            the strategy itself: what differs first in a step
                                                       (loss, gradient, weight) says where

A batch norm looks across samples by nature: it is the cause where the cut changes nothing once batch norms
are in eval mode. Read check.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rankdeck.training.verify.compare import ComputedComparison, TensorDifference
from rankdeck.training.verify.computed import Computed

Cause = Literal["batch-norm", "samples", "loss", "state", "forward", "gradient", "optimizer"]
_OF_BATCH_NORMS = ("running_mean", "running_var", "num_batches_tracked")


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


@dataclass(frozen=True)
class Experiments:
    """Computes the steps again. `compare(expected, computed)` allows for rounding; `sliced(loss_too,
    norms_frozen)` computes them on one device over the strategy's slices, `whole(norms_frozen)` over the
    batch; None where that cannot be computed or nothing is cut."""

    compare: Callable[[Computed, Computed], ComputedComparison]
    sliced: Callable[[bool, bool], Computed | None]
    whole: Callable[[bool], Computed]
    has_batch_norm: bool


def explain(computed: Computed, experiments: Experiments) -> list[Discrepancy]:
    """What differs from one device, by cause; empty where nothing does."""
    whole = experiments.compare(experiments.whole(False), computed)
    if whole.is_equal:
        return []
    found = []
    if not whole.but("state").is_equal:
        found.append(_of_steps(whole, computed, experiments))
    return found or list(_of_state(whole))  # state that differs beside weights comes of the same


def _of_steps(whole: ComputedComparison, computed: Computed, experiments: Experiments) -> Discrepancy:
    """Why losses, gradients or weights differ."""
    closest = whole
    for loss_too in (False, True):
        on_slices = experiments.sliced(loss_too, False)
        if on_slices is None:
            continue
        comparison = experiments.compare(on_slices, computed).but("state")
        if comparison.is_equal:
            return Discrepancy(_cause_of_cut(loss_too, experiments), whole.but("state").differences)
        if experiments.has_batch_norm:
            closest = comparison
    return Discrepancy(_first_in_a_step(closest), closest.but("state").differences)


def _cause_of_cut(loss_too: bool, experiments: Experiments) -> Cause:
    """What sees that the batch is cut: batch norms, and where more does once they are frozen, that."""
    frozen = experiments.has_batch_norm
    whole = experiments.whole(frozen)

    def is_whole(loss_by_slice: bool) -> bool | None:
        computed = experiments.sliced(loss_by_slice, frozen)
        return None if computed is None else experiments.compare(whole, computed).but("state").is_equal

    if frozen and is_whole(loss_too):
        return "batch-norm"
    return "samples" if is_whole(False) is False else "loss"


def _first_in_a_step(comparison: ComputedComparison) -> Cause:
    step = min(found.step for found in comparison.but("state").differences)
    kinds = {found.kind for found in comparison.differences if found.step == step}
    if "loss" in kinds:
        return "forward"
    return "gradient" if "gradient" in kinds else "optimizer"


def _of_state(whole: ComputedComparison) -> Iterator[Discrepancy]:
    """State that is not what one device has; that of batch norms is theirs by nature."""
    differences = whole.of("state")
    others = tuple(found for found in differences if not _is_of_batch_norm(found))
    yield Discrepancy("state", others) if others else Discrepancy("batch-norm", tuple(differences))


def _is_of_batch_norm(difference: TensorDifference) -> bool:
    return difference.name.rpartition(".")[2] in _OF_BATCH_NORMS
