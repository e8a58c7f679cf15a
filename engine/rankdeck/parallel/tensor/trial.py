"""Try a split numerically: compare the combined results of all ranks with those of the full model.

Shapes do not reveal that a norm, a maximum or a reshape into heads between a column-wise layer and its
row-wise layer needs all features: slices have valid shapes as well. So the trial runs a small batch once
through the full model and once as the ranks would, each rank in its own thread with its slices
(split_plan.py), exchanging tensors at row-wise layers. The outputs of all ranks must equal the full model's,
and so must the gradients: gradients of one rank's outputs flow back through the row-wise layers to the slices
of all ranks.

The weights have the model's own values in fp64, with noise, because a bias that is initially zero would hide
how it is used. A model without values (in planning) gets random values. The trial uses training mode if the
model is deterministic in it, else evaluation mode. Read plan_check.py next.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.diagnose.exceptions import user_location
from rankdeck.models.checkpointing import undo_checkpointing
from rankdeck.parallel.pytree import fp64_dtype, map_tensors, tensor_leaves
from rankdeck.parallel.tensor.attention import HeadCount
from rankdeck.parallel.tensor.split_plan import SplitLayer, UsedOutsideLayerError, apply_slices
from rankdeck.torch_compat.dispatch import in_backward, without_modes
from rankdeck.torch_compat.fake_tensors import FakeTensor
from rankdeck.torch_compat.modules import Dropout, deep_copy

CallModel = Callable[[nn.Module, Any], Any]
_MAX_RANKS = 4
"""Maximum number of ranks in a trial: further ranks would run the same operations."""
_EXCHANGE_TIMEOUT_S = 60.0
_TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3}
"""Relative tolerances by dtype; they are loose because some models compute norms and softmax in fp32 whatever
the input dtype."""


@dataclass(frozen=True)
class SplitDifference:
    """Difference between a split model and the full model.

    `error` is the error that the model's own code raised on the slices or, if `is_outside` is true, the name
    of a weight that was used outside of its layer. If `error` is None, values differ by up to `relative`
    times the largest value.
    """

    error: str | None = None
    is_outside: bool = False
    relative: float = 0.0


class TrialImpossibleError(Exception):
    """Error for a model that is too large for a trial, or whose results cannot be compared in any mode."""


@dataclass(frozen=True)
class _TrialMode:
    """Settings of a trial: training or evaluation mode, dtype, and noise."""

    is_training: bool
    dtype: torch.dtype
    is_perturbed: bool
    buffer_fill: int = 1
    """Value with which buffers without values are filled."""


_TRIAL_MODES = [
    _TrialMode(trains, dtype, disturbed, blank)
    for dtype, disturbed in ((torch.float64, True), (torch.float64, False), (torch.float32, False))
    for blank in (1, 0)
    for trains in (True, False)
]


@dataclass
class _Outcome:
    outputs: list[Tensor]
    gradients: list[Tensor | None]


class SplitTrial:
    """Trial of a model on a small batch, `inputs`, which `call` passes to the model.

    Raises:
        TrialImpossibleError: the model cannot be copied, or gives no results that could be compared.
    """

    def __init__(self, model: nn.Module, inputs: Any, num_ranks: int, call: CallModel) -> None:
        # A divisor of the real number, so that widths divisible by that are divisible by this one, too.
        self._num_ranks = max((n for n in range(2, _MAX_RANKS + 1) if num_ranks % n == 0), default=num_ranks)
        self._rank_factor = num_ranks // self._num_ranks
        self._call = call
        with _isolated():
            self._base, self._inputs, self._reference, self._tolerance = self._prepare(model, inputs)

    def _prepare(self, model: nn.Module, inputs: Any) -> tuple[nn.Module, Any, _Outcome, float]:
        """Find the first trial mode in which executing the model twice gives the same finite values.

        Return the copy of the model, its inputs, its results and the tolerance in that mode.
        """
        for way in _TRIAL_MODES:
            try:
                base = _copy_with_values(model, way)
                values = map_tensors(inputs, functools.partial(_input_values, way))
                outcome = self._run(base, values, seed=0)
                again = self._run(base, values, seed=1)
            except Exception:  # the user's code may raise anything
                continue
            bar = _TOLERANCES[way.dtype]
            if outcome.outputs and _is_finite(outcome) and _relative_difference(outcome, again) <= bar:
                return base, values, outcome, bar
        raise TrialImpossibleError

    def _run(self, base: nn.Module, inputs: Any, seed: int) -> _Outcome:
        torch.manual_seed(seed)
        outputs = _floating_tensors(self._call(_copy_sharing_weights(base), _clone_inputs(inputs)))
        return _Outcome([tensor.detach() for tensor in outputs], _gradients(base, outputs))

    def difference(self, layers: Sequence[SplitLayer], heads: Sequence[HeadCount]) -> SplitDifference | None:
        """Return how the model with these layers split differs from the full model; None if it does not."""
        with _isolated():
            try:
                by_rank = self._run_ranks(layers, heads)
            except UsedOutsideLayerError as error:
                return SplitDifference(str(error), is_outside=True)
            except Exception as error:
                return SplitDifference(exception_text(error))
            reference = self._reference
            try:
                gradients = _gradients(self._base, by_rank[0])
            except _RecomputeError:
                gradients, reference = [], _Outcome(reference.outputs, [])
            except Exception as error:  # a forward that writes to weights, which ranks share here
                return SplitDifference(exception_text(error))
            outcomes = [_Outcome([tensor.detach() for tensor in outputs], gradients) for outputs in by_rank]
            share = max(_relative_difference(reference, outcome) for outcome in outcomes)
        return SplitDifference(relative=share) if share > self._tolerance else None

    def _run_ranks(self, layers: Sequence[SplitLayer], heads: Sequence[HeadCount]) -> list[list[Tensor]]:
        """Return the outputs of all ranks, each computed in its own thread."""
        meeting = _ThreadExchange(self._num_ranks)
        heads = [
            HeadCount(head_count.module, head_count.attribute, head_count.count * self._rank_factor)
            for head_count in heads
        ]
        copies = [
            apply_slices(
                _copy_sharing_weights(self._base),
                layers,
                heads,
                rank=rank,
                num_ranks=self._num_ranks,
                exchange=meeting.make_exchange(rank),
            )
            for rank in range(self._num_ranks)
        ]

        def compute(copied: nn.Module) -> list[Tensor]:
            return _floating_tensors(self._call(copied, _clone_inputs(self._inputs)))

        return meeting.run([functools.partial(compute, copied) for copied in copies])


class _RecomputeError(Exception):
    """Error for a model whose backward pass recomputes a forward pass, when the other ranks' threads have
    ended."""


class _ThreadExchange:
    """Exchange of tensors between ranks that run as threads and wait for each other at every exchange."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier = threading.Barrier(num_ranks, timeout=_EXCHANGE_TIMEOUT_S)
        self._slots: list[Any] = [None] * num_ranks

    def make_exchange(self, rank: int) -> Callable[[Tensor], list[Tensor]]:
        return lambda tensor: self._exchange(rank, tensor)

    def _exchange(self, rank: int, value: Any) -> list[Any]:
        # The other ranks' threads are gone by then; waiting for them at the barrier would end in its timeout.
        if in_backward():
            raise _RecomputeError
        self._slots[rank] = value
        self._barrier.wait()
        # Two waits: no rank reads before all have written, and none writes again before all have read.
        everything = list(self._slots)
        self._barrier.wait()
        return everything

    def run(self, ranks: Sequence[Callable[[], list[Tensor]]]) -> list[list[Tensor]]:
        """Run all ranks and return their results.

        Raises: the exception of the rank that failed first.
        """
        results: list[Any] = [None] * len(ranks)
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                results[rank] = ranks[rank]()
                self._exchange(rank, None)  # a rank that still exchanges tensors gets None
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        # Daemons, so that a rank that hangs does not keep the process alive.
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if any(result is None for result in results):
            raise RuntimeError("the ranks call different layers")
        return results


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """Enter a context without the caller's torch modes; restore the caller's random state afterwards."""
    with without_modes(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        yield


def exception_text(error: Exception) -> str:
    """Return an exception's message, with the location in the user's code."""
    file, line = user_location(error)
    where = f" ({file}, line {line})" if file else ""
    return f"{(str(error).strip().splitlines() or [type(error).__name__])[0]}{where}"


def _copy_with_values(model: nn.Module, way: _TrialMode) -> nn.Module:
    """Copy the model; the copy's weights are new leaf tensors with the values of the trial mode `way`."""
    copies: dict[int, Any] = {}
    generator = _generator()
    for weight in model.parameters():
        values = _weight_values(weight, way, generator)
        copies[id(weight)] = nn.Parameter(values, requires_grad=weight.requires_grad)
    for buffer in model.buffers():
        copies[id(buffer)] = _buffer_values(buffer, way)
    copied = deep_copy(model, copies).train(way.is_training)
    # A forward pass that is recomputed in the backward pass would run without the other ranks.
    undo_checkpointing(copied)
    for module in copied.modules():
        if isinstance(module, Dropout):
            # Slices would draw other numbers than the full layer.
            module.p = 0.0
    return copied


def _has_values(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not tensor.is_meta


def _weight_values(weight: Tensor, way: _TrialMode, generator: torch.Generator) -> Tensor:
    shape = tuple(weight.shape)
    dtype = fp64_dtype(weight.dtype) if way.dtype is torch.float64 else weight.dtype
    is_number = dtype.is_floating_point or dtype.is_complex
    has_values = _has_values(weight)
    values = weight.detach().clone().to(dtype) if has_values else torch.ones(shape, dtype=dtype)
    if not is_number or (has_values and not way.is_perturbed):
        return values
    # 25 gives vectors (biases, norms) noise of 0.1.
    fan_in = values[0].numel() if values.dim() > 1 and len(values) else 25
    noise_scale: float = 0.5 / max(fan_in, 1) ** 0.5
    noise = torch.randn(shape, dtype=dtype, generator=generator) * noise_scale
    return values + noise if has_values or values.dim() < 2 else 2 * noise


def _buffer_values(buffer: Tensor, way: _TrialMode) -> Tensor:
    dtype = fp64_dtype(buffer.dtype) if way.dtype is torch.float64 else buffer.dtype
    if _has_values(buffer):
        return buffer.detach().clone().to(dtype)
    return torch.full(tuple(buffer.shape), way.buffer_fill, dtype=dtype)


def _input_values(way: _TrialMode, tensor: Tensor) -> Tensor:
    dtype = fp64_dtype(tensor.dtype) if way.dtype is torch.float64 else tensor.dtype
    if _has_values(tensor):
        return tensor.detach().clone().to(dtype)
    shape = tuple(tensor.shape)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=_generator())
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype)
    # Zeros and ones are valid ids in any vocabulary, and valid masks.
    return (torch.arange(tensor.numel()) % 2).reshape(shape).to(dtype)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _copy_sharing_weights(base: nn.Module) -> nn.Module:
    """Copy a module; the copy shares the weights but has its own buffers and attributes."""
    return deep_copy(base, {id(weight): weight for weight in base.parameters()})


def _clone_inputs(inputs: Any) -> Any:
    return map_tensors(inputs, torch.clone)


def _floating_tensors(outputs: Any) -> list[Tensor]:
    """Return the floating-point and complex tensors of a model's output, which may be a dataclass."""
    tensors = tensor_leaves(outputs) or tensor_leaves(getattr(outputs, "__dict__", {}))
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _gradients(base: nn.Module, outputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of all weights for a randomly weighted sum of the outputs."""
    leaves = [weight for weight in base.parameters() if weight.requires_grad]
    generator = _generator()
    sums = [
        (tensor * torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)).sum().real
        for tensor in outputs
        if tensor.requires_grad
    ]
    if not sums or not leaves:
        return []
    return list(torch.autograd.grad(torch.stack(sums).sum(), leaves, allow_unused=True))


def _is_finite(outcome: _Outcome) -> bool:
    tensors = [*outcome.outputs, *(gradient for gradient in outcome.gradients if gradient is not None)]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _relative_difference(reference: _Outcome, other: _Outcome) -> float:
    """Return the largest relative difference of any tensor: its largest difference / its largest value.

    The divisor is at least 1 % of the largest value among all outputs or among all gradients, because a
    gradient may be only rounding error.
    """
    if len(reference.outputs) != len(other.outputs) or len(reference.gradients) != len(other.gradients):
        return float("inf")
    shares = [0.0]
    for tensors, others in ((reference.outputs, other.outputs), (reference.gradients, other.gradients)):
        largest = max((_max_abs(tensor) for tensor in tensors if tensor is not None), default=0.0)
        for tensor, its in zip(tensors, others, strict=True):
            left, right = (
                torch.zeros(()) if tensor_or_none is None else tensor_or_none
                for tensor_or_none in (tensor, its)
            )
            if tensor is not None and its is not None and tensor.shape != its.shape:
                return float("inf")
            difference = _max_abs(left - right)
            if difference > 0:
                shares.append(difference / max(_max_abs(left), 1e-2 * largest, 1e-30))
    return max(shares)


def _max_abs(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
