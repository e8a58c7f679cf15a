"""Whether the units of a chain compute what the model computes: forward and backward, in training and in
evaluation.

    small models    values of two training steps and an evaluation on two samples: outputs, the gradient of
                    every weight, buffers. Weights are moved off their first values for that, so that a gate
                    that is zero at the start is open. Units meet as stages of a pipeline do: what crosses is
                    a leaf of autograd on the other side, and each unit has buffers of its own.
    others, plans   on shapes: results come from the same weights by the same operations
    all             no result is computed from a blank (probing.py), and the same tensors cross each cut in
                    training and in evaluation

Read cutting.py next: what is done where they differ.
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
from rankdeck.parallel.backward import is_graph_elsewhere
from rankdeck.parallel.collectives.broadcast import found_once
from rankdeck.parallel.nested import call, first_samples, num_samples, padded
from rankdeck.parallel.pipelining.chain import Chain, Received, received_from
from rankdeck.parallel.pipelining.probing import (
    Origins,
    all_trainable,
    is_cheap,
    on_shapes,
    repeatable,
    results_of,
    same_history,
    same_weights,
    unchanged,
    without_effects,
)
from rankdeck.torch_compat.fake_tensors import FakeTensor
from rankdeck.torch_compat.modules import deep_copy, own_buffers

_NUM_SAMPLES = 2
_NUM_STEPS = 2
GOES_BACK = phrase("it calls autograd.grad, as a gradient penalty does, and no stage has the whole graph")
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of the largest value of a tensor: operations are the same, only sums may have another order."""


@dataclass
class _Results:
    """What training steps and an evaluation gave; gradients and buffers by name."""

    outputs: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


class _Differs(Exception):  # noqa: N818 - a result, not an error
    def __init__(self, difference: Phrase) -> None:
        super().__init__(difference)
        self.difference = difference


class _ModelError(Exception):
    """The model itself failed, by the cause of this."""


class Equality:
    """The model's own results, with which those of chains are compared."""

    def __init__(
        self, model: nn.Module, inputs: Any, known: dict[Hashable, Phrase | None] | None = None
    ) -> None:
        """`known` has what was found on shapes for another model of the same kind, and gets more."""
        self._model = model
        self._inputs = inputs
        self._on_shapes = {} if known is None else known
        self._compare_on(first_samples(inputs, min(_NUM_SAMPLES, num_samples(inputs))))

    def _compare_on(self, few: Any) -> None:
        is_planned = any(isinstance(parameter, FakeTensor) for parameter in self._model.parameters())
        self._few = few
        self._has_values = not is_planned and is_cheap(self._model, few)
        self._of_model: dict[int, _Results] = {}

    def difference(self, chain: Chain) -> Phrase | None:
        """What the chain computes in another way than the model, None if nothing.

        Raises: whatever the model itself raises.
        """
        inputs = self._few if chain.takes_any_batch else self._inputs
        try:
            if self._has_values:
                return _difference_by(lambda: self._compare_values(chain, inputs))
            cuts = (type(chain), tuple(chain.names))
            if cuts not in self._on_shapes:
                self._on_shapes[cuts] = self._difference_on_shapes(chain, inputs)
            return self._on_shapes[cuts]
        except _ModelError as error:
            if inputs is not self._inputs:  # graphs or sentences behind each other cannot be cut like samples
                self._compare_on(self._inputs)
                return self.difference(chain)
            assert error.__cause__ is not None
            if num_samples(inputs) == 1 and self._runs_on(padded(inputs, 2)):
                raise _no_single_sample(self._model, error.__cause__) from error.__cause__
            raise error.__cause__ from None

    def _runs_on(self, inputs: Any) -> bool:
        with contextlib.suppress(Exception), without_effects(self._model), torch.no_grad():
            call(same_weights(self._model).train(), inputs)
            return True
        return False

    def _difference_on_shapes(self, chain: Chain, inputs: Any) -> Phrase | None:
        """Raises: _ModelError."""

        def look() -> Phrase | None:
            with without_effects(self._model), all_trainable(self._model):
                return on_shapes(
                    lambda shapes: _difference_by(lambda: self._compare_histories(chain, shapes)),
                    inputs,
                    self._model,
                )

        return found_once(look)

    def _compare_values(self, chain: Chain, inputs: Any) -> None:
        as_written = torch.autocast("cpu", enabled=False)
        with unchanged(self._model) as move_weights, as_written, torch.enable_grad(), repeatable():
            wanted = self._of_model.get(id(inputs))
            if wanted is None:
                move_weights()
                with _errors_of_the_model():
                    wanted = self._of_model[id(inputs)] = _of_model(self._model, inputs)
            move_weights()
            found = _of_chain(chain, inputs, wanted)
        _compare(wanted, found)

    def _compare_histories(self, chain: Chain, inputs: Any) -> None:
        crossing = []
        for training in (True, False):
            with _errors_of_the_model():
                wanted = results_of(call(same_weights(self._model).train(training), inputs))
            with _watched(chain) as look_at:
                entered: list[Received] = [None]
                for unit in chain.units():
                    entered.append(look_at(unit.train(training)(entered[-1], inputs)))
            if not same_history(*(_floating(results) for results in (wanted, results_of(entered.pop())))):
                raise _Differs(phrase("outputs come from other weights or by other operations"))
            crossing.append(_shapes(entered))
        _compare_crossing(*crossing)


def _difference_by(compare: Callable[[], None]) -> Phrase | None:
    try:
        compare()
    except _Differs as error:
        return error.difference
    except _ModelError:
        raise
    except Exception as error:  # a unit that lacks what it needs may fail in any way
        if is_graph_elsewhere(error):
            return GOES_BACK
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return phrase("a stage fails where the model does not ({reason})", reason=reason[0])
    return None


def _no_single_sample(model: nn.Module, error: BaseException) -> ModelError:
    return ModelError(
        phrase(
            "{model} does not run on a single sample, and each forward of a stage gets one ({reason}).",
            model=type(model).__name__,
            reason=(str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."),
        ),
        path="train.global_batch",
        advice=phrase("Use larger batches, or cut them less (train.accumulate, strategy.microbatches)."),
    )


@contextlib.contextmanager
def _errors_of_the_model() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _ModelError from error


@contextlib.contextmanager
def _watched(chain: Chain) -> Iterator[Callable[[Any], Any]]:
    """Give a function that lets pass what a unit returns, unless it was computed from a blank."""
    origins = Origins()

    def look_at(output: Any) -> Any:
        if names := sorted(origins.of(results_of(output))):
            raise _Differs(phrase("{name} is used behind a cut that does not hand it on", name=names[0]))
        return output

    chain.mark_blank = origins.mark
    try:
        with origins:
            yield look_at
    finally:
        chain.mark_blank = None


def _of_model(model: nn.Module, inputs: Any) -> _Results:
    module, found = same_weights(model).train(), _Results()
    for _ in range(_NUM_STEPS):
        results = results_of(call(module, inputs))
        found.outputs += _copies(results)
        _go_back(results, _weighted(results))
    found.gradients = _taken_gradients(model)
    found.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        found.outputs += _copies(results_of(call(module.eval(), inputs)))
    return found


def _of_chain(chain: Chain, inputs: Any, wanted: _Results) -> _Results:
    """The chain's results; `chain.owners` is set on the way."""
    found = _Results()
    with _watched(chain) as look_at, _apart(chain) as (units, buffers):
        for _ in range(_NUM_STEPS):
            results, in_training = _step(units, inputs, look_at)
            found.outputs += _copies(results)
        found.gradients = _taken_gradients(chain.model)
        for name, buffer in chain.model.named_buffers():
            held = {index: own[id(buffer)] for index, own in enumerate(buffers) if id(buffer) in own}
            right = [index for index, own in held.items() if torch.equal(own, wanted.buffers[name])]
            found.buffers[name] = (held[right[0]] if right else next(iter(held.values()), buffer)).clone()
            if right:
                chain.owners[id(buffer)] = right[0]
        with torch.no_grad():
            entered: list[Any] = [None]
            for unit in units:
                entered.append(look_at(unit.eval()(entered[-1], inputs)))
            found.outputs += _copies(results_of(entered.pop()))
    _compare_crossing(in_training, _shapes(entered))
    return found


def _step(
    units: Sequence[nn.Module], inputs: Any, look_at: Callable[[Any], Any]
) -> tuple[list[Tensor], list[Any]]:
    """Forward and backward of one batch, unit by unit: its results, and what crossed each cut in shape."""
    entered: list[Received] = [None]
    given: list[list[Tensor]] = []
    for unit in units:
        given.append(results_of(look_at(unit.train()(entered[-1], inputs))))
        if unit is not units[-1]:
            entered.append(received_from(given[-1]))
    _go_back(given[-1], _weighted(given[-1]))
    for index in reversed(range(len(units) - 1)):
        _go_back(given[index], [leaf.grad for leaf in entered[index + 1] or ()])
    return given[-1], _shapes(entered)


def _weighted(results: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of some weighted sum of all results."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tensor.shape, generator=generator).to(tensor) if tensor.requires_grad else None
        for tensor in results
    ]


def _go_back(results: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward from the results whose gradients are known."""
    known = [
        pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad and pair[1] is not None
    ]
    if known:
        torch.autograd.backward([result for result, _ in known], [gradient for _, gradient in known])


def _taken_gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    for weight in model.parameters():
        weight.grad = None
    return found


@contextlib.contextmanager
def _apart(chain: Chain) -> Iterator[tuple[list[nn.Module], list[dict[int, Tensor]]]]:
    """The units, each with buffers of its own, which are given by the identity of the model's, and with
    attributes of its own: what a forward counts there is not counted in the model.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain.model.parameters()}
    buffers = {id(buffer): buffer for buffer in chain.model.buffers()}
    units, owned, replaced = [], [], []
    for unit in chain.units():
        if chain.runs_own_modules:
            unit = deep_copy(unit, {**shared, **buffers})
        own: dict[int, Tensor] = {}
        for table in [own_buffers(module) for module in unit.modules()]:
            for name, buffer in table.items():
                if buffer is not None and id(buffer) in buffers:
                    replaced.append((table, name, buffer))
                    table[name] = own.setdefault(id(buffer), buffer.clone())
        units.append(unit)
        owned.append(own)
    try:
        yield units, owned
    finally:
        for table, name, buffer in replaced:
            table[name] = buffer


def _compare(wanted: _Results, found: _Results) -> None:
    """Raises: _Differs"""
    if len(wanted.outputs) != len(found.outputs) or not all(map(_close, wanted.outputs, found.outputs)):
        raise _Differs(phrase("outputs differ"))
    scale = max((_largest(gradient) for gradient in wanted.gradients.values()), default=0.0)
    for name in {**wanted.gradients, **found.gradients}:
        ours, theirs = found.gradients.get(name), wanted.gradients.get(name)
        some = ours if ours is not None else theirs
        assert some is not None
        left, right = (torch.zeros_like(some) if one is None else one for one in (theirs, ours))
        if not _close(left, right, scale):
            raise _Differs(phrase("the gradient of {name} differs", name=name))
    for name, buffer in wanted.buffers.items():
        if not _close(buffer, found.buffers[name]):
            raise _Differs(phrase("no stage has the value of {name} after a step", name=name))


def _compare_crossing(in_training: list[Any], in_evaluation: list[Any]) -> None:
    """Raises: _Differs"""
    if in_training != in_evaluation:
        raise _Differs(phrase("other tensors cross a cut in training than in evaluation"))


def _close(left: Tensor, right: Tensor, scale: float = 0.0) -> bool:
    """Whether two tensors are the same up to the order of sums; `scale` is the largest of their kind."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not (left.is_floating_point() or left.is_complex()):
        return torch.equal(left, right)
    left, right = left.to_dense(), right.to_dense()
    tolerance = _TOLERANCES.get(left.dtype, 1e-2)
    bar = tolerance * max(_largest(left), 1e-3 * scale)
    return torch.allclose(left, right, rtol=tolerance, atol=bar, equal_nan=True)


def _largest(tensor: Tensor) -> float:
    """The largest finite value."""
    finite = tensor.to_dense()
    finite = finite[finite.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _floating(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _shapes(entered: Sequence[Received]) -> list[Any]:
    return [[(tensor.shape, tensor.dtype) for tensor in tensors or ()] for tensors in entered]
