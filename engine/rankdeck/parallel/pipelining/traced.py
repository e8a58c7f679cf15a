"""Any model that torch.export can trace, cut in its graph: the last resort, for models with connections that
skip over modules.

A graph is cut before modules that run once. What a later stage needs of an earlier one travels from stage to
stage, through those between as well. Tracing freezes train mode (dropout would stay on in evaluation), so
there are two graphs, one per mode, over the same weights; it freezes the batch size; and it copies a weight
that has two names, so that tied weights are refused. Read observed.py first.

Source: torch.distributed.pipelining.pipeline.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.pipelining.chain import Chain, Received
from rankdeck.parallel.pipelining.probing import same_weights

_ADVICE = phrase(
    "Give the model a method pipeline_units(), which returns its modules in order as (name, module)."
)


def trace(model: nn.Module, inputs: Any, names: Sequence[str]) -> TracedChain:
    """The model as a chain with possible cuts before the modules `names`.

    Raises: ModelError when it cannot be traced.
    """
    weights = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    if len(set(weights)) < len(weights):
        raise ModelError(
            phrase(
                "{model} can only be cut by tracing, which would untie its tied weights.",
                model=type(model).__name__,
            ),
            path="strategy.use",
            advice=_ADVICE,
        )
    # Tracing leaves marks on the modules before which it cuts: each trace has a structure of its own.
    graphs = [_graph(same_weights(model).train(mode), inputs, names) for mode in (False, True)]
    return TracedChain(model, graphs[0], graphs[1], names)


def _graph(model: nn.Module, inputs: Any, names: Sequence[str]) -> fx.GraphModule:
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(_flat(inputs)), None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe = pipeline(model, args, kwargs, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING))
    except Exception as error:  # tracing runs the model's own code on symbols, which may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            phrase(
                "{model} cannot be cut into stages: it does not run as a row of modules, and "
                "tracing failed ({reason}).",
                model=type(model).__name__,
                reason=reason[0],
            ),
            path="strategy.use",
            advice=_ADVICE,
        ) from error
    return pipe.split_gm


class TracedChain(Chain):
    takes_any_batch = False

    def __init__(
        self, model: nn.Module, evaluating: fx.GraphModule, training: fx.GraphModule, names: Sequence[str]
    ) -> None:
        pieces = [_pieces(graph) for graph in (evaluating, training)]
        if len(pieces[0]) != len(pieces[1]) or len(pieces[0]) != len(names) + 1:
            raise ModelError(
                phrase("{model} has other units in training than in evaluation.", model=type(model).__name__),
                path="strategy.use",
                advice=_ADVICE,
            )
        super().__init__(model, ["start", *names])
        self._graphs = (evaluating, training)
        self._pieces = pieces

    def stage(self, start: int, end: int) -> nn.Module:
        runs = [
            _Run(graph, pieces, start, end) for graph, pieces in zip(self._graphs, self._pieces, strict=True)
        ]
        return _TracedStage(runs[0], runs[1])


def _pieces(graph: fx.GraphModule) -> list[list[fx.Node]]:
    """The graph's nodes by piece: each submodule with the items that are taken out of what it returns."""
    pieces: list[list[fx.Node]] = []
    for node in graph.graph.nodes:
        if node.op == "call_module":
            pieces.append([node])
        elif node.op == "call_function" and node.target is operator.getitem:
            next(piece for piece in pieces if piece[0] is node.args[0]).append(node)
    return pieces


class _Run(nn.Module):
    """Some pieces of one graph."""

    def __init__(
        self, graph: fx.GraphModule, pieces: Sequence[Sequence[fx.Node]], start: int, end: int
    ) -> None:
        super().__init__()
        self._nodes = [node for piece in pieces[start:end] for node in piece]
        self._needed = _alive(pieces, start)
        self._handed_on = _alive(pieces, end) if end < len(pieces) else None
        self._inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._output = next(node for node in graph.graph.nodes if node.op == "output")
        self._modules_of = {
            node: graph.get_submodule(str(node.target)) for node in self._nodes if node.op == "call_module"
        }
        self.held = nn.ModuleList(self._modules_of.values())

    def forward(self, received: Received, inputs: Any) -> Any:
        values: dict[fx.Node, Any] = dict(zip(self._inputs, _flat(inputs), strict=True))
        values.update(zip(self._needed, received or (), strict=True))
        for node in self._nodes:
            args: Any = fx.map_arg(node.args, values.__getitem__)
            if node.op == "call_module":
                values[node] = self._modules_of[node](*args)
            else:
                values[node] = operator.getitem(*args)
        if self._handed_on is not None:
            return tuple(values[node] for node in self._handed_on)
        outputs = fx.map_arg(self._output.args[0], values.__getitem__)
        return outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs


def _alive(pieces: Sequence[Sequence[fx.Node]], cut: int) -> list[fx.Node]:
    """What is made before a cut and used behind it, in the graph's order."""
    before = [node for piece in pieces[:cut] for node in piece]
    own = set(before)
    return [node for node in before if any(user not in own for user in node.users)]


def _flat(inputs: Any) -> list[torch.Tensor]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple | list) else [inputs]


class _TracedStage(nn.Module):
    def __init__(self, evaluating: _Run, training: _Run) -> None:
        super().__init__()
        self.evaluating = evaluating
        self.in_training = training

    def forward(self, received: Received, inputs: Any) -> Any:
        return (self.in_training if self.training else self.evaluating)(received, inputs)
