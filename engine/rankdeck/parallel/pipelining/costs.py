"""Costs of units, by which stages are balanced, and the shapes of the tensors that enter each unit.

    parameters     numel of the unit's weights; a weight that several units share counts only in the first
    time           seconds of the unit's forward pass, on the device that will run it
    activations    bytes that the unit's forward pass saves for its backward pass

Read cutting.py next.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.pipelining.chain import Chain, StageInputs, detached_leaves
from rankdeck.parallel.pipelining.probing import (
    graph_leaves,
    output_tensors,
    probe_model,
    run_on_fake_tensors,
    without_side_effects,
)
from rankdeck.parallel.pytree import first_samples, map_tensors
from rankdeck.torch_compat.dispatch import storage_key

_TIMED_RUNS = 3


@dataclass(frozen=True)
class TensorShape:
    """Description of a tensor that crosses a cut, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_batched: bool = True
    """Whether the tensor's first dim is the batch."""
    has_gradient: bool = True
    """Whether the loss depends on the tensor through autograd."""

    @property
    def returns_gradient(self) -> bool:
        """Whether a gradient for the tensor is sent back."""
        return self.dtype.is_floating_point and self.has_gradient

    def empty(self, device: torch.device | str, num_samples: int | None = None) -> Tensor:
        """Return an empty tensor of this shape and dtype on a device, optionally for another number of
        samples."""
        shape = self.shape
        if num_samples is not None and self.is_batched:
            shape = (num_samples, *self.shape[1:])
        return torch.empty(shape, dtype=self.dtype, device=device)


Boundary = tuple[TensorShape, ...]


def with_shapes(boundary: Boundary, tensors: Sequence[Tensor]) -> Boundary:
    """Return a copy of `boundary` with the sizes of `tensors`."""
    return tuple(
        replace(tensor_shape, shape=tuple(tensor.shape))
        for tensor_shape, tensor in zip(boundary, tensors, strict=True)
    )


def find_boundaries(chain: Chain, inputs: Any, num_samples: int) -> list[Boundary]:
    """Return the shapes of the tensors that enter each unit, for a batch of `num_samples`; no tensors enter
    the first unit.

    Raises: ModelError when the first tensor that enters a unit does not have the batch as its first dim.
    """

    def entering(inputs: Any) -> list[list[TensorShape]]:
        """Return the shapes of all tensors that enter the units, as if the first dim of each were the
        batch."""
        shapes: list[list[TensorShape]] = [[]]
        passing: StageInputs = None
        for unit in itertools.islice(chain.units(), len(chain) - 1):
            passing = unit(passing, inputs)
            assert passing is not None
            shapes.append([TensorShape(tuple(tensor.shape), tensor.dtype) for tensor in passing])
        return shapes

    def run(inputs: Any) -> list[Boundary]:
        full = entering(inputs)
        has_more = chain.accepts_any_batch and num_samples > 1 and any(len(tensors) > 1 for tensors in full)
        # A run with one sample less shows which of several tensors have the batch as their first dim.
        less = entering(first_samples(inputs, num_samples - 1)) if has_more else full
        num_fewer = num_samples - has_more
        return [
            tuple(
                replace(
                    tensor_shape,
                    is_batched=tensor_shape.shape[:1] == (num_samples,) and other.shape[:1] == (num_fewer,),
                )
                for tensor_shape, other in zip(*tensors, strict=True)
            )
            for tensors in zip(full, less, strict=True)
        ]

    with without_side_effects(chain.model), torch.no_grad():
        boundaries = run_on_fake_tensors(run, inputs, chain.model)
    for name, boundary in zip(chain.names, boundaries, strict=True):
        if boundary and chain.accepts_any_batch and not boundary[0].is_batched:
            raise ModelError(
                phrase(
                    "Unit {name} receives a tensor of shape {shape} for {num_samples} samples, "
                    "but only tensors with the batch as first dim can be passed between stages.",
                    name=name,
                    shape=boundary[0].shape,
                    num_samples=num_samples,
                ),
                path="strategy.cuts",
                advice=phrase("Keep the batch as the first dim, or cut the model elsewhere."),
            )
    return boundaries


def mark_gradients(
    boundaries: Sequence[Boundary], chain: Chain, inputs: Any, read: Callable[[Any], Sequence[Tensor]]
) -> list[Boundary]:
    """Return `boundaries` with `has_gradient` set for each tensor.

    `has_gradient` is false if the loss does not depend on the tensor through autograd. In training on one
    device, the weights from which such a tensor was computed get no gradient either, so an optimizer does
    not update them. `read` returns the model outputs that the loss reads.
    """

    def run(inputs: Any) -> list[list[bool]]:
        entered: list[tuple[Tensor, ...]] = [()]
        outputs: list[Sequence[Tensor]] = []
        output: Any = None
        for unit in chain.units():
            output = unit.train()(entered[-1] or None, inputs)
            outputs.append(output_tensors(output))
            entered.append(detached_leaves(outputs[-1]))
        # From the last unit back: a tensor has a gradient only if a tensor made from it has one.
        reached = graph_leaves(read(output))
        flags: list[list[bool]] = []
        for index in reversed(range(len(outputs))):
            goes_back = [id(leaf) in reached for leaf in entered[index]]
            previous_outputs = outputs[index - 1] if index else ()
            flags.append(goes_back)
            reached = graph_leaves(
                [tensor for tensor, back in zip(previous_outputs, goes_back, strict=True) if back]
            )
        return flags[::-1]

    with probe_model(chain.model, inputs, keep_frozen=True):
        gradient_flags = run_on_fake_tensors(run, inputs, chain.model)
    return [
        tuple(replace(tensor_shape, has_gradient=back) for tensor_shape, back in zip(*pair, strict=True))
        for pair in zip(boundaries, gradient_flags, strict=True)
    ]


def unit_costs(chain: Chain, balance: str, inputs: Any, device: torch.device) -> list[float]:
    """Return each unit's cost as measured by `balance`: parameters, time or activations."""
    if balance == "time":
        return time_costs(chain, inputs, device)
    return activation_costs(chain, inputs) if balance == "activations" else parameter_costs(chain)


def parameter_costs(chain: Chain) -> list[float]:
    counted: set[int] = set()
    costs = []
    for weights in chain.weights:
        fresh = [parameter for parameter in weights if id(parameter) not in counted]
        counted.update(map(id, fresh))
        costs.append(float(sum(parameter.numel() for parameter in fresh)))
    return costs


def time_costs(chain: Chain, inputs: Any, device: torch.device) -> list[float]:
    """Return the seconds that each unit's forward pass takes: the shortest time of a few calls.

    Only one unit at a time is on the device.
    """
    passing: StageInputs = None
    costs = []
    inputs = map_tensors(inputs, lambda tensor: tensor.to(device))
    with without_side_effects(chain.model), torch.no_grad():
        for unit in chain.units():
            home = next((p.device for p in unit.parameters()), torch.device("cpu"))
            output: Any = None
            fastest_s = float("inf")
            unit.to(device)
            # The first run warms up; the fastest one is kept, so that a busy machine does not shift the
            # balance.
            for _ in range(1 + _TIMED_RUNS):
                started_s = time.perf_counter()
                output = unit(passing, inputs)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                fastest_s = min(fastest_s, time.perf_counter() - started_s)
            unit.to(home)
            costs.append(fastest_s)
            passing = output
    return costs


def activation_costs(chain: Chain, inputs: Any) -> list[float]:
    """Return the bytes that each unit's forward pass saves for its backward pass, excluding weights."""

    def run(shapes: Any) -> list[float]:
        passing: StageInputs = None
        costs = []
        for unit in chain.units():
            saved, output = _saved_bytes(unit, passing, shapes)
            costs.append(float(saved))
            if isinstance(output, tuple):
                passing = detached_leaves(output)
        return costs

    with without_side_effects(chain.model), torch.enable_grad():
        return run_on_fake_tensors(run, inputs, chain.model)


def _saved_bytes(unit: nn.Module, passing: StageInputs, inputs: Any) -> tuple[int, Any]:
    weight_ids = {id(parameter) for parameter in unit.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if id(tensor) not in weight_ids and not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            # By storage: tensors that share one are counted once.
            saved[storage_key(storage)] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = unit(passing, inputs)
    return sum(saved.values()), output
