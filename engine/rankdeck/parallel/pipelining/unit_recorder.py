"""One forward of a model, watched unit by unit: which tensor each unit is given and returns, and with which
units before it a tensor was made. Autograd's graph tells that, whatever the model computes between its units.

Read observed.py for what is made of it.
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
"""Tensors: where, which, their numbers, and autograd's nodes that made them."""


@dataclass(frozen=True)
class Argument:
    """A tensor that a unit is given, by position or by name; None: that the model returns behind its last.

    Equal numbers of `value_id` are one tensor. `producer` is the place of the last unit that had a part in
    it, -1 for none.
    """

    key: int | str | None
    shape: torch.Size
    value_id: int
    producer: int


@dataclass(frozen=True)
class ReturnedTensor:
    """A tensor that a unit returned, in shape, and its number among the values."""

    shape: torch.Size
    dtype: torch.dtype
    value_id: int


@dataclass(frozen=True)
class ObservedUnit:
    """One unit in the forward that was watched: what it was given of other units, and what it returned.

    `can_cut`: a cut may stand before it.
    """

    name: str
    arguments: tuple[Argument, ...]
    returned: Any
    can_cut: bool = False


def boundary_values(seen: Sequence[ObservedUnit], cut: int) -> list[int]:
    """The values that cross a cut before the unit at `cut`: its first argument, then what else was made
    before it and is given to a unit behind it."""
    if not 0 < cut < len(seen):
        return []
    values = [argument.value_id for argument in seen[cut].arguments[:1]]
    behind = (argument for unit in seen[cut:] for argument in unit.arguments)
    values += [argument.value_id for argument in behind if argument.producer < cut]
    return list(dict.fromkeys(values))


@dataclass
class _Call:
    """A call of a unit. `arguments` are its tensors as they were when it began: where, tensor, value,
    node."""

    name: str
    arguments: CallArguments
    returned: Any = None
    outputs: list[tuple[int, Tensor]] = field(default_factory=list)


class UnitRecorder:
    """Hooks of one forward. Tensors live as long as this, so that no two are taken for one."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._values: dict[tuple[int, int], int] = {}

    def enter(self, name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        named: list[tuple[int | str | None, Any]] = [*enumerate(args), *kwargs.items()]
        given: CallArguments = [
            (where, tensor, self._value_id(tensor), tensor.grad_fn)
            for where, tensor in named
            if isinstance(tensor, Tensor)
        ]
        self._calls.append(_Call(name, given))

    def leave(self, name: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        call = next(call for call in reversed(self._calls) if call.name == name)
        call.returned = self._shapes(output)
        call.outputs = [(self._value_id(tensor), tensor) for tensor in tensor_leaves(output)]

    def called_names(self) -> set[str]:
        """Names of the units that ran, once or more often."""
        return {call.name for call in self._calls}

    def _value_id(self, tensor: Tensor) -> int:
        """The tensor's number; changed in place it is another value."""
        return self._values.setdefault((id(tensor), tensor._version), len(self._values))

    def _shapes(self, output: Any) -> Any:
        """An output with shapes, dtypes and numbers in place of its tensors."""
        if isinstance(output, Tensor):
            return ReturnedTensor(output.shape, output.dtype, self._value_id(output))
        if isinstance(output, tuple | list):
            return replace_items(output if is_named_tuple(output) else (), map(self._shapes, output))
        return None

    def observed_units(self, output: Any) -> list[ObservedUnit]:
        """The units that ran once, in their order, where the model gave `output`."""
        times = Counter(call.name for call in self._calls)
        calls = [call for call in self._calls if times[call.name] == 1]
        made = _Producers()
        seen: list[ObservedUnit] = []
        for place, call in enumerate(calls):
            seen.append(ObservedUnit(call.name, made.arguments(call.arguments), call.returned))
            made.record(place, call)
        if seen:
            given: CallArguments = [
                (None, out, self._value_id(out), out.grad_fn) for out in output_tensors(output)
            ]
            seen[-1] = replace(seen[-1], arguments=(*seen[-1].arguments, *made.arguments(given)))
        known: set[int] = set()
        for place, call in enumerate(calls):
            unit = seen[place]
            known.update(argument.value_id for argument in unit.arguments)
            starts = _carries_gradients(call) and known.issuperset(boundary_values(seen, place))
            seen[place] = replace(unit, can_cut=starts)
            known.update(one.value_id for one in returned_tensors(call.returned))
        return seen


class _Producers:
    """Which unit returned what first: later ones may hand it on as it is."""

    def __init__(self) -> None:
        self._by_node: dict[Any, int] = {}
        self._by_value: dict[int, int] = {}

    def record(self, place: int, call: _Call) -> None:
        for value, tensor in call.outputs:
            self._by_value.setdefault(value, place)
            if tensor.grad_fn is not None:
                self._by_node.setdefault(tensor.grad_fn, place)

    def arguments(self, given: CallArguments) -> tuple[Argument, ...]:
        """What comes of other units; what every stage makes anew from the inputs (masks) is left out."""
        arguments = []
        for where, tensor, value, node in given:
            if tensor.requires_grad:
                makers = (self._by_node.get(maker, -1) for maker in iter_graph_nodes([node], self._by_node))
                made_by = max(makers, default=-1)
                arguments.append(Argument(where, tensor.shape, value, made_by))
            elif value in self._by_value:
                arguments.append(Argument(where, tensor.shape, value, self._by_value[value]))
        return tuple(arguments)


def returned_tensors(returned: Any) -> list[ReturnedTensor]:
    """What stands for each tensor in what a unit returned, in their order."""
    found: list[ReturnedTensor] = []
    map_tensors(returned, found.append, ReturnedTensor)
    return found


def _carries_gradients(call: _Call) -> bool:
    """Whether the first argument of a unit is a tensor that carries gradients: a cut may stand before it."""
    where, tensor, *_ = call.arguments[0] if call.arguments else (None, None)
    return where == 0 and tensor is not None and tensor.is_floating_point() and tensor.requires_grad
