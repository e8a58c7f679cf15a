"""What two computations of the same steps have that differs by more than rounding.

Two orders of one sum differ by rounding, and an optimizer may make much of little: Adam turns a gradient that
is zero but for rounding into a step of full length. How much, the model itself tells: the reference is
computed once more from weights that are changed by one rounding, and a tensor may differ by some multiples of
what that changes. Without such a measurement only the narrow bounds of fp64 hold.

In fp32 and below single numbers prove nothing: a tensor also has to differ as a whole. In 16 bits the second
step follows from the noise of the first one, so losses and gradients of the first step are compared alone.
Read causes.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
_OF_WHOLE = {"fp64": 0.0, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Of a tensor's change, by norms: smaller differences are none, whatever single numbers say."""
_APART = {"fp64": 1e-9, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Of a tensor's norm: ranks that hold the same one have the same numbers in it."""
_HALF = ("bf16", "fp16")


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
    """`differences` in the order in which a step computes; `largest` of any weight, absolute, by steps.

    `lossy` are steps whose losses differ by more than one rounding, and `one_sided` the gradients, by step
    and name, that only one of both has: no differences by themselves, they tell where others come from.
    """

    differences: tuple[TensorDifference, ...]
    largest: float
    lossy: frozenset[int] = frozenset()
    one_sided: frozenset[tuple[int, str]] = frozenset()

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def of(self, *kinds: Kind) -> list[TensorDifference]:
        return [difference for difference in self.differences if difference.kind in kinds]

    def but(self, *kinds: Kind) -> ComputedComparison:
        """Without the differences of these kinds."""
        kept = tuple(difference for difference in self.differences if difference.kind not in kinds)
        return replace(self, differences=kept)


@dataclass(frozen=True)
class Noise:
    """The same steps twice, from weights that differ by one rounding of `precision`."""

    first: Computed
    second: Computed
    precision: str

    @property
    def num_steps(self) -> int:
        """How many steps can be compared."""
        return 1 if self.precision in _HALF else len(self.first.losses)

    def of_loss(self, index: int) -> float:
        first, second = self.first.losses[index], self.second.losses[index]
        return _TIMES_NOISE * abs(first - second) + 16 * ROUNDING[self.precision] * abs(first)

    def hides_loss(self, index: int, difference: float) -> bool:
        """Whether two losses differ by no more than one rounding of all weights."""
        if self.precision != "fp64":
            return difference <= self.of_loss(index)
        return difference <= abs(self.first.losses[index] - self.second.losses[index])

    def of_gradient(self, index: int, name: str) -> float:
        first, second = (one.gradients[index].get(name) for one in (self.first, self.second))
        return 0.0 if first is None or second is None else _TIMES_NOISE * _distance(first, second)

    def of_tensor(self, index: int, name: str) -> float:
        return _TIMES_NOISE * _distance(self.first.after[index][name], self.second.after[index][name])

    def hides(self, wanted: Tensor, got: Tensor, change: Tensor) -> bool:
        """Whether two tensors differ by no more than rounding as a whole."""
        share = _OF_WHOLE[self.precision]
        return share > 0 and _norm(wanted - got) <= share * _norm(change)


def compare(
    expected: Computed, computed: Computed, parameters: frozenset[str], noise: Noise | None = None
) -> ComputedComparison:
    """What of `computed` is not as expected. `parameters` are names of weights; all else is state."""
    num_steps = len(expected.losses) if noise is None else noise.num_steps
    found: list[TensorDifference] = []
    for index in range(num_steps):
        found += _losses(expected, computed, noise, index)
        found += _gradients(expected, computed, noise, index)
        if noise is None or noise.precision not in _HALF:
            found += _tensors(expected, computed, noise, index, parameters)
    pairs = [
        (wanted[name], got[name])
        for wanted, got in zip(expected.after, computed.after, strict=True)
        for name in parameters & wanted.keys() & got.keys()
    ]
    largest = max((_distance(*pair) for pair in pairs if pair[0].shape == pair[1].shape), default=0.0)
    one_sided = frozenset(
        (index + 1, name)
        for index, (wanted, got) in enumerate(zip(expected.gradients, computed.gradients, strict=False))
        for name, gradient in wanted.items()
        if (gradient is None) != (got.get(name) is None)
    )
    return ComputedComparison(tuple(found), largest, _lossy(expected, computed, noise), one_sided)


def _lossy(expected: Computed, computed: Computed, noise: Noise | None) -> frozenset[int]:
    distances = [abs(got - wanted) for wanted, got in zip(expected.losses, computed.losses, strict=True)]
    return frozenset(
        index + 1
        for index, (distance, wanted) in enumerate(zip(distances, expected.losses, strict=True))
        if not distance <= _OF_CHANGE * max(abs(wanted), 1e-6)
        and (noise is None or not noise.hides_loss(index, distance))
    )


def _losses(
    expected: Computed, computed: Computed, noise: Noise | None, index: int
) -> Iterator[TensorDifference]:
    wanted = expected.losses[index]
    difference = abs(computed.losses[index] - wanted)
    bound = _OF_CHANGE * max(abs(wanted), 1e-6) + (0.0 if noise is None else noise.of_loss(index))
    if not difference <= bound:
        yield TensorDifference("loss", index + 1, "loss", difference, _ratio(difference, wanted))


def _gradients(
    expected: Computed, computed: Computed, noise: Noise | None, index: int
) -> Iterator[TensorDifference]:
    """A gradient that is not there counts as zeros: whether that matters, weights tell."""
    gradients = expected.gradients[index]
    largest = max((_size(gradient) for gradient in gradients.values() if gradient is not None), default=0.0)
    yield from _between_ranks(computed, noise, index, "gradient")
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
        bound += 0.0 if noise is None else noise.of_gradient(index, name)
        if not difference <= bound and (noise is None or not noise.hides(wanted, got, wanted)):
            is_missing = gradient is None or other is None
            relative = _ratio(difference, _size(wanted))
            yield TensorDifference("gradient", index + 1, name, difference, relative, is_missing)


def _between_ranks(
    computed: Computed, noise: Noise | None, index: int, kind: Kind
) -> Iterator[TensorDifference]:
    """What ranks that hold the same do not have alike."""
    bound = _APART[noise.precision if noise is not None else "fp64"]
    for name, apart in (computed.apart[index][kind] if computed.apart else {}).items():
        if not apart <= bound:
            yield TensorDifference(kind, index + 1, name, math.inf, apart)


def _tensors(
    expected: Computed,
    computed: Computed,
    noise: Noise | None,
    index: int,
    parameters: frozenset[str],
) -> Iterator[TensorDifference]:
    """Weights, and after the last step state: before, it is put in order when it is saved or evaluated."""
    yield from _between_ranks(computed, noise, index, "weight")
    for name, wanted in expected.after[index].items():
        kind: Kind = "weight" if name in parameters else "state"
        got = computed.after[index].get(name)
        if got is None or got.shape != wanted.shape:
            yield TensorDifference(kind, index + 1, name, math.inf, math.inf, is_missing=True)
            continue
        if kind == "state" and index + 1 < len(expected.losses):
            continue
        before = expected.before[name]
        difference, change = _distance(wanted, got), _distance(before, wanted)
        bound = _bound(wanted, change) + (0.0 if noise is None else noise.of_tensor(index, name))
        if not difference <= bound and (noise is None or not noise.hides(wanted, got, wanted - before)):
            yield TensorDifference(kind, index + 1, name, difference, _ratio(difference, change))


def _bound(tensor: Tensor, change: float) -> float:
    """Without noise: what two orders of one sum may differ by."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return 0.0
    rounding = _ROUNDINGS * torch.finfo(tensor.dtype).eps * _size(tensor)
    return _OF_CHANGE * change + rounding


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


def _norm(tensor: Tensor) -> float:
    """NaN where the tensor holds one: what is compared with it is not smaller."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return math.nan
    return float(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float64)))


def _ratio(difference: float, scale: float) -> float:
    return difference / abs(scale) if scale else math.inf


def rounded_once(precision: str) -> Callable[[nn.Module], None]:
    """Changes every weight of a model by about one rounding, up or down by a seed of its own."""
    relative = ROUNDING[precision]

    @torch.no_grad()
    def perturb(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(7)
        for parameter in model.parameters():
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.device) * 2 - 1
            parameter.mul_(1 + relative * signs)

    return perturb


def is_finite(computed: Computed) -> bool:
    """Whether losses and weights are numbers that can be compared."""
    weights = [tensor for after in computed.after for tensor in after.values()]
    return all(map(math.isfinite, computed.losses)) and all(
        bool(torch.isfinite(tensor).all()) for tensor in weights if tensor.dtype.is_floating_point
    )
