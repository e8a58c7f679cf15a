"""What two computations of the same steps have that differs by more than rounding.

Two orders of one sum differ by rounding, and an optimizer may make much of little: Adam turns a gradient that
is zero but for rounding into a step of full length. How much, the model itself tells: the reference is
computed once more from weights that are changed by one rounding, and a tensor may differ by some multiples of
what that changes. Without such a measurement only the narrow bounds of fp64 hold. Read causes.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rankdeck.training.verify.computed import Computed

Kind = Literal["loss", "gradient", "weight", "state"]
_OF_CHANGE = 1e-9
"""Of what two steps change in a tensor."""
_ROUNDINGS = 64
"""Times what one number of the tensor is rounded by."""
_TIMES_NOISE = 30.0
"""Times what one rounding of all weights changes."""
ROUNDING = {"fp64": 2.0**-24, "fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-11}
"""Relative change of a weight that shows what rounding can do. Models round to fp32 inside a run in fp64."""


@dataclass(frozen=True)
class TensorDifference:
    """A tensor, or a loss, that differs after step `step` (from 1) by at most `largest`; `relative` to what
    the steps changed in it. `is_missing`: one of both has no gradient, or no such tensor."""

    kind: Kind
    step: int
    name: str
    largest: float
    relative: float
    is_missing: bool = False


@dataclass(frozen=True)
class ComputedComparison:
    """`differences` in the order in which a step computes; `largest` of any weight, absolute, by steps."""

    differences: tuple[TensorDifference, ...]
    largest: float

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def of(self, *kinds: Kind) -> list[TensorDifference]:
        return [difference for difference in self.differences if difference.kind in kinds]

    def but(self, *kinds: Kind) -> ComputedComparison:
        """Without the differences of these kinds."""
        kept = tuple(difference for difference in self.differences if difference.kind not in kinds)
        return ComputedComparison(kept, self.largest)


def compare(
    expected: Computed,
    computed: Computed,
    parameters: frozenset[str],
    noise: tuple[Computed, Computed] | None = None,
) -> ComputedComparison:
    """What of `computed` is not as expected. `parameters` are names of weights; what else there is, is state.
    `noise` are the same steps twice, from weights that differ by one rounding."""
    found: list[TensorDifference] = []
    largest = 0.0
    for index in range(len(expected.losses)):
        step = index + 1
        wanted, got = expected.losses[index], computed.losses[index]
        bound = 1e-9 * max(abs(wanted), 1e-6)
        if noise is not None:
            bound += _TIMES_NOISE * abs(noise[0].losses[index] - noise[1].losses[index])
        if not abs(got - wanted) <= bound:
            found.append(
                TensorDifference("loss", step, "loss", abs(got - wanted), _ratio(abs(got - wanted), wanted))
            )
        found += _gradients(expected, computed, noise, index)
        for name, tensor in expected.after[index].items():
            kind: Kind = "weight" if name in parameters else "state"
            other = computed.after[index].get(name)
            if other is None or other.shape != tensor.shape:
                found.append(TensorDifference(kind, step, name, math.inf, math.inf, is_missing=True))
                continue
            if kind == "state" and step < len(expected.losses):
                continue  # it is put in order when it is saved or evaluated
            difference = _distance(tensor, other)
            if kind == "weight":
                largest = max(largest, difference)
            change = _distance(expected.before[name], tensor)
            rounding = 0.0 if noise is None else _distance(*(one.after[index][name] for one in noise))
            if not difference <= _bound(tensor, change, rounding):
                found.append(TensorDifference(kind, step, name, difference, _ratio(difference, change)))
    return ComputedComparison(tuple(found), largest)


def _gradients(
    expected: Computed, computed: Computed, noise: tuple[Computed, Computed] | None, index: int
) -> Iterator[TensorDifference]:
    """A gradient that is not there counts as zeros: whether that matters, weights tell."""
    gradients = expected.gradients[index]
    largest = max((_size(gradient) for gradient in gradients.values() if gradient is not None), default=0.0)
    for name, gradient in gradients.items():
        other = computed.gradients[index].get(name)
        if gradient is None and other is None:
            continue
        like = other if gradient is None else gradient
        assert like is not None
        wanted, got = (torch.zeros_like(like) if one is None else one for one in (gradient, other))
        if wanted.shape != got.shape:
            yield TensorDifference("gradient", index + 1, name, math.inf, math.inf)
            continue
        difference = _distance(wanted, got)
        bound = _OF_CHANGE * _size(wanted) + 16 * torch.finfo(like.dtype).eps * largest
        if noise is not None:
            first, second = (one.gradients[index].get(name) for one in noise)
            if first is not None and second is not None:
                bound += _TIMES_NOISE * _distance(first, second)
        if not difference <= bound:
            is_missing = gradient is None or other is None
            yield TensorDifference(
                "gradient", index + 1, name, difference, _ratio(difference, _size(wanted)), is_missing
            )


def _bound(tensor: Tensor, change: float, noise: float) -> float:
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return 0.0
    rounding = _ROUNDINGS * torch.finfo(tensor.dtype).eps * _size(tensor)
    return _OF_CHANGE * change + rounding + _TIMES_NOISE * noise


def _distance(tensor: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where one of both is NaN alone."""
    if not tensor.numel():
        return 0.0
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return float((tensor.long() - other.long()).abs().max())
    difference = (tensor - other).abs()
    difference[tensor == other] = 0.0  # infinities that are the same
    if bool((torch.isnan(tensor) ^ torch.isnan(other)).any()):
        return math.inf
    return float(torch.nan_to_num(difference, nan=0.0, posinf=math.inf).max())


def _size(tensor: Tensor) -> float:
    return float(torch.nan_to_num(tensor.abs()).max()) if tensor.numel() else 0.0


def _ratio(difference: float, scale: float) -> float:
    return difference / abs(scale) if scale else math.inf


def rounded_once(precision: str) -> Callable[[nn.Module], None]:
    """Changes every weight of a model by about one rounding, up or down by a seed of its own."""
    relative = ROUNDING[precision]

    @torch.no_grad()
    def perturb(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(7)
        for parameter in model.parameters():
            signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.device) * 2 - 1
            parameter.mul_(1 + relative * signs)

    return perturb


def is_finite(computed: Computed) -> bool:
    """Whether losses and weights are numbers that can be compared."""
    weights = [tensor for after in computed.after for tensor in after.values()]
    return all(map(math.isfinite, computed.losses)) and all(
        bool(torch.isfinite(tensor).all()) for tensor in weights if tensor.dtype.is_floating_point
    )
