"""Record one forward pass of a model, unit by unit: the tensors that each unit gets and returns.

Autograd's graph shows which earlier units a tensor was computed from, whatever the model computes between its
units. Read observed.py for how the records are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.backward import iter_graph_nodes
from rankdeck.parallel.pipelining.probing import output_tensors
from rankdeck.parallel.pytree import is_named_tuple, map_tensors, replace_items, tensor_leaves
from rankdeck.torch_compat.dispatch import Kwargs

CallArguments = list[tuple[int | str | None, Tensor, int, Any]]
"""Tensor arguments as (key, tensor, value id, autograd node)."""


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a unit, by position or name. If `key` is None, the tensor is an output of the
    model, computed after the last unit.

    Equal `value_id`s mean the same tensor. `producer` is the index of the last unit that took part in
    computing the tensor, or -1 if no unit did.
    """

    key: int | str | None
    shape: torch.Size
    value_id: int
    producer: int


@dataclass(frozen=True)
class ReturnedTensor:
    """Shape and dtype of a tensor that a unit returned, and its value id."""

    shape: torch.Size
    dtype: torch.dtype
    value_id: int


@dataclass(frozen=True)
class ObservedUnit:
    """One unit of the observed forward pass: its arguments from other units, and its output.

    `can_cut` is true if the model can be cut before the unit.
    """

    name: str
    arguments: tuple[Argument, ...]
    returned: Any
    can_cut: bool = False


def boundary_values(units: Sequence[ObservedUnit], cut: int) -> list[int]:
    """Return the ids of the values that cross the cut before the unit with index `cut`.

    They are that unit's first argument, then every other value that was made before the cut and is an
    argument of a unit after the cut.
    """
    if not 0 < cut < len(units):
        return []
    values = [argument.value_id for argument in units[cut].arguments[:1]]
    behind = (argument for unit in units[cut:] for argument in unit.arguments)
    values += [argument.value_id for argument in behind if argument.producer < cut]
    return list(dict.fromkeys(values))


@dataclass
class _Call:
    """A call of a unit. `arguments` are the tensor arguments as they were at the start of the call."""

    name: str
    arguments: CallArguments
    returned: Any = None
    outputs: list[tuple[int, Tensor]] = field(default_factory=list)


class UnitRecorder:
    """Hooks that record one forward pass; they keep all its tensors alive so that no two share an id."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._values: dict[tuple[int, int], int] = {}

    def enter(self, name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        named: list[tuple[int | str | None, Any]] = [*enumerate(args), *kwargs.items()]
        arguments: CallArguments = [
            (where, tensor, self._value_id(tensor), tensor.grad_fn)
            for where, tensor in named
            if isinstance(tensor, Tensor)
        ]
        self._calls.append(_Call(name, arguments))

    def leave(self, name: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        # The unit's last call is the one that ends now.
        call = next(call for call in reversed(self._calls) if call.name == name)
        call.returned = self._shapes(output)
        call.outputs = [(self._value_id(tensor), tensor) for tensor in tensor_leaves(output)]

    def called_names(self) -> set[str]:
        """Return the names of the units that ran at least once."""
        return {call.name for call in self._calls}

    def _value_id(self, tensor: Tensor) -> int:
        """Return the tensor's value id; an in-place change gives a tensor a new id."""
        return self._values.setdefault((id(tensor), tensor._version), len(self._values))

    def _shapes(self, output: Any) -> Any:
        """Return an output with each tensor replaced by its shape, dtype and value id."""
        if isinstance(output, Tensor):
            return ReturnedTensor(output.shape, output.dtype, self._value_id(output))
        if isinstance(output, tuple | list):
            return replace_items(output if is_named_tuple(output) else (), map(self._shapes, output))
        return None

    def observed_units(self, output: Any) -> list[ObservedUnit]:
        """Return the units that ran exactly once, in call order; `output` is the model's output."""
        # A cut needs one position in the sequence, so units that ran several times are left out.
        times = Counter(call.name for call in self._calls)
        calls = [call for call in self._calls if times[call.name] == 1]
        producers = _Producers()
        units: list[ObservedUnit] = []
        for index, call in enumerate(calls):
            units.append(ObservedUnit(call.name, producers.arguments(call.arguments), call.returned))
            producers.record(index, call)
        if units:
            results: CallArguments = [
                (None, out, self._value_id(out), out.grad_fn) for out in output_tensors(output)
            ]
            units[-1] = replace(units[-1], arguments=(*units[-1].arguments, *producers.arguments(results)))
        known_values: set[int] = set()
        for index, call in enumerate(calls):
            unit = units[index]
            known_values.update(argument.value_id for argument in unit.arguments)
            starts = _carries_gradients(call) and known_values.issuperset(boundary_values(units, index))
            units[index] = replace(unit, can_cut=starts)
            known_values.update(tensor.value_id for tensor in returned_tensors(call.returned))
        return units


class _Producers:
    """Record of the unit that first returned each value; later units may return the value unchanged."""

    def __init__(self) -> None:
        self._by_node: dict[Any, int] = {}
        self._by_value: dict[int, int] = {}

    def record(self, index: int, call: _Call) -> None:
        for value, tensor in call.outputs:
            self._by_value.setdefault(value, index)
            if tensor.grad_fn is not None:
                self._by_node.setdefault(tensor.grad_fn, index)

    def arguments(self, call_arguments: CallArguments) -> tuple[Argument, ...]:
        """Return the arguments that come from other units.

        Tensors that every stage recomputes from the inputs (masks) are left out.
        """
        arguments = []
        for where, tensor, value, node in call_arguments:
            if tensor.requires_grad:
                makers = (self._by_node.get(maker, -1) for maker in iter_graph_nodes([node], self._by_node))
                made_by = max(makers, default=-1)
                arguments.append(Argument(where, tensor.shape, value, made_by))
            # Without gradients there is no graph: only identity shows which unit made the tensor.
            elif value in self._by_value:
                arguments.append(Argument(where, tensor.shape, value, self._by_value[value]))
        return tuple(arguments)


def returned_tensors(returned: Any) -> list[ReturnedTensor]:
    """Return the records of all tensors in a unit's output, in order."""
    tensors: list[ReturnedTensor] = []
    map_tensors(returned, tensors.append, ReturnedTensor)
    return tensors


def _carries_gradients(call: _Call) -> bool:
    """Check whether a unit's first argument carries gradients, which a cut before the unit requires."""
    where, tensor, *_ = call.arguments[0] if call.arguments else (None, None)
    return where == 0 and tensor is not None and tensor.is_floating_point() and tensor.requires_grad
