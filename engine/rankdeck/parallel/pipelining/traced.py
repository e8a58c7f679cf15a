"""Cut the graph of any model that torch.export can trace: the last resort, for models with connections that
skip modules.

A graph is cut only before modules that run exactly once. A tensor that a later stage needs from an earlier
stage is sent from stage to stage, through all stages between them. Tracing freezes train mode (dropout would
stay on in evaluation), so there are two graphs, one per mode, with the same weights. It also freezes the
sizes of batches, and copies each weight that several pieces use; the copies are replaced by the model's own
weight. Read observed.py first.

Source: torch.distributed.pipelining.pipeline.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.pipelining.chain import UNITS_ADVICE, Chain, StageInputs
from rankdeck.parallel.pipelining.probing import copy_sharing_weights, probe_model, run_on_fake_tensors
from rankdeck.parallel.pytree import call_model
from rankdeck.torch_compat.dispatch import TreeSpec, tree_flatten, tree_unflatten
from rankdeck.torch_compat.modules import own_tensors


def trace_chain(model: nn.Module, inputs: Any, names: Sequence[str]) -> TracedChain:
    """Trace the model as a chain with possible cuts before the modules `names`.

    Raises: ModelError when the model cannot be traced.
    """
    with probe_model(model, inputs):
        # Tracing marks the modules before which it cuts, so each trace gets a copy of the structure.
        graphs = [
            _trace_graph(copy_sharing_weights(model).train(mode), inputs, names) for mode in (False, True)
        ]
    for graph in graphs:
        _share_weights(graph, model)
    return TracedChain(model, inputs, graphs, names)


def _share_weights(graph: fx.GraphModule, model: nn.Module) -> None:
    """Replace the weights and buffers of all pieces with the model's own, because tracing copies weights that
    several pieces use."""
    model_tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    model_tensors.update(model.named_buffers(remove_duplicate=False))
    for piece in graph.children():
        for path, module in piece.named_modules(remove_duplicate=False):
            for table in own_tensors(module):
                for name in table:
                    table[name] = model_tensors.get(f"{path}.{name}" if path else name, table[name])


def _trace_graph(model: nn.Module, inputs: Any, names: Sequence[str]) -> fx.GraphModule:
    from torch.distributed.pipelining import SplitPoint, pipeline  # imports torch's compiler

    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(_flatten_inputs(inputs)), None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe = pipeline(model, args, kwargs, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING))
    except Exception as error:  # tracing runs the model's own code on symbols, which may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            phrase(
                "{model} cannot be cut into stages: it does not run as a sequence of modules, "
                "and tracing failed ({reason}).",
                model=type(model).__name__,
                reason=reason[0],
            ),
            path="strategy.use",
            advice=UNITS_ADVICE,
        ) from error
    return pipe.split_gm


class TracedChain(Chain):
    accepts_any_batch = False

    def __init__(
        self, model: nn.Module, inputs: Any, graphs: Sequence[fx.GraphModule], names: Sequence[str]
    ) -> None:
        """Build the chain; `graphs` are the graph for evaluation and the graph for training."""
        pieces = [_graph_pieces(graph) for graph in graphs]
        if any(len(segments) != len(names) + 1 for segments in pieces):
            raise ModelError(
                phrase(
                    "{model} has different units in training and in evaluation.", model=type(model).__name__
                ),
                path="strategy.use",
                advice=UNITS_ADVICE,
            )
        super().__init__(model, ["start", *names])
        self._ends = list(range(len(self) + 1))
        self._inputs = inputs
        self._graphs = list(zip(graphs, pieces, self._structures(), strict=True))

    def _structures(self) -> list[TreeSpec]:
        """Return the nested structure of the model's output, in evaluation and in training."""

        def run(inputs: Any) -> list[TreeSpec]:
            copied = copy_sharing_weights(self.model)
            return [tree_flatten(call_model(copied.train(mode), inputs))[1] for mode in (False, True)]

        with probe_model(self.model, self._inputs):
            return run_on_fake_tensors(run, self._inputs, self.model)

    def stage(self, start: int, end: int) -> nn.Module:
        first, last = self._ends[start], self._ends[end]
        runs = [
            _GraphSegment(graph, pieces, first, last, structure) for graph, pieces, structure in self._graphs
        ]
        return _TracedStage(runs[0], runs[1], _input_sizes(self._inputs))

    def with_cuts(self, starts: Sequence[int]) -> Chain:
        fewer = copy.copy(self)
        fewer.names = [self.names[0], *(self.names[start] for start in starts)]
        fewer._ends = [0, *(self._ends[start] for start in starts), self._ends[-1]]
        return fewer


def _graph_pieces(graph: fx.GraphModule) -> list[list[fx.Node]]:
    """Return the graph's nodes by piece: each submodule call together with the getitem nodes on its
    output."""
    pieces: list[list[fx.Node]] = []
    for node in graph.graph.nodes:
        if node.op == "call_module":
            pieces.append([node])
        elif node.op == "call_function" and node.target is operator.getitem:
            next(piece for piece in pieces if piece[0] is node.args[0]).append(node)
    return pieces


class _GraphSegment(nn.Module):
    """Consecutive pieces of one graph."""

    def __init__(
        self,
        graph: fx.GraphModule,
        pieces: Sequence[Sequence[fx.Node]],
        start: int,
        end: int,
        structure: TreeSpec,
    ) -> None:
        """Build the segment; `structure` is the structure of the model's output."""
        super().__init__()
        self._structure = structure
        self._nodes = [node for piece in pieces[start:end] for node in piece]
        self._input_nodes = _live_nodes(pieces, start)
        self._output_nodes = _live_nodes(pieces, end) if end < len(pieces) else None
        self._inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._result_node = next(node for node in graph.graph.nodes if node.op == "output")
        self._modules_of = {
            node: graph.get_submodule(str(node.target)) for node in self._nodes if node.op == "call_module"
        }
        # Registered, so that the stage's parameters() includes theirs.
        self.held = nn.ModuleList(self._modules_of.values())

    def forward(self, received: StageInputs, inputs: Any) -> Any:
        values: dict[fx.Node, Any] = dict(zip(self._inputs, _flatten_inputs(inputs), strict=True))
        values.update(zip(self._input_nodes, received or (), strict=True))
        for node in self._nodes:
            args: Any = fx.map_arg(node.args, values.__getitem__)
            if node.op == "call_module":
                values[node] = self._modules_of[node](*args)
            else:
                values[node] = operator.getitem(*args)
        if self._output_nodes is not None:
            return tuple(values[node] for node in self._output_nodes)
        outputs: Any = fx.map_arg(self._result_node.args[0], values.__getitem__)
        return tree_unflatten(outputs if isinstance(outputs, tuple) else (outputs,), self._structure)


def _live_nodes(pieces: Sequence[Sequence[fx.Node]], cut: int) -> list[fx.Node]:
    """Return the nodes that are computed before a cut and used after it, in the graph's order."""
    before = [node for piece in pieces[:cut] for node in piece]
    before_set = set(before)
    return [node for node in before if any(user not in before_set for user in node.users)]


def _flatten_inputs(inputs: Any) -> list[torch.Tensor]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple | list) else [inputs]


def _input_sizes(inputs: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in _flatten_inputs(inputs)]


class _TracedStage(nn.Module):
    def __init__(self, evaluating: _GraphSegment, training: _GraphSegment, sizes: list[torch.Size]) -> None:
        """Build the stage; `sizes` are the sizes of the model's inputs, which are constants in the graphs."""
        super().__init__()
        self.evaluating = evaluating
        self.in_training = training
        self._sizes = sizes

    def forward(self, received: StageInputs, inputs: Any) -> Any:
        if _input_sizes(inputs) != self._sizes:
            raise other_sizes_error()
        return (self.in_training if self.training else self.evaluating)(received, inputs)


def other_sizes_error() -> ModelError:
    """Return the error for inputs whose sizes differ from those for which a stage was traced."""
    return ModelError(
        phrase("Samples have different sizes, but the model was cut by tracing, which requires fixed sizes."),
        path="strategy.use",
        advice=phrase("Pad all samples to the same length, or add a pipeline_units() method to the model."),
    )
