"""What two computations of the same steps have that differs by more than rounding.

Two orders of one sum differ by rounding, and an optimizer may make much of little: Adam turns a gradient that
is zero but for rounding into a step of full length. How much, the model itself tells: the reference is
computed once more from weights that are changed by one rounding, and a tensor may differ by some multiples of
what that changes. That is measured where the narrow bounds of fp64 do not hold.

In fp32 and below single numbers prove nothing: a tensor also has to differ as a whole. In 16 bits the second
step follows from the noise of the first one, so losses and gradients of the first step are compared alone.
Read causes.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["loss", "gradient", "weight", "state"]
_CHANGE_TOLERANCE = 1e-9
"""Of what two steps change in a tensor."""
_MAX_ROUNDINGS = 64
"""Times what one number of the tensor is rounded by."""
_NOISE_FACTOR = 30.0
"""Times what one rounding of all weights changes."""
ROUNDING = {"fp64": 2.0**-24, "fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-11}
"""Relative change of a weight that shows what rounding can do. Models round to fp32 inside a run in fp64."""
_NORM_TOLERANCE = {"fp64": 0.0, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Of a tensor's change, by norms: smaller differences are none, whatever single numbers say."""
_RANK_TOLERANCE = {"fp64": 1e-9, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Of a tensor's norm: ranks that hold the same one have the same numbers in it."""
_HALF_PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class TensorDifference:
    """A tensor, or a loss, that differs after step `step` (from 1) by at most `max_difference`; `relative` to
    what the steps changed in it. `is_missing`: one of both has no gradient, or no such tensor."""

    kind: Kind
    step: int
    name: str
    max_difference: float
    relative: float
    is_missing: bool = False


@dataclass(frozen=True)
class StepComparison:
    """`differences` in the order in which a step computes; `max_difference` of any weight, absolute, by
    steps.

    `steps_with_other_loss` are steps whose losses differ by more than one rounding, and `one_sided` the
    gradients, by step and name, that only one of both has: no differences by themselves, they tell where
    others come from.
    """

    differences: tuple[TensorDifference, ...]
    max_difference: float
    steps_with_other_loss: frozenset[int] = frozenset()
    one_sided: frozenset[tuple[int, str]] = frozenset()

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def of_kind(self, *kinds: Kind) -> list[TensorDifference]:
        return [difference for difference in self.differences if difference.kind in kinds]

    def without_kinds(self, *kinds: Kind) -> StepComparison:
        """Without the differences of these kinds."""
        kept = tuple(difference for difference in self.differences if difference.kind not in kinds)
        return replace(self, differences=kept)


@dataclass(frozen=True)
class Noise:
    """The same steps twice, from weights that differ by one rounding of `precision`."""

    first: StepResults
    second: StepResults
    precision: str

    def loss_bound(self, index: int) -> float:
        first, second = self.first.losses[index], self.second.losses[index]
        return _NOISE_FACTOR * abs(first - second) + 16 * ROUNDING[self.precision] * abs(first)

    def explains_loss(self, index: int, difference: float) -> bool:
        """Whether two losses differ by no more than one rounding of all weights."""
        if self.precision != "fp64":
            return difference <= self.loss_bound(index)
        return difference <= abs(self.first.losses[index] - self.second.losses[index])

    def gradient_bound(self, index: int, name: str) -> float:
        first, second = (one.gradients[index].get(name) for one in (self.first, self.second))
        return 0.0 if first is None or second is None else _NOISE_FACTOR * _max_abs_difference(first, second)

    def tensor_bound(self, index: int, name: str) -> float:
        return _NOISE_FACTOR * _max_abs_difference(
            self.first.after[index][name], self.second.after[index][name]
        )

    def explains(self, wanted: Tensor, got: Tensor, change: Tensor) -> bool:
        """Whether two tensors differ by no more than rounding as a whole."""
        share = _NORM_TOLERANCE[self.precision]
        return share > 0 and _norm(wanted - got) <= share * _norm(change)


def decisive_step(precision: str, num_steps: int) -> int:
    """The index of the step whose gradients are compared first: what is wrong before shows there too."""
    return 0 if precision in _HALF_PRECISIONS else num_steps - 1


def compare(
    expected: StepResults,
    computed: StepResults,
    parameters: frozenset[str],
    precision: str,
    measure: Callable[[], Noise],
) -> StepComparison:
    """What of `computed` is not as expected, of the tensors that it holds. `parameters` are names of weights;
    all else is state. `measure` is called where the narrow bounds do not hold."""
    comparing = _Comparer(expected, computed, parameters, precision, measure)
    num_steps = min(len(expected.losses), len(computed.losses))
    for index in range(1 if precision in _HALF_PRECISIONS else num_steps):
        comparing.compare_losses(index)
        comparing.compare_ranks("gradient", index)
        if index in computed.gradients:
            comparing.compare_gradients(index)
        if precision in _HALF_PRECISIONS:
            continue
        comparing.compare_ranks("weight", index)
        if index in computed.after:
            comparing.compare_tensors(index)
    if precision in _HALF_PRECISIONS:
        comparing.record_max_difference()
    return StepComparison(
        tuple(comparing.differences),
        comparing.max_difference,
        frozenset(comparing.steps_with_other_loss),
        frozenset(comparing.one_sided),
    )


class _Comparer:
    """Collects what differs, and the largest difference of a weight."""

    def __init__(
        self,
        expected: StepResults,
        computed: StepResults,
        parameters: frozenset[str],
        precision: str,
        measure: Callable[[], Noise],
    ) -> None:
        self.differences: list[TensorDifference] = []
        self.max_difference = 0.0
        self.steps_with_other_loss: set[int] = set()
        self.one_sided: set[tuple[int, str]] = set()
        self._rank_tolerance = _RANK_TOLERANCE[precision]
        self._expected, self._computed = expected, computed
        self._parameters, self._measure_noise = parameters, measure
        self._zero_bounds = [_zero_bound(gradients) for gradients in expected.gradients.values()]

    def compare_losses(self, index: int) -> None:
        wanted = self._expected.losses[index]
        difference = abs(self._computed.losses[index] - wanted)
        bound = _CHANGE_TOLERANCE * max(abs(wanted), 1e-6)
        if difference <= bound:
            return
        noise = self._measure_noise()
        if not noise.explains_loss(index, difference):
            self.steps_with_other_loss.add(index + 1)
        if not difference <= bound + noise.loss_bound(index):
            self._add("loss", index, "loss", difference, abs(wanted))

    def compare_ranks(self, kind: Kind, index: int) -> None:
        """What ranks that hold the same do not have alike."""
        if index < len(self._computed.rank_distances):
            for name, apart in self._computed.rank_distances[index][kind].items():
                if not apart <= self._rank_tolerance:
                    self.differences.append(TensorDifference(kind, index + 1, name, math.inf, apart))

    def compare_gradients(self, index: int) -> None:
        """A gradient that is not there counts as zeros: whether that matters, weights tell."""
        for name, gradient in self._expected.gradients[index].items():
            other = self._computed.gradients[index].get(name)
            like = other if gradient is None else gradient
            if like is None:
                continue
            if gradient is None or other is None:
                self.one_sided.add((index + 1, name))
            wanted, got = (torch.zeros_like(like) if one is None else one for one in (gradient, other))
            if wanted.shape != got.shape:
                self._add("gradient", index, name, math.inf, 0.0)
                continue
            difference, size = _max_abs_difference(wanted, got), _max_abs(wanted)
            bound = _CHANGE_TOLERANCE * size + self._zero_bounds[index]
            if difference <= bound:
                continue
            noise = self._measure_noise()
            if not difference <= bound + noise.gradient_bound(index, name) and not noise.explains(
                wanted, got, wanted
            ):
                self._add("gradient", index, name, difference, size, gradient is None or other is None)

    def compare_tensors(self, index: int) -> None:
        """Weights, and after the last step state: that is put in order when it is saved or evaluated."""
        is_last = index + 1 == len(self._computed.losses)
        for name, wanted in self._expected.after[index].items():
            kind: Kind = "weight" if name in self._parameters else "state"
            got = self._computed.after[index].get(name)
            if got is None or got.shape != wanted.shape:
                self._add(kind, index, name, math.inf, 0.0, is_missing=True)
            elif kind == "weight" or is_last:
                self._compare_tensor(kind, index, name, wanted, got)

    def record_max_difference(self) -> None:
        """The largest difference of weights that are not compared."""
        for index, after in self._computed.after.items():
            for name in self._parameters & after.keys():
                self.max_difference = max(
                    self.max_difference, _max_abs_difference(self._expected.after[index][name], after[name])
                )

    def _compare_tensor(self, kind: Kind, index: int, name: str, wanted: Tensor, got: Tensor) -> None:
        difference = _max_abs_difference(wanted, got)
        rounding = _rounding_bound(wanted)
        if not difference <= rounding and kind == "weight":
            by_chance = self._rounding_mask(index, name)
            got = got if by_chance is None else torch.where(by_chance, wanted, got)
            difference = _max_abs_difference(wanted, got)
        if kind == "weight":
            self.max_difference = max(self.max_difference, difference)
        if difference <= rounding:
            return
        before = self._expected.before[name]
        change = _max_abs_difference(before, wanted)
        bound = rounding + _CHANGE_TOLERANCE * change
        if difference <= bound:
            return
        noise = self._measure_noise()
        if not difference <= bound + noise.tensor_bound(index, name) and not noise.explains(
            wanted, got, wanted - before
        ):
            self._add(kind, index, name, difference, change)

    def _rounding_mask(self, index: int, name: str) -> Tensor | None:
        """Which numbers of a weight had a gradient that is zero but for rounding: what an optimizer makes of
        that is chance."""
        found: Tensor | None = None
        for step in range(index + 1):
            gradients = [one.gradients.get(step, {}).get(name) for one in (self._expected, self._computed)]
            sizes = [gradient.abs() for gradient in gradients if gradient is not None]
            if sizes:
                largest = torch.stack(sizes).amax(0)
                some = (largest <= self._zero_bounds[step]) & (largest > 0)
                found = some if found is None else found | some
        return found

    def _add(
        self, kind: Kind, index: int, name: str, largest: float, of: float, is_missing: bool = False
    ) -> None:
        relative = largest / of if of else math.inf
        self.differences.append(TensorDifference(kind, index + 1, name, largest, relative, is_missing))


def _zero_bound(gradients: Mapping[str, Tensor | None]) -> float:
    """What a gradient of a model may be where it should be zero."""
    present = [gradient for gradient in gradients.values() if gradient is not None]
    if not present:
        return 0.0
    return 16 * torch.finfo(present[0].dtype).eps * max(map(_max_abs, present))


def _rounding_bound(tensor: Tensor) -> float:
    """What two orders of one sum may differ by."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return 0.0
    return float(_MAX_ROUNDINGS * torch.finfo(tensor.dtype).eps * _max_abs(tensor))


def _max_abs_difference(tensor: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where one of both is NaN alone."""
    if not tensor.numel():
        return 0.0
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return float((tensor.long() - other.long()).abs().max())
    difference = (tensor - other).abs()
    largest = float(difference.max())
    if math.isfinite(largest):
        return largest
    difference[tensor == other] = 0.0  # infinities that are the same
    if bool((torch.isnan(tensor) ^ torch.isnan(other)).any()):
        return math.inf
    return float(torch.nan_to_num(difference, nan=0.0, posinf=math.inf).max())


def _max_abs(tensor: Tensor) -> float:
    """The largest absolute value."""
    if not tensor.numel():
        return 0.0
    largest = float(tensor.abs().max())
    return largest if math.isfinite(largest) else float(torch.nan_to_num(tensor.abs()).max())


def _norm(tensor: Tensor) -> float:
    """NaN where the tensor holds one: what is compared with it is not smaller."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return math.nan
    return float(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float64)))


def make_perturbation(precision: str) -> Callable[[nn.Module], None]:
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


def is_finite(computed: StepResults) -> bool:
    """Whether losses and weights are numbers that can be compared."""
    weights = [tensor for after in computed.after.values() for tensor in after.values()]
    return all(map(math.isfinite, computed.losses)) and all(
        bool(torch.isfinite(tensor).all()) for tensor in weights if tensor.dtype.is_floating_point
    )


# What two steps compute, on one device or under a strategy: the same record for both, on the host.

Tensors = Mapping[str, Tensor]
"""By the model's own names; a tied weight under each of its names."""


@dataclass
class StepResults:
    """Some steps: a loss for each, by step (from 0) gradients by parameter as the optimizer got them (None:
    no gradient), and the weights and persistent buffers after it. `before` are those that the steps began
    with, and `seconds` what one device took for each. `rank_distances` says by kind how far, relative to its
    norm, a gradient or a weight of a step is apart on ranks that hold the same."""

    before: Tensors = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradients: dict[int, Mapping[str, Tensor | None]] = field(default_factory=dict)
    after: dict[int, Tensors] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    rank_distances: list[Mapping[str, Mapping[str, float]]] = field(default_factory=list)


def snapshot(tensors: Tensors) -> dict[str, Tensor]:
    """Copies on the host; one copy for each tensor, whatever its number of names."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()}
