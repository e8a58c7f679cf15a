"""Any model whose modules run in a row, found by watching one forward: Hugging Face decoders of the GPT-2 and
Llama kind, BERT, ViT, ResNets of several libraries, and wrappers around them.

Units are the children of the model, with lists and Sequentials opened. A cut can stand before a unit whose
first argument carries gradients. A stage is a copy of the model's structure that shares its weights and runs
the model's own forward: what the model does between its modules (masks, rotary positions, flattening) stays
the model's own business.

    what crosses a cut        the first argument of the unit behind it, and every other tensor that was made
                              before the cut and is an argument of a unit behind it (an encoder's output for
                              a decoder's blocks, position biases that the first block makes for all)
    units before the stage    stand-ins that return what crosses, else zeros of the right shape
    units of the stage        get what crosses in place of these arguments
    the unit after it         ends the forward: its arguments are handed on

A model that carries something past a cut by its own code (a skip connection from stem to head) is not such a
row: find.py finds that out by running the units against the model. Read chain.py first, traced.py for the
rest.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.nested import call, tensors_of
from rankdeck.parallel.pipelining.chain import Chain, Received
from rankdeck.parallel.pipelining.probing import on_shapes, same_weights, without_effects
from rankdeck.parallel.pipelining.watching import Returned, Seen, UnitWatch, crossing
from rankdeck.torch_compat.dispatch import tree_leaves, tree_map
from rankdeck.torch_compat.modules import own_tensors

_LISTS = (nn.ModuleList, nn.Sequential)


class _HandOn(Exception):  # noqa: N818 - it ends a stage's forward and is no error
    pass


def observe(model: nn.Module, inputs: Any) -> list[Seen]:
    """The modules that may be units, in the order in which they ran, each of them once."""

    def run(shapes: Any) -> list[Seen]:
        watch = UnitWatch()
        with contextlib.ExitStack() as hooks:
            for name, unit in _open(model, ""):
                enter, leave = functools.partial(watch.enter, name), functools.partial(watch.leave, name)
                hooks.enter_context(unit.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(unit.register_forward_hook(leave))
            output = call(model, shapes)
        return watch.seen(output)

    with without_effects(model), torch.enable_grad():
        return on_shapes(run, inputs, model)


def _open(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules that may be units, by name. A module is opened when it is the model, a list, or no item of a
    list itself and holds a list further down."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        in_list = isinstance(module, _LISTS)
        if type(child) in _LISTS or (not in_list and _holds_list(child)):
            yield from _open(child, f"{path}.")
        elif any(True for _ in child.parameters()) or _is_plain(child):
            yield path, child


def _holds_list(module: nn.Module) -> bool:
    return any(isinstance(inner, _LISTS) and len(inner) > 1 for inner in module.modules())


def _is_plain(module: nn.Module) -> bool:
    """Without weights, torch's own modules (pooling, dropout, activations) hand a tensor on; anything else
    may serve several units (rotary positions), so that every stage keeps it."""
    return type(module).__module__.startswith("torch.nn.")


class ObservedChain(Chain):
    """Units are groups of modules that ran between two possible cuts; a group is named by its first."""

    def __init__(self, model: nn.Module, seen: Sequence[Seen], num_samples: int) -> None:
        self._starts = [index for index, unit in enumerate(seen) if unit.can_cut or not index]
        super().__init__(model, [seen[start].name for start in self._starts])
        self._seen = seen
        self._num_samples = num_samples

    def stage(self, start: int, end: int) -> nn.Module:
        ends = [*self._starts, len(self._seen)]
        return _ObservedStage(self.model, self._seen, ends[start], ends[end], self._num_samples)


class _ObservedStage(nn.Module):
    def __init__(
        self, model: nn.Module, seen: Sequence[Seen], start: int, end: int, num_samples: int
    ) -> None:
        super().__init__()
        self.model = same_weights(model)
        self._num_samples = num_samples
        self._enters, self._leaves = crossing(seen, start), crossing(seen, end)
        self._shape = seen[start].arguments[0].shape if start else None
        self._received: dict[int, Tensor] = {}
        self._to_hand_on: dict[int, Tensor] = {}
        if start > 0:
            # Weights of the modules above the units are the first stage's; what the others make of zeros in
            # their place is thrown away with everything else before their first unit.
            for name in _above([unit.name for unit in seen]):
                _empty(self.model.get_submodule(name))
            for name in _aliases(self.model, seen):
                _empty(self.model.get_submodule(name))
        for unit in seen[:start]:
            self._hollow(unit.name, functools.partial(self._stand_in, unit.returned))
        for unit in seen[start:end]:
            module = self.model.get_submodule(unit.name)
            module.register_forward_pre_hook(functools.partial(self._take, unit), with_kwargs=True)
            module.register_forward_hook(functools.partial(self._keep, unit.returned))
        for unit in seen[end:]:
            self._hollow(unit.name, functools.partial(self._end, unit))

    def forward(self, received: Received, inputs: Any) -> Any:
        self._received = dict(zip(self._enters, received or (), strict=True))
        # What was received and is needed further on passes through.
        self._to_hand_on = {value: self._received[value] for value in self._leaves if value in self._received}
        try:
            return call(self.model, inputs)
        except _HandOn:
            return tuple(self._to_hand_on[value] for value in self._leaves)
        finally:
            self._received, self._to_hand_on = {}, {}

    def _hollow(self, name: str, forward: Callable[..., Any]) -> None:
        """A unit of another stage: it keeps its structure, because models ask for a weight's dtype, but
        neither weights nor a forward of its own."""
        unit = self.model.get_submodule(name)
        for module in unit.modules():
            _empty(module)
        unit.forward = forward

    def _take(
        self, unit: Seen, _module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A unit's arguments, with what was received in its place; what is to be handed on is kept."""
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for argument in [argument for argument in unit.arguments if argument.where is not None]:
            if argument.value in self._received:
                given[argument.where] = self._received[argument.value]
            elif argument.value in self._leaves:
                self._to_hand_on[argument.value] = given[argument.where]
        return tuple(given[index] for index in range(len(args))), {name: given[name] for name in kwargs}

    def _keep(self, returned: Any, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """What a unit of the stage returns, where a later stage is given it."""
        leaves = [leaf for leaf in tree_leaves(returned) if leaf is not None]
        for leaf, tensor in zip(leaves, tensors_of(output), strict=False):
            if leaf.value in self._leaves:
                self._to_hand_on.setdefault(leaf.value, tensor)

    def _end(self, unit: Seen, *args: Any, **kwargs: Any) -> Any:
        """The first unit after the stage: with its arguments everything is known that is handed on."""
        self._take(unit, None, args, kwargs)
        raise _HandOn

    def _stand_in(self, returned: Any, *_args: Any, **_kwargs: Any) -> Any:
        """What a unit before the stage returns: what was received, else its shape only."""
        return tree_map(self._make, returned)

    def _make(self, returned: Returned | None) -> Tensor | None:
        if returned is None or returned.value in self._received:
            return None if returned is None else self._received[returned.value]
        first, shape = self._received[self._enters[0]], returned.shape
        if shape == self._shape:
            shape = first.shape  # of the size that this batch has, whatever the one that was watched had
        elif shape and shape[0] == self._num_samples:
            shape = torch.Size((len(first), *shape[1:]))
        return torch.zeros((), dtype=returned.dtype, device=first.device).expand(shape)


def _above(units: Sequence[str]) -> set[str]:
    """Names of the modules that hold units, the model itself ("") included."""
    above = {""}
    for name in units:
        while name := name.rpartition(".")[0]:
            above.add(name)
    return above


def _aliases(model: nn.Module, seen: Sequence[Seen]) -> list[str]:
    """Modules that never ran, all of whose weights are also those of units (T5's `shared`)."""
    ran = {unit.name for unit in seen}
    weights = {id(weight) for name in ran for weight in model.get_submodule(name).parameters()}
    others = [(name, list(module.parameters())) for name, module in _open(model, "") if name not in ran]
    return [name for name, own in others if own and weights.issuperset(map(id, own))]


def _empty(module: nn.Module) -> None:
    """Zeros that take no memory in place of the module's own weights."""
    for kind in own_tensors(module):
        for name, tensor in list(kind.items()):
            if tensor is not None:
                del kind[name]
                zeros = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
                object.__setattr__(module, name, zeros)
