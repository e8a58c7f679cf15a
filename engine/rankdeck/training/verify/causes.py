"""Why two steps under a strategy differ from one device: found by computing them on one device once more, cut
as the strategy cuts them.

    forwards over the strategy's slices, each as the batch's begins      otherwise: the model mixes samples
    losses over these slices                                             otherwise: the loss does
    slices one after another, each with the state that the last left     as under the strategy: state
    none of these                                                        the strategy itself: what differs
                                                                         first in a step says where

A batch norm looks across samples by nature: it is the cause where the cut changes nothing once batch norms
are in eval mode, and their running statistics are those of the slices that count. Read check.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rankdeck.training.verify.compare import ComputedComparison, Kind, TensorDifference
from rankdeck.training.verify.computed import Computed

Cause = Literal["batch-norm", "samples", "loss", "state", "forward", "gradient", "optimizer"]
_SEES: tuple[tuple[bool, Cause], ...] = ((False, "samples"), (True, "loss"))
_ORDER: tuple[Kind, ...] = ("loss", "gradient", "weight")
"""In which a step computes."""
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
    """Computes the steps again. `compare(expected, computed)` allows for rounding. `sliced(loss_by_slice,
    norms_frozen, whole_state)` computes them on one device over the strategy's slices, `whole(norms_frozen)`
    over the batch; None where that cannot be computed or nothing is cut. `forgetful()` begins each step with
    the first one's state.

    `norms_see_slices`: the model has batch norms, which see the strategy's slices and not the batch.
    """

    compare: Callable[[Computed, Computed], ComputedComparison]
    sliced: Callable[[bool, bool, bool], Computed | None]
    whole: Callable[[bool], Computed]
    forgetful: Callable[[], Computed]
    has_batch_norm: bool
    norms_see_slices: bool


def explain(computed: Computed, experiments: Experiments) -> list[Discrepancy]:
    """What differs from one device, by cause; empty where nothing does."""
    whole = experiments.compare(experiments.whole(False), computed)
    if whole.is_equal:
        return []
    if whole.but("state").is_equal:
        return list(_of_state(whole, computed, experiments))
    found = [_of_steps(whole, computed, experiments)]
    if found[0].cause == "batch-norm":  # else state that differs beside weights comes of the same
        found += _of_norms(computed, experiments)
    return found


def _of_steps(whole: ComputedComparison, computed: Computed, experiments: Experiments) -> Discrepancy:
    """Why losses, gradients or weights differ."""
    on_slices = list(_on_slices(computed, experiments))
    cause = _seen_by_cut(experiments)
    if cause is None and any(comparison.is_equal for comparison in on_slices):
        # Norms that should see the batch see its slices then.
        cause = "samples" if experiments.has_batch_norm else "state"
        cause = "batch-norm" if experiments.norms_see_slices else cause
    if cause is not None:
        return Discrepancy(cause, whole.but("state").differences)
    closest = max([whole, *on_slices], key=_first_kind)
    return Discrepancy(_first_in_a_step(closest, experiments), closest.but("state").differences)


def _on_slices(computed: Computed, experiments: Experiments) -> Iterator[ComputedComparison]:
    """With the steps over the strategy's slices, in all ways that make a difference."""
    for whole_state in (False, True):
        for loss_by_slice in (False, True):
            sliced = experiments.sliced(loss_by_slice, False, whole_state)
            if sliced is not None:
                yield experiments.compare(sliced, computed).but("state")


def _seen_by_cut(experiments: Experiments) -> Cause | None:
    """What sees on one device that the batch is cut, batch norms left out: the model, or else the loss."""
    frozen = experiments.has_batch_norm
    whole = experiments.whole(frozen)
    for loss_by_slice, cause in _SEES:
        sliced = experiments.sliced(loss_by_slice, frozen, True)
        if sliced is not None and not experiments.compare(whole, sliced).but("state").is_equal:
            return cause
    return None


def _first_kind(comparison: ComputedComparison) -> tuple[float, int]:
    """When a comparison first finds something: the step, and how far in it."""
    found = comparison.but("state").differences
    return min(((d.step, _ORDER.index(d.kind)) for d in found), default=(math.inf, 0))


def _first_in_a_step(comparison: ComputedComparison, experiments: Experiments) -> Cause:
    step, place = _first_kind(comparison)
    if _ORDER[place] == "loss" or step in comparison.lossy:
        return "state" if step > 1 and _needs_state(experiments) else "forward"
    changed = {(d.step, d.name) for d in comparison.of("weight") if d.step == step}
    return "gradient" if _ORDER[place] == "gradient" or changed <= comparison.one_sided else "optimizer"


def _needs_state(experiments: Experiments) -> bool:
    """Whether a step comes out otherwise without the state that the one before it has left."""
    whole = experiments.compare(experiments.whole(False), experiments.forgetful())
    return not whole.but("state").is_equal


def _of_state(
    whole: ComputedComparison, computed: Computed, experiments: Experiments
) -> Iterator[Discrepancy]:
    """State that is not what one device has; that of batch norms may be theirs by nature."""
    differences = whole.of("state")
    others = tuple(found for found in differences if not _is_of_batch_norm(found))
    if others or not experiments.norms_see_slices:
        yield Discrepancy("state", others or tuple(differences))
        return
    found = list(_of_norms(computed, experiments))
    yield from found or [Discrepancy("batch-norm", tuple(differences))]


def _of_norms(computed: Computed, experiments: Experiments) -> Iterator[Discrepancy]:
    """Running statistics that are not those of the slices that count."""
    sliced = experiments.sliced(True, False, True) or experiments.sliced(False, False, True)
    if sliced is not None:
        differences = experiments.compare(sliced, computed).of("state")
        wrong = tuple(found for found in differences if _is_of_batch_norm(found))
        if wrong:
            yield Discrepancy("state", wrong)


def _is_of_batch_norm(difference: TensorDifference) -> bool:
    return difference.name.rpartition(".")[2] in _OF_BATCH_NORMS
