"""Check that a chain's units give the same results as the model, in training and in evaluation.

small models   two training steps and an evaluation on two samples must give the same outputs, gradients
               of all weights, and buffers. Weights are moved off their initial values first, so that a
               gate that is zero at the start is open. Units are connected like pipeline stages: a tensor
               that crosses a cut is an autograd leaf in the next unit, and each unit has its own buffers.
large models   on shapes only, as in plans: results must come from the same weights by the same operations
all models     no result may be computed from a placeholder (probing.py), and the tensors at cuts must be
               the same in training and in evaluation
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.parallel.backward import is_unused_in_graph
from rankdeck.parallel.collectives.broadcast import run_on_rank_0_or_all
from rankdeck.parallel.pipelining.chain import Chain, StageInputs, detached_leaves
from rankdeck.parallel.pipelining.probing import (
    TaintMode,
    copy_sharing_weights,
    grads_for_all,
    have_same_history,
    is_cheap,
    output_tensors,
    preserve_model,
    repeatable_random,
    run_on_fake_tensors,
    without_side_effects,
)
from rankdeck.parallel.pytree import call_model, first_samples, num_samples, pad_batch
from rankdeck.torch_compat.fake_tensors import FakeTensor
from rankdeck.torch_compat.modules import deep_copy, own_buffers

_NUM_SAMPLES = 2
_NUM_STEPS = 2
USES_AUTOGRAD_GRAD = phrase(
    "the model calls autograd.grad, as a gradient penalty does, but no stage has the whole graph"
)
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Tolerances relative to a tensor's largest value: only the order of summation may differ."""


@dataclass
class _Results:
    """Results of training steps and an evaluation; gradients and buffers by name."""

    outputs: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


class _DifferenceFound(Exception):  # noqa: N818 - a result, not an error
    def __init__(self, difference: Phrase) -> None:
        super().__init__(difference)
        self.difference = difference


class _ModelError(Exception):
    """Wrapper for an error that the model itself raised; the model's error is its `__cause__`."""


class ChainComparison:
    """Comparison of chains with the model's own results."""

    def __init__(
        self, model: nn.Module, inputs: Any, known_differences: dict[Hashable, Phrase | None] | None = None
    ) -> None:
        """Prepare the comparison. `known_differences` contains the results of earlier comparisons on shapes,
        for models of the same kind; new results are added to it."""
        self._model = model
        self._inputs = inputs
        self._known_differences = {} if known_differences is None else known_differences
        self._set_inputs(first_samples(inputs, min(_NUM_SAMPLES, num_samples(inputs))))

    def _set_inputs(self, few: Any) -> None:
        is_planned = any(isinstance(parameter, FakeTensor) for parameter in self._model.parameters())
        self._small_inputs = few
        self._has_values = not is_planned and is_cheap(self._model, few)
        self._model_results: dict[int, _Results] = {}

    def difference(self, chain: Chain) -> Phrase | None:
        """Describe how the chain's results differ from the model's; return None if they do not. Raises:
        whatever the model raises."""
        inputs = self._small_inputs if chain.accepts_any_batch else self._inputs
        try:
            if self._has_values:
                return _find_difference(lambda: self._compare_values(chain, inputs))
            cuts = (type(chain), tuple(chain.names))
            # Only differences found on shapes are remembered: the check computes values in fp64, where
            # buffers that were one tensor are several, so its result may not hold for fp32.
            if cuts not in self._known_differences:
                self._known_differences[cuts] = self._difference_on_shapes(chain, inputs)
            return self._known_differences[cuts]
        except _ModelError as error:
            if inputs is not self._inputs:  # concatenated graphs or sentences cannot be cut
                self._set_inputs(self._inputs)
                return self.difference(chain)
            assert error.__cause__ is not None
            # A model that runs on two samples (batch norm) only needs larger microbatches.
            if num_samples(inputs) == 1 and self._can_run(pad_batch(inputs, 2)):
                raise _single_sample_error(self._model, error.__cause__) from error.__cause__
            raise error.__cause__ from None

    def _can_run(self, inputs: Any) -> bool:
        with contextlib.suppress(Exception), without_side_effects(self._model), torch.no_grad():
            call_model(copy_sharing_weights(self._model).train(), inputs)
            return True
        return False

    def _difference_on_shapes(self, chain: Chain, inputs: Any) -> Phrase | None:
        """Describe how the chain differs from the model on fake tensors, or return None. Raises:
        _ModelError."""

        def compare() -> Phrase | None:
            with without_side_effects(self._model), grads_for_all(self._model):
                return run_on_fake_tensors(
                    lambda shapes: _find_difference(lambda: self._compare_histories(chain, shapes)),
                    inputs,
                    self._model,
                )

        return run_on_rank_0_or_all(compare)

    def _compare_values(self, chain: Chain, inputs: Any) -> None:
        # Under the caller's autocast, rounding to 16 bits would look like a difference.
        as_written = torch.autocast("cpu", enabled=False)
        with (
            preserve_model(self._model) as move_weights,
            as_written,
            torch.enable_grad(),
            repeatable_random(),
        ):
            expected = self._model_results.get(id(inputs))
            if expected is None:
                move_weights()
                with _wrap_model_errors():
                    expected = self._model_results[id(inputs)] = _run_model(self._model, inputs)
            move_weights()
            results = _run_chain(chain, inputs, expected)
        _compare(expected, results)

    def _compare_histories(self, chain: Chain, inputs: Any) -> None:
        crossing = []
        for training in (True, False):
            with _wrap_model_errors():
                expected = output_tensors(
                    call_model(copy_sharing_weights(self._model).train(training), inputs)
                )
            with _check_placeholders(chain) as look_at:
                entered: list[StageInputs] = [None]
                for unit in chain.units():
                    entered.append(look_at(unit.train(training)(entered[-1], inputs)))
            if not have_same_history(
                *(_floating_tensors(results) for results in (expected, output_tensors(entered.pop())))
            ):
                raise _DifferenceFound(phrase("outputs result from different weights or operations"))
            crossing.append(_shapes(entered))
        _compare_boundaries(*crossing)


def _find_difference(compare: Callable[[], None]) -> Phrase | None:
    try:
        compare()
    except _DifferenceFound as error:
        return error.difference
    except _ModelError:
        raise
    except Exception as error:  # a unit that lacks what it needs may fail in any way
        if is_unused_in_graph(error):
            return USES_AUTOGRAD_GRAD
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return phrase("a stage fails where the model does not ({reason})", reason=reason[0])
    return None


def _single_sample_error(model: nn.Module, error: BaseException) -> ModelError:
    return ModelError(
        phrase(
            "{model} cannot run on a single sample, but each forward pass of a stage receives "
            "only one ({reason}).",
            model=type(model).__name__,
            reason=(str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."),
        ),
        path="train.global_batch",
        advice=phrase(
            "Use larger batches, or fewer micro-batches (train.accumulate, strategy.microbatches)."
        ),
    )


@contextlib.contextmanager
def _wrap_model_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _ModelError from error


@contextlib.contextmanager
def _check_placeholders(chain: Chain) -> Iterator[Callable[[Any], Any]]:
    """Yield a function that returns the unit output passed to it, or raises an error if that output was
    computed from a placeholder."""
    origins = TaintMode()

    def look_at(output: Any) -> Any:
        if names := sorted(origins.taints_of(output_tensors(output))):
            raise _DifferenceFound(
                phrase("{name} is used after a cut but not passed across it", name=names[0])
            )
        return output

    chain.on_placeholder = origins.mark
    try:
        with origins:
            yield look_at
    finally:
        chain.on_placeholder = None


def _run_model(model: nn.Module, inputs: Any) -> _Results:
    module, collected = copy_sharing_weights(model).train(), _Results()
    for _ in range(_NUM_STEPS):
        results = output_tensors(call_model(module, inputs))
        collected.outputs += _clone_tensors(results)
        _run_backward(results, _output_gradients(results))
    collected.gradients = _pop_gradients(model)
    collected.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        collected.outputs += _clone_tensors(output_tensors(call_model(module.eval(), inputs)))
    return collected


def _run_chain(chain: Chain, inputs: Any, expected: _Results) -> _Results:
    """Return the chain's results; set `chain.owners` by comparing buffers with those in `expected`."""
    collected = _Results()
    with _check_placeholders(chain) as look_at, _isolated_units(chain) as (units, buffers):
        for _ in range(_NUM_STEPS):
            results, in_training = _run_training_step(units, inputs, look_at)
            collected.outputs += _clone_tensors(results)
        collected.gradients = _pop_gradients(chain.model)
        for name, buffer in chain.model.named_buffers():
            copies = {
                index: unit_buffers[id(buffer)]
                for index, unit_buffers in enumerate(buffers)
                if id(buffer) in unit_buffers
            }
            right = [
                index
                for index, unit_buffers in copies.items()
                if torch.equal(unit_buffers, expected.buffers[name])
            ]
            collected.buffers[name] = (
                copies[right[0]] if right else next(iter(copies.values()), buffer)
            ).clone()
            if right:
                chain.owners[id(buffer)] = right[0]
        with torch.no_grad():
            entered: list[Any] = [None]
            for unit in units:
                entered.append(look_at(unit.eval()(entered[-1], inputs)))
            collected.outputs += _clone_tensors(output_tensors(entered.pop()))
    _compare_boundaries(in_training, _shapes(entered))
    return collected


def _run_training_step(
    units: Sequence[nn.Module], inputs: Any, look_at: Callable[[Any], Any]
) -> tuple[list[Tensor], list[Any]]:
    """Train unit by unit; `look_at` checks each output. Return the model's outputs and the shapes at cuts."""
    entered: list[StageInputs] = [None]
    outputs: list[list[Tensor]] = []
    for unit in units:
        outputs.append(output_tensors(look_at(unit.train()(entered[-1], inputs))))
        if unit is not units[-1]:
            entered.append(detached_leaves(outputs[-1]))
    _run_backward(outputs[-1], _output_gradients(outputs[-1]))
    for index in reversed(range(len(units) - 1)):
        _run_backward(outputs[index], [leaf.grad for leaf in entered[index + 1] or ()])
    return outputs[-1], _shapes(entered)


def _output_gradients(results: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a fixed, randomly weighted sum of all results with respect to each result."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tensor.shape, generator=generator).to(tensor) if tensor.requires_grad else None
        for tensor in results
    ]


def _run_backward(results: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Run the backward pass from those results whose gradient is not None."""
    pairs = [
        pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad and pair[1] is not None
    ]
    if pairs:
        torch.autograd.backward([result for result, _ in pairs], [gradient for _, gradient in pairs])


def _pop_gradients(model: nn.Module) -> dict[str, Tensor]:
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    for weight in model.parameters():
        weight.grad = None
    return gradients


@contextlib.contextmanager
def _isolated_units(chain: Chain) -> Iterator[tuple[list[nn.Module], list[dict[int, Tensor]]]]:
    """Enter a context in which each unit has its own attributes and buffers; yield the units, and for each
    unit a dict that maps the ids of original buffers to the unit's copies."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain.model.parameters()}
    buffers = {id(buffer): buffer for buffer in chain.model.buffers()}
    units, owned, replaced = [], [], []
    for unit in chain.units():
        if chain.uses_model_modules:
            unit = deep_copy(unit, {**shared, **buffers})
        clones: dict[int, Tensor] = {}
        for table in [own_buffers(module) for module in unit.modules()]:
            for name, buffer in table.items():
                if buffer is not None and id(buffer) in buffers:
                    replaced.append((table, name, buffer))
                    table[name] = clones.setdefault(id(buffer), buffer.clone())
        units.append(unit)
        owned.append(clones)
    try:
        yield units, owned
    finally:
        for table, name, buffer in replaced:
            table[name] = buffer


def _compare(expected: _Results, actual: _Results) -> None:
    """Compare outputs, gradients and buffers. Raises: _DifferenceFound."""
    if len(expected.outputs) != len(actual.outputs) or not all(
        map(_is_close, expected.outputs, actual.outputs)
    ):
        raise _DifferenceFound(phrase("outputs differ"))
    scale = max((_max_abs(gradient) for gradient in expected.gradients.values()), default=0.0)
    for name in {**expected.gradients, **actual.gradients}:
        ours, theirs = actual.gradients.get(name), expected.gradients.get(name)
        some = ours if ours is not None else theirs
        assert some is not None
        left, right = (
            torch.zeros_like(some) if gradient_or_none is None else gradient_or_none
            for gradient_or_none in (theirs, ours)
        )
        if not _is_close(left, right, scale):
            raise _DifferenceFound(phrase("the gradient of {name} differs", name=name))
    for name, buffer in expected.buffers.items():
        if not _is_close(buffer, actual.buffers[name]):
            raise _DifferenceFound(phrase("no stage has the correct value of {name} after a step", name=name))


def _compare_boundaries(in_training: list[Any], in_evaluation: list[Any]) -> None:
    """Compare the tensors that cross cuts in training with those in evaluation. Raises: _DifferenceFound."""
    if in_training != in_evaluation:
        raise _DifferenceFound(phrase("different tensors cross a cut in training and in evaluation"))


def _is_close(left: Tensor, right: Tensor, scale: float = 0.0) -> bool:
    """Check whether tensors differ only by rounding, which depends on the order of summation; `scale` is the
    largest value among tensors of the same kind."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not (left.is_floating_point() or left.is_complex()):
        return torch.equal(left, right)
    # Gradients of sparse embeddings are sparse.
    left, right = left.to_dense(), right.to_dense()
    tolerance = _TOLERANCES.get(left.dtype, 1e-2)
    # `scale` keeps a gradient that is only rounding from counting as a difference.
    bar = tolerance * max(_max_abs(left), 1e-3 * scale)
    return torch.allclose(left, right, rtol=tolerance, atol=bar, equal_nan=True)


def _max_abs(tensor: Tensor) -> float:
    """Return the largest finite absolute value."""
    finite = tensor.to_dense()
    finite = finite[finite.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _clone_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _floating_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _shapes(entered: Sequence[StageInputs]) -> list[Any]:
    return [[(tensor.shape, tensor.dtype) for tensor in tensors or ()] for tensors in entered]
