"""What stands between the layers that a plan would split, found by watching one forward of the whole model.

    q, k, v (columns) -> ... -> o (row)         a weight on the way sees one rank's slice only
    module's input -> ... -> module's output    a way around the row (a residual) needs the input as it came

Autograd's graph says both, in whatever order a module declares its parts. Where no forward can be watched the
order of declaration stands in for it. Read attention.py before, checked.py and plan.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.parallel.backward import nodes_behind
from rankdeck.parallel.collectives.broadcast import from_rank_0
from rankdeck.parallel.nested import call, each_tensor, tensors_of
from rankdeck.parallel.pipelining.probing import all_trainable, on_shapes, without_effects
from rankdeck.parallel.tensor.attention import AttentionLayers, Pair
from rankdeck.torch_compat.dispatch import Kwargs

Group = AttentionLayers | Pair
T = TypeVar("T")
_VALUES = (torch.Tensor, int, float, str, tuple, list, dict)
_OVER_FEATURES = ("LayerNorm", "RmsNorm", "RMSNorm", "GroupNorm", "Softmax")
"""Operations of autograd that look at all features of a token, by parts of their names."""


@dataclass(frozen=True)
class Between:
    """What was seen. `weights` are the names on the way from a group's columns to its row, by row; `around`
    are modules whose input goes on past the rows inside them."""

    weights: Mapping[str, tuple[str, ...]]
    around: frozenset[str] = frozenset()


@dataclass
class _Nodes:
    """Autograd's nodes of what entered and what left each module that is watched."""

    entered: dict[str, list[Any]] = field(default_factory=dict)
    left: dict[str, list[Any]] = field(default_factory=dict)

    def enter(self, name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        self.entered.setdefault(name, []).extend(_nodes_of([*args, *kwargs.values()][:1]))

    def leave(self, name: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self.left.setdefault(name, []).extend(_nodes_of(output))

    def left_by(self, names: Collection[str]) -> set[Any]:
        return {node for name in names for node in self.left.get(name, ())}


def look_between(
    model: nn.Module, groups: Sequence[Group], inputs: Any, blocks: MutableMapping[str, Any]
) -> Between:
    """What stands between the layers of each group. All ranks of a run call this together. `blocks` maps
    names to None, and gets the arguments of these modules where a forward was watched here."""
    between = from_rank_0(lambda: None if inputs is None else _watched(model, groups, inputs, blocks))
    return between or Between({group.row: tuple(_declared(model, group)) for group in groups})


def _watched(
    model: nn.Module, groups: Sequence[Group], inputs: Any, blocks: MutableMapping[str, Any]
) -> Between | None:
    names = {id(weight): name for name, weight in model.named_parameters()}
    parents = {group.columns[0].rpartition(".")[0] for group in groups} - {""}
    layers = [name for group in groups for name in (*group.columns, group.row)]

    def between(nodes: _Nodes) -> Between:
        missing = [name for name in layers if not nodes.left.get(name)]
        if missing or not nodes.entered:
            raise LookupError(f"{missing} took no part in the forward")
        weights = {
            group.row: tuple(_weights_reached(nodes, group, names, features=isinstance(group, Pair)))
            for group in groups
        }
        around = [parent for parent in parents if _goes_around(nodes, parent, layers)]
        return Between(weights, frozenset(around))

    return _read_forward(model, {*layers, *parents}, inputs, between, blocks)


def _read_forward(
    model: nn.Module,
    names: Collection[str],
    inputs: Any,
    read: Callable[[_Nodes], T],
    blocks: MutableMapping[str, Any],
) -> T | None:
    """What `read` finds in the graph of one forward, where the modules `names` are watched; None where that
    fails. `blocks` gets the arguments of the modules that it names."""

    def keep(name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        # A cache would have been filled by this forward, and blocks do without one.
        known = {key: value if isinstance(value, _VALUES) else None for key, value in kwargs.items()}
        blocks[name] = each_tensor((args, known), torch.Tensor.detach)

    def run(shapes: Any) -> T:
        nodes = _Nodes()
        with contextlib.ExitStack() as hooks:
            for name in blocks:
                module = model.get_submodule(name)
                hooks.enter_context(module.register_forward_pre_hook(partial(keep, name), with_kwargs=True))
            for name in names:
                module = model.get_submodule(name)
                enter, leave = partial(nodes.enter, name), partial(nodes.leave, name)
                hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(leave))
            output = call(model, shapes)
        found = read(nodes)
        del output
        return found

    try:
        with without_effects(model), all_trainable(model):
            return on_shapes(run, inputs, model)
    except Exception:  # a person's code may raise anything on shapes or in eval mode
        return None


_OVER_ALL = {
    marked("a norm"): ("Norm", "LinalgVectorNorm", "NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm"),
    marked("a top-k"): ("Topk",),
    marked("a maximum"): ("Max", "Amax"),
    marked("a minimum"): ("Min", "Amin"),
    marked("a mean"): ("Mean",),
    marked("a softmax"): ("Softmax", "LogSoftmax"),
    marked("a running sum or product"): ("Cumsum", "Cumprod", "Logcumsumexp"),
    marked("a sort"): ("Sort",),
    marked("a standard deviation"): ("Std", "StdMean"),
    marked("a variance"): ("Var", "VarMean"),
    marked("a median"): ("Median", "Kthvalue"),
    marked("a log-sum-exp"): ("Logsumexp",),
    marked("a sum"): ("Sum",),
    marked("a product"): ("Prod",),
}
"""Operations of autograd that may look at all features of a token."""


def operation_between(model: nn.Module, columns: Sequence[str], row: str, inputs: Any) -> Phrase | None:
    """What between columns and their row looks at all features, the nearest to the row; None where nobody
    knows."""

    def operation(nodes: _Nodes) -> Phrase | None:
        for node in _nodes_between(nodes.left_by(columns), nodes.entered.get(row, ())):
            name = node.name().partition("Backward")[0]
            words = next((words for words, names in _OVER_ALL.items() if name in names), None)
            # Attention has a softmax of its own, over tokens.
            if words is not None and not (len(columns) > 2 and name == "Softmax"):
                return phrase(words)
        return None

    return _read_forward(model, (*columns, row), inputs, operation, {})


def _weights_reached(
    nodes: _Nodes, group: Group, names: Mapping[int, str], *, features: bool
) -> Iterator[str]:
    """Weights that the row's input was made with since the columns, the nearest first."""
    for node in _nodes_between(nodes.left_by(group.columns), nodes.entered.get(group.row, ())):
        weight = getattr(node, "variable", None)
        if weight is not None:
            yield names.get(id(weight), "a tensor that is no parameter")
        elif features and any(part in node.name() for part in _OVER_FEATURES):
            yield node.name()


def _goes_around(nodes: _Nodes, parent: str, layers: Collection[str]) -> bool:
    """Whether the input of a module reaches its output without passing a layer that is split."""
    inputs = set(nodes.entered.get(parent, ()))
    return any(node in inputs for node in _nodes_between(nodes.left_by(layers), nodes.left.get(parent, ())))


def _nodes_between(first: Collection[Any], last: Collection[Any]) -> Iterator[Any]:
    """Autograd's nodes from `last` back to `first`, without these, the nearest first."""
    return (node for node in nodes_behind(last, first) if node not in first)


def _nodes_of(value: Any) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors_of(value) if tensor.grad_fn is not None]


def _declared(model: nn.Module, group: Group) -> Iterator[str]:
    """What the order of declaration says: any other weight beside attention's layers, and what is declared
    between the columns and the row of a pair."""
    own = {*group.columns, group.row}
    parent = group.columns[0].rpartition(".")[0]
    inside = group.block if isinstance(group, Pair) else parent
    between = isinstance(group, AttentionLayers)
    for name, module in model.get_submodule(inside).named_modules(prefix=inside):
        if isinstance(group, Pair):
            if name == group.row:
                return
            between = between or name == group.columns[0]
        if between and name not in own:
            yield from (f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False))
