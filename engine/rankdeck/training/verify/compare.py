"""Compare two computations of the same steps, and find differences larger than rounding errors.

Summing in two different orders gives results that differ by rounding, and an optimizer may amplify the
difference: Adam turns a gradient that is zero except for rounding into a full-length step. The model itself
shows the size of this effect: the reference is computed once more from weights changed by one rounding, and
tensors may differ by a multiple of the resulting change. The reference is computed again only if tensors
exceed the narrow bounds of fp64.

In fp32 and 16 bits, single elements prove nothing: a tensor also has to differ as a whole. In 16 bits the
first step's rounding noise dominates the second step, so only the first step's losses and gradients are
compared. Read causes.py next.
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
"""Tolerance relative to how far two steps move a tensor."""
_MAX_ROUNDINGS = 64
"""Tolerance as a multiple of one rounding of the tensor's largest number."""
_NOISE_FACTOR = 30.0
"""Tolerance as a multiple of the effect that one rounding of all weights has."""
ROUNDING = {"fp64": 2.0**-24, "fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-11}
"""Relative change of weights that counts as one rounding. Models may round to fp32 even in an fp64 run."""
_NORM_TOLERANCE = {"fp64": 0.0, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Tolerance relative to the norm of a tensor's change. If the norm of the difference is within this
tolerance, two tensors count as equal, whatever their single elements show."""
_RANK_TOLERANCE = {"fp64": 1e-9, "fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Tolerance between ranks that hold the same tensor, relative to the tensor's norm."""
_HALF_PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class TensorDifference:
    """A tensor or loss that differs after step `step` (from 1); `max_difference` is the largest difference of
    any element.

    `relative` is the difference relative to the tensor's change. `is_missing`: only one of the two results
    has this gradient or tensor.
    """

    kind: Kind
    step: int
    name: str
    max_difference: float
    relative: float
    is_missing: bool = False


@dataclass(frozen=True)
class StepComparison:
    """Result of a comparison.

    `differences` are in the order in which a step computes the tensors; `max_difference` is the largest
    absolute difference of any weight over all steps. `steps_with_other_loss` are steps whose losses differ by
    more than one rounding; `one_sided` lists the gradients, by step and name, that only one of the two
    results has. Neither counts as a difference by itself, but both help to locate the origin of the
    differences.
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
        """Return a copy without the differences of these kinds."""
        remaining = tuple(difference for difference in self.differences if difference.kind not in kinds)
        return replace(self, differences=remaining)


@dataclass(frozen=True)
class Noise:
    """Results of the same steps from two sets of weights that differ by one rounding of `precision`."""

    first: StepResults
    second: StepResults
    precision: str

    def loss_bound(self, index: int) -> float:
        first, second = self.first.losses[index], self.second.losses[index]
        return _NOISE_FACTOR * abs(first - second) + 16 * ROUNDING[self.precision] * abs(first)

    def explains_loss(self, index: int, difference: float) -> bool:
        """Check whether a loss `difference` is no larger than the effect of one rounding of all weights."""
        if self.precision != "fp64":
            return difference <= self.loss_bound(index)
        return difference <= abs(self.first.losses[index] - self.second.losses[index])

    def gradient_bound(self, index: int, name: str) -> float:
        first, second = (results.gradients[index].get(name) for results in (self.first, self.second))
        return 0.0 if first is None or second is None else _NOISE_FACTOR * _max_abs_difference(first, second)

    def tensor_bound(self, index: int, name: str) -> float:
        return _NOISE_FACTOR * _max_abs_difference(
            self.first.after[index][name], self.second.after[index][name]
        )

    def explains(self, expected: Tensor, got: Tensor, change: Tensor) -> bool:
        """Check whether rounding errors explain the difference between `expected` and `got`: whether the norm
        of this difference is at most a share of the norm of `change` that depends on the precision."""
        share = _NORM_TOLERANCE[self.precision]
        return share > 0 and _norm(expected - got) <= share * _norm(change)


def decisive_step(precision: str, num_steps: int) -> int:
    """Return the index of the step whose gradients are compared first; errors of earlier steps also show in
    this step."""
    return 0 if precision in _HALF_PRECISIONS else num_steps - 1


def compare(
    expected: StepResults,
    computed: StepResults,
    parameters: frozenset[str],
    precision: str,
    measure: Callable[[], Noise],
) -> StepComparison:
    """Compare the tensors in `computed` with those in `expected`.

    `parameters` names the weights; all other tensors are state. `measure` is called only if tensors exceed
    the narrow bounds.
    """
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
    """Collector of differences, which also tracks the largest difference of a weight."""

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
        expected = self._expected.losses[index]
        difference = abs(self._computed.losses[index] - expected)
        bound = _CHANGE_TOLERANCE * max(abs(expected), 1e-6)
        if difference <= bound:
            return
        noise = self._measure_noise()
        if not noise.explains_loss(index, difference):
            self.steps_with_other_loss.add(index + 1)
        if not difference <= bound + noise.loss_bound(index):
            self._add("loss", index, "loss", difference, abs(expected))

    def compare_ranks(self, kind: Kind, index: int) -> None:
        """Record tensors that should be the same on several ranks but differ between them."""
        if index < len(self._computed.rank_distances):
            for name, apart in self._computed.rank_distances[index][kind].items():
                # `not <=` instead of `>`, here and below: NaN is a difference.
                if not apart <= self._rank_tolerance:
                    self.differences.append(TensorDifference(kind, index + 1, name, math.inf, apart))

    def compare_gradients(self, index: int) -> None:
        """Compare gradients. A missing gradient counts as zeros; the comparison of weights shows whether it
        matters."""
        for name, gradient in self._expected.gradients[index].items():
            other = self._computed.gradients[index].get(name)
            like = other if gradient is None else gradient
            if like is None:
                continue
            if gradient is None or other is None:
                self.one_sided.add((index + 1, name))
            expected, got = (
                torch.zeros_like(like) if tensor is None else tensor for tensor in (gradient, other)
            )
            if expected.shape != got.shape:
                self._add("gradient", index, name, math.inf, 0.0)
                continue
            difference, size = _max_abs_difference(expected, got), _max_abs(expected)
            bound = _CHANGE_TOLERANCE * size + self._zero_bounds[index]
            if difference <= bound:
                continue
            noise = self._measure_noise()
            if not difference <= bound + noise.gradient_bound(index, name) and not noise.explains(
                expected, got, expected
            ):
                self._add("gradient", index, name, difference, size, gradient is None or other is None)

    def compare_tensors(self, index: int) -> None:
        """Compare weights after every step, and state only after the last step: strategies synchronize state
        only for saving and evaluation."""
        is_last = index + 1 == len(self._computed.losses)
        for name, expected in self._expected.after[index].items():
            kind: Kind = "weight" if name in self._parameters else "state"
            got = self._computed.after[index].get(name)
            if got is None or got.shape != expected.shape:
                self._add(kind, index, name, math.inf, 0.0, is_missing=True)
            elif kind == "weight" or is_last:
                self._compare_tensor(kind, index, name, expected, got)

    def record_max_difference(self) -> None:
        """Record the largest difference of weights, for a precision in which weights are not compared."""
        for index, after in self._computed.after.items():
            for name in self._parameters & after.keys():
                self.max_difference = max(
                    self.max_difference, _max_abs_difference(self._expected.after[index][name], after[name])
                )

    def _compare_tensor(self, kind: Kind, index: int, name: str, expected: Tensor, got: Tensor) -> None:
        difference = _max_abs_difference(expected, got)
        rounding = _rounding_bound(expected)
        if not difference <= rounding and kind == "weight":
            by_chance = self._rounding_mask(index, name)
            got = got if by_chance is None else torch.where(by_chance, expected, got)
            difference = _max_abs_difference(expected, got)
        if kind == "weight":
            self.max_difference = max(self.max_difference, difference)
        if difference <= rounding:
            return
        before = self._expected.before[name]
        change = _max_abs_difference(before, expected)
        bound = rounding + _CHANGE_TOLERANCE * change
        if difference <= bound:
            return
        noise = self._measure_noise()
        if not difference <= bound + noise.tensor_bound(index, name) and not noise.explains(
            expected, got, expected - before
        ):
            self._add(kind, index, name, difference, change)

    def _rounding_mask(self, index: int, name: str) -> Tensor | None:
        """Return a mask, True where the weight's gradient was zero except for rounding: the optimizer's
        result there is random."""
        mask: Tensor | None = None
        for step in range(index + 1):
            gradients = [
                results.gradients.get(step, {}).get(name) for results in (self._expected, self._computed)
            ]
            sizes = [gradient.abs() for gradient in gradients if gradient is not None]
            if sizes:
                largest = torch.stack(sizes).amax(0)
                some = (largest <= self._zero_bounds[step]) & (largest > 0)
                mask = some if mask is None else mask | some
        return mask

    def _add(
        self, kind: Kind, index: int, name: str, largest: float, of: float, is_missing: bool = False
    ) -> None:
        relative = largest / of if of else math.inf
        self.differences.append(TensorDifference(kind, index + 1, name, largest, relative, is_missing))


def _zero_bound(gradients: Mapping[str, Tensor | None]) -> float:
    """Return a bound below which a model's gradient counts as zero."""
    present = [gradient for gradient in gradients.values() if gradient is not None]
    if not present:
        return 0.0
    return 16 * torch.finfo(present[0].dtype).eps * max(map(_max_abs, present))


def _rounding_bound(tensor: Tensor) -> float:
    """Return an upper bound on how much a tensor differs if its sums are computed in another order."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return 0.0
    return float(_MAX_ROUNDINGS * torch.finfo(tensor.dtype).eps * _max_abs(tensor))


def _max_abs_difference(tensor: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference; infinite if only one of the tensors has NaN at some
    position."""
    if not tensor.numel():
        return 0.0
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        # Converted to long: bool has no subtraction, and unsigned integers wrap around.
        return float((tensor.long() - other.long()).abs().max())
    difference = (tensor - other).abs()
    largest = float(difference.max())
    if math.isfinite(largest):
        return largest
    difference[tensor == other] = 0.0  # equal infinities
    if bool((torch.isnan(tensor) ^ torch.isnan(other)).any()):
        return math.inf
    return float(torch.nan_to_num(difference, nan=0.0, posinf=math.inf).max())


def _max_abs(tensor: Tensor) -> float:
    """Return the largest absolute value."""
    if not tensor.numel():
        return 0.0
    largest = float(tensor.abs().max())
    return largest if math.isfinite(largest) else float(torch.nan_to_num(tensor.abs()).max())


def _norm(tensor: Tensor) -> float:
    """Return the norm; NaN if the tensor contains NaN, so that every comparison is false."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return math.nan
    return float(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float64)))


def make_perturbation(precision: str) -> Callable[[nn.Module], None]:
    """Return a function that moves every weight up or down by about one rounding, with a fixed random
    seed."""
    relative = ROUNDING[precision]

    @torch.no_grad()
    def perturb(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(7)
        for parameter in model.parameters():
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            # Drawn on the CPU, so that every device gets the same signs.
            signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.device) * 2 - 1
            parameter.mul_(1 + relative * signs)

    return perturb


def is_finite(computed: StepResults) -> bool:
    """Check whether losses and weights are finite, so that they can be compared."""
    weights = [tensor for after in computed.after.values() for tensor in after.values()]
    return all(map(math.isfinite, computed.losses)) and all(
        bool(torch.isfinite(tensor).all()) for tensor in weights if tensor.dtype.is_floating_point
    )


# Results of two steps, in the same form for one device and for a strategy, on the CPU.

Tensors = Mapping[str, Tensor]
"""Tensors by the model's own names; a tied weight under each of its names."""


@dataclass
class StepResults:
    """Results of some steps, on the CPU.

    For each step (from 0): the loss, the gradients passed to the optimizer, by parameter (None: no gradient),
    and the weights and persistent buffers after the step. `before` holds the tensors before the first step,
    `seconds` the time that one device took for each step. `rank_distances` holds, by kind and name, how far a
    gradient or weight differs between ranks that should hold the same tensor, relative to the tensor's norm.
    """

    before: Tensors = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradients: dict[int, Mapping[str, Tensor | None]] = field(default_factory=dict)
    after: dict[int, Tensors] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    rank_distances: list[Mapping[str, Mapping[str, float]]] = field(default_factory=list)


def snapshot(tensors: Tensors) -> dict[str, Tensor]:
    """Copy tensors to the CPU; a tensor with several names is copied only once."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()}
