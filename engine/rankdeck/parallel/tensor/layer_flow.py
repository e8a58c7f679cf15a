"""Find weights and residuals between the layers that a plan would split, by observing one forward pass.

    q, k, v (columns) -> ... -> o (row)         a weight between them receives only one rank's slice
    module's input -> ... -> module's output    a path around the row (a residual) needs the original input

Autograd's graph shows both, in whatever order a module declares its children. If no forward pass can be
observed, the order of declaration is used instead. Read attention.py first, plan_check.py and plan.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.parallel.backward import iter_graph_nodes
from rankdeck.parallel.collectives.broadcast import run_on_rank_0
from rankdeck.parallel.pipelining.probing import grads_for_all, run_on_fake_tensors, without_side_effects
from rankdeck.parallel.pytree import call_model, map_tensors, tensor_leaves
from rankdeck.parallel.tensor.attention import AttentionLayers, FeedForwardPair
from rankdeck.torch_compat.dispatch import Kwargs

Group = AttentionLayers | FeedForwardPair
T = TypeVar("T")
_PLAIN_TYPES = (torch.Tensor, int, float, str, tuple, list, dict)
_FEATURE_OPS = ("LayerNorm", "RmsNorm", "RMSNorm", "GroupNorm", "Softmax")
"""Substrings of the names of autograd operations that depend on all features of a token."""


@dataclass(frozen=True)
class LayerFlow:
    """Result of observing one forward pass.

    `weights` maps the row-wise layer of each group to the names of the weights between the group's
    column-wise layers and that layer; `bypassed` contains the modules whose input reaches their output on a
    path around the row-wise layers inside them.
    """

    weights: Mapping[str, tuple[str, ...]]
    bypassed: frozenset[str] = frozenset()


@dataclass
class _ModuleNodes:
    """Autograd nodes of the inputs and outputs of each observed module."""

    inputs: dict[str, list[Any]] = field(default_factory=dict)
    outputs: dict[str, list[Any]] = field(default_factory=dict)

    def record_inputs(self, name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        self.inputs.setdefault(name, []).extend(_grad_nodes([*args, *kwargs.values()][:1]))

    def record_outputs(self, name: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self.outputs.setdefault(name, []).extend(_grad_nodes(output))

    def output_nodes(self, names: Collection[str]) -> set[Any]:
        return {node for name in names for node in self.outputs.get(name, ())}


def find_layer_flow(
    model: nn.Module, groups: Sequence[Group], inputs: Any, blocks: MutableMapping[str, Any]
) -> LayerFlow:
    """Find the weights between the layers of each group, and the modules with a residual path around their
    row-wise layers. All ranks of a run call this together.

    `blocks` maps module names to None; if a forward pass is observed on this rank, each None is replaced with
    the module's arguments.
    """
    between = run_on_rank_0(
        lambda: None if inputs is None else _find_from_forward(model, groups, inputs, blocks)
    )
    return between or LayerFlow({group.row: tuple(_iter_declared_weights(model, group)) for group in groups})


def _find_from_forward(
    model: nn.Module, groups: Sequence[Group], inputs: Any, blocks: MutableMapping[str, Any]
) -> LayerFlow | None:
    names = {id(weight): name for name, weight in model.named_parameters()}
    parents = {group.columns[0].rpartition(".")[0] for group in groups} - {""}
    layers = [name for group in groups for name in (*group.columns, group.row)]

    def between(nodes: _ModuleNodes) -> LayerFlow:
        missing = [name for name in layers if not nodes.outputs.get(name)]
        if missing or not nodes.inputs:
            raise LookupError(f"not called in the forward pass: {missing}")
        weights = {
            group.row: tuple(
                _iter_weights(nodes, group, names, includes_feature_ops=isinstance(group, FeedForwardPair))
            )
            for group in groups
        }
        around = [parent for parent in parents if _bypasses_layers(nodes, parent, layers)]
        return LayerFlow(weights, frozenset(around))

    return _read_forward(model, {*layers, *parents}, inputs, between, blocks)


def _read_forward(
    model: nn.Module,
    names: Collection[str],
    inputs: Any,
    read: Callable[[_ModuleNodes], T],
    blocks: MutableMapping[str, Any],
) -> T | None:
    """Return the result of `read` on the graph of one forward pass in which the modules `names` are observed.

    Return None if the forward pass or `read` fails. The arguments of the modules named in `blocks` are stored
    in `blocks`.
    """

    def record_arguments(name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        # Other objects are dropped: this forward would have filled a cache, and blocks run without one.
        plain_kwargs = {
            key: value if isinstance(value, _PLAIN_TYPES) else None for key, value in kwargs.items()
        }
        blocks[name] = map_tensors((args, plain_kwargs), torch.Tensor.detach)

    def run(shapes: Any) -> T:
        nodes = _ModuleNodes()
        with contextlib.ExitStack() as hooks:
            for name in blocks:
                module = model.get_submodule(name)
                hooks.enter_context(
                    module.register_forward_pre_hook(partial(record_arguments, name), with_kwargs=True)
                )
            for name in names:
                module = model.get_submodule(name)
                enter, leave = partial(nodes.record_inputs, name), partial(nodes.record_outputs, name)
                hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(leave))
            output = call_model(model, shapes)
        result = read(nodes)
        # The outputs keep the graph alive until `read` is done.
        del output
        return result

    try:
        with without_side_effects(model), grads_for_all(model):
            return run_on_fake_tensors(run, inputs, model)
    except Exception:  # the user's code may raise anything on shapes or in eval mode
        return None


_FEATURE_OP_TEXTS = {
    tr_noop("a norm"): ("Norm", "LinalgVectorNorm", "NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm"),
    tr_noop("a top-k"): ("Topk",),
    tr_noop("a maximum"): ("Max", "Amax"),
    tr_noop("a minimum"): ("Min", "Amin"),
    tr_noop("a mean"): ("Mean",),
    tr_noop("a softmax"): ("Softmax", "LogSoftmax"),
    tr_noop("a running sum or product"): ("Cumsum", "Cumprod", "Logcumsumexp"),
    tr_noop("a sort"): ("Sort",),
    tr_noop("a standard deviation"): ("Std", "StdMean"),
    tr_noop("a variance"): ("Var", "VarMean"),
    tr_noop("a median"): ("Median", "Kthvalue"),
    tr_noop("a log-sum-exp"): ("Logsumexp",),
    tr_noop("a sum"): ("Sum",),
    tr_noop("a product"): ("Prod",),
}
"""Names of autograd operations that may depend on all features of a token, keyed by display text."""


def operation_between(model: nn.Module, columns: Sequence[str], row: str, inputs: Any) -> Phrase | None:
    """Return the name of the last operation between the layers `columns` and `row` that depends on all
    features, or None if it is unknown."""

    def operation(nodes: _ModuleNodes) -> Phrase | None:
        for node in _nodes_between(nodes.output_nodes(columns), nodes.inputs.get(row, ())):
            name = node.name().partition("Backward")[0]
            text = next((text for text, names in _FEATURE_OP_TEXTS.items() if name in names), None)
            # Attention has a softmax of its own, over tokens.
            if text is not None and not (len(columns) > 2 and name == "Softmax"):
                return phrase(text)
        return None

    return _read_forward(model, (*columns, row), inputs, operation, {})


def _iter_weights(
    nodes: _ModuleNodes, group: Group, names: Mapping[int, str], *, includes_feature_ops: bool
) -> Iterator[str]:
    """Yield the weights used between a group's column-wise layers and its row-wise layer, nearest to the
    row-wise layer first.

    If `includes_feature_ops` is true, also yield the names of operations that depend on all features.
    """
    for node in _nodes_between(nodes.output_nodes(group.columns), nodes.inputs.get(group.row, ())):
        weight = getattr(node, "variable", None)
        if weight is not None:
            yield names.get(id(weight), "a tensor that is not a parameter")
        elif includes_feature_ops and any(op_name in node.name() for op_name in _FEATURE_OPS):
            yield node.name()


def _bypasses_layers(nodes: _ModuleNodes, parent: str, layers: Collection[str]) -> bool:
    """Check whether the input of a module reaches its output on a path around all split layers."""
    inputs = set(nodes.inputs.get(parent, ()))
    return any(
        node in inputs for node in _nodes_between(nodes.output_nodes(layers), nodes.outputs.get(parent, ()))
    )


def _nodes_between(first: Collection[Any], last: Collection[Any]) -> Iterator[Any]:
    """Return the autograd nodes from `last` back to `first`, excluding `first`; nodes nearest to `last` come
    first."""
    return (node for node in iter_graph_nodes(last, first) if node not in first)


def _grad_nodes(value: Any) -> list[Any]:
    return [tensor.grad_fn for tensor in tensor_leaves(value) if tensor.grad_fn is not None]


def _iter_declared_weights(model: nn.Module, group: Group) -> Iterator[str]:
    """Yield the weights that may be between the layers of a group, judging by the order of declaration.

    For an attention layer, these are all weights of its module except those of its split layers; for a pair,
    the weights declared between its column-wise layers and its row-wise layer.
    """
    group_names = {*group.columns, group.row}
    parent = group.columns[0].rpartition(".")[0]
    inside = group.block if isinstance(group, FeedForwardPair) else parent
    between = isinstance(group, AttentionLayers)
    for name, module in model.get_submodule(inside).named_modules(prefix=inside):
        if isinstance(group, FeedForwardPair):
            if name == group.row:
                return
            between = between or name == group.columns[0]
        if between and name not in group_names:
            yield from (f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False))
