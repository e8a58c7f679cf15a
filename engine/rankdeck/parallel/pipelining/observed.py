"""Any model whose modules run in a row, found by watching one forward: Hugging Face decoders of the GPT-2 and
Llama kind, BERT, ViT, ResNets of several libraries, and wrappers around them.

Units are the children of the model, with lists and Sequentials opened. A cut can stand before a unit whose
first argument is the one tensor that carries gradients. A stage is a copy of the model's structure that
shares its weights and runs the model's own forward: what the model does between its modules (masks, rotary
positions, flattening) stays the model's own business.

    units before the stage    stand-ins that return zeros of the right shape and cost nothing
    its first unit            gets what the stage before handed on, in place of its first argument
    the unit after it         ends the forward: its first argument is what is handed on

A model that carries something past a cut (a skip connection from stem to head) is not such a row: find.py
finds that out by running the units against the model. Read chain.py first, traced.py for the rest.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.nested import call
from rankdeck.parallel.pipelining.chain import Chain, Received
from rankdeck.parallel.pipelining.probing import on_shapes, same_weights, without_effects
from rankdeck.torch_compat.modules import own_tensors

_LISTS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class Seen:
    """One unit in the forward that was watched: the shapes of its first argument and of its output."""

    name: str
    can_cut: bool
    received: torch.Size | None
    returned: Any


class _HandOn(Exception):  # noqa: N818 - it ends a stage's forward and is no error
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor


def observe(model: nn.Module, inputs: Any) -> list[Seen]:
    """The modules that may be units, in the order in which they ran, each of them once."""
    seen: list[Seen] = []

    def note(name: str, _module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        carries = first is not None and first.is_floating_point() and first.requires_grad
        seen.append(Seen(name, carries, None if first is None else first.shape, _shapes(output)))

    def run(shapes: Any) -> None:
        seen.clear()
        call(model, shapes)

    with contextlib.ExitStack() as hooks:
        for name, unit in _open(model, ""):
            hooks.enter_context(unit.register_forward_hook(functools.partial(note, name)))
        with without_effects(model), torch.enable_grad():
            on_shapes(run, inputs, model)
    names = [unit.name for unit in seen]
    return [unit for unit in seen if names.count(unit.name) == 1]


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


def _shapes(output: Any) -> Any:
    """An output with shapes and dtypes in place of its tensors."""
    if isinstance(output, Tensor):
        return output.shape, output.dtype
    if isinstance(output, tuple | list):
        return [_shapes(item) for item in output]
    return None


class ObservedChain(Chain):
    """Units are groups of modules that ran between two possible cuts; a group is named by its first."""

    def __init__(self, model: nn.Module, seen: Sequence[Seen], num_samples: int) -> None:
        groups: list[list[Seen]] = []
        for unit in seen:
            if groups and not unit.can_cut:
                groups[-1].append(unit)
            else:
                groups.append([unit])
        super().__init__(model, [group[0].name for group in groups])
        self._groups = groups
        self._num_samples = num_samples

    def stage(self, start: int, end: int) -> nn.Module:
        return _ObservedStage(self.model, self._groups, start, end, self._num_samples)


class _ObservedStage(nn.Module):
    def __init__(
        self, model: nn.Module, groups: Sequence[Sequence[Seen]], start: int, end: int, num_samples: int
    ) -> None:
        super().__init__()
        self.model = same_weights(model)
        self._received: Tensor | None = None
        self._num_samples = num_samples
        self._shape = groups[start][0].received
        if start > 0:
            # Weights of the modules above the units are the first stage's; what the others make of zeros in
            # their place is thrown away with everything else before their first unit.
            for name in _above([seen.name for group in groups for seen in group]):
                _empty(self.model.get_submodule(name))
            self.model.get_submodule(groups[start][0].name).register_forward_pre_hook(self._hand_in)
        for seen in [unit for group in groups[:start] for unit in group]:
            self._hollow(seen.name, functools.partial(self._stand_in, seen.returned))
        for seen in [unit for group in groups[end:] for unit in group]:
            self._hollow(seen.name, _end)

    def forward(self, received: Received, inputs: Any) -> Any:
        self._received = None if received is None else received[0]
        try:
            return call(self.model, inputs)
        except _HandOn as done:
            return (done.tensor,)
        finally:
            self._received = None

    def _hollow(self, name: str, forward: Callable[..., Any]) -> None:
        """A unit of another stage: it keeps its structure, because models ask for a weight's dtype, but
        neither weights nor a forward of its own."""
        unit = self.model.get_submodule(name)
        for module in unit.modules():
            _empty(module)
        unit.forward = forward

    def _hand_in(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._received, *args[1:])

    def _stand_in(self, returned: Any, *_args: Any, **_kwargs: Any) -> Any:
        """What a unit before the stage returns, in shape only."""
        assert self._received is not None
        return self._make(returned, self._received.detach())

    def _make(self, returned: Any, received: Tensor) -> Any:
        if isinstance(returned, list):
            return tuple(self._make(item, received) for item in returned)
        if returned is None:
            return None
        shape, dtype = returned
        if shape == self._shape:
            return received  # of the size that this batch has, whatever the one that was watched had
        if shape and shape[0] == self._num_samples:
            shape = (len(received), *shape[1:])
        return torch.zeros((), dtype=dtype, device=received.device).expand(shape)


def _end(*args: Any, **_kwargs: Any) -> Any:
    """The first unit after the stage: its input is what the stage hands on."""
    raise _HandOn(args[0])


def _above(units: Sequence[str]) -> set[str]:
    """Names of the modules that hold units, the model itself ("") included."""
    above = {""}
    for name in units:
        while name := name.rpartition(".")[0]:
            above.add(name)
    return above


def _empty(module: nn.Module) -> None:
    """Zeros that take no memory in place of the module's own weights."""
    for kind in own_tensors(module):
        for name, tensor in list(kind.items()):
            if tensor is not None:
                del kind[name]
                zeros = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
                object.__setattr__(module, name, zeros)
