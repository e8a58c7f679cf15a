"""Run a model once to learn about it, without changing weights, statistics or random state.

With fake tensors, such a run computes only shapes.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rankdeck.parallel.backward import iter_graph_nodes
from rankdeck.parallel.pytree import tensor_leaves
from rankdeck.parallel.state.slots import save_state
from rankdeck.torch_compat.dispatch import (
    DispatchMode,
    Kwargs,
    OpOverload,
    call_operation,
    storage_key,
    tree_leaves,
    tree_map,
)
from rankdeck.torch_compat.fake_tensors import FakeTensorMode
from rankdeck.torch_compat.modules import deep_copy

T = TypeVar("T")
_MAX_CHEAP_WORK = 100_000_000
"""Largest product of the number of weights and the number of input elements at which a forward pass is cheap,
that is, takes a few milliseconds on a CPU. Computing only shapes takes almost a second."""


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Enter a context that restores the weights, the model's state and the random state when it ends.

    The yielded function also restores the model's state, and moves all weights off their initial values, by
    the same amounts in every call, so that no weight stays at zero or at one.
    """
    put_state_back = save_state(model)
    tensors: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    initial_values = [tensor.detach().clone() for tensor in tensors]

    def put_back(*, moved: bool) -> None:
        put_state_back()
        generator = torch.Generator().manual_seed(0)
        for tensor, first in zip(tensors, initial_values, strict=True):
            value = first
            if moved and isinstance(tensor, nn.Parameter) and first.is_floating_point():
                noise = 0.1 * torch.rand(first.shape, generator=generator).to(first)
                # Zeros become noise; other weights keep their sign and scale.
                value = torch.where(first == 0, noise, first * (1 + noise))
            tensor.data.copy_(value)

    # fork_rng restores torch's generator, not Python's.
    python = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield functools.partial(put_back, moved=True)
    finally:
        put_back(moved=False)
        random.setstate(python)


class _RepeatableRandomMode(DispatchMode):
    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(0)  # torch.manual_seed takes milliseconds, for GPUs
        return call_operation(func, args, kwargs)


def repeatable_random() -> DispatchMode:
    """Return a mode in which every random operation draws the same numbers, whatever the order of calls."""
    return _RepeatableRandomMode()


@contextmanager
def grads_for_all(model: nn.Module) -> Iterator[None]:
    """Enter a context in which frozen weights require gradients too."""
    frozen = [
        weight for weight in model.parameters() if weight.is_floating_point() and not weight.requires_grad
    ]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


@contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Enter a context in eval mode (batch norms update no statistics, dropout draws nothing), and restore the
    model's state and the random state at the end.

    Buffers are restored too, because a traced stage has a train or eval mode of its own and may update them.
    """
    put_state_back = save_state(model)
    modes = {module: module.training for module in model.modules()}
    saved_buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        put_state_back()
        for buffer, value in saved_buffers:
            buffer.detach().copy_(value)


@contextmanager
def probe_model(model: nn.Module, inputs: Any, *, keep_frozen: bool = False) -> Iterator[None]:
    """Enter a context in which the model can run without side effects, as in `without_side_effects`.

    If the model runs on real values, its weights are restored too, because some models write them in their
    first forward pass in training. Frozen weights take part in autograd unless `keep_frozen` is true.
    """
    with contextlib.ExitStack() as stack:
        if is_cheap(model, inputs):
            stack.enter_context(preserve_model(model))
        stack.enter_context(without_side_effects(model))
        stack.enter_context(torch.enable_grad() if keep_frozen else grads_for_all(model))
        yield


def copy_sharing_weights(model: nn.Module) -> nn.Module:
    """Copy all modules of a model; the copy shares every parameter and buffer with the model."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in model.parameters()}
    shared.update((id(tensor), tensor) for tensor in model.buffers())
    return deep_copy(model, shared)


def have_same_history(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Check whether the autograd graphs of `some` and `others` lead through the same operations to the same
    weights."""
    node_numbers: dict[Any, int] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    histories = [
        [_history_number(tensor, node_numbers, numbers) for tensor in tensors] for tensors in (some, others)
    ]
    return histories[0] == histories[1]


def _history_number(
    tensor: torch.Tensor, node_numbers: dict[Any, int], numbers: dict[tuple[Any, ...], int]
) -> int:
    """Return a number that identifies a tensor's history; equal operations on equal inputs get the same
    number.

    Graphs can be deeper than Python's call stack, so a list of unvisited nodes replaces recursion.
    """
    root = tensor.grad_fn
    waiting = [root]
    while waiting:
        node = waiting[-1]
        givers = (
            [] if node is None else [(giver, output_index) for giver, output_index in node.next_functions]
        )
        missing = [giver for giver, _ in givers if giver not in node_numbers and giver is not None]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if node is not None and node not in node_numbers:
            weight = getattr(node, "variable", None)  # of a leaf
            history = (
                node.name(),
                id(weight),
                *((node_numbers.get(giver), output_index) for giver, output_index in givers),
            )
            node_numbers[node] = numbers.setdefault(history, len(numbers))
    return node_numbers.get(root, -1)


def graph_leaves(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of the leaves to which autograd would give gradients in a backward pass from these
    tensors."""
    leaf_ids = {id(tensor) for tensor in tensors if tensor.requires_grad and tensor.grad_fn is None}
    for node in iter_graph_nodes(tensor.grad_fn for tensor in tensors):
        if (weight := getattr(node, "variable", None)) is not None:
            leaf_ids.add(id(weight))
    return leaf_ids


def output_tensors(outputs: Any) -> list[torch.Tensor]:
    """Return every tensor of a model's output, including the fields of an object."""
    if isinstance(outputs, torch.Tensor | dict | tuple | list) or not hasattr(outputs, "__dict__"):
        return tensor_leaves(outputs)
    return tensor_leaves(vars(outputs))


def is_cheap(model: nn.Module, inputs: Any) -> bool:
    """Check whether a forward pass takes only a few milliseconds on a CPU, less than computing its shapes
    would."""
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return num_weights * sum(tensor.numel() for tensor in tensor_leaves(inputs)) <= _MAX_CHEAP_WORK


def run_on_fake_tensors(run: Callable[[Any], T], inputs: Any, model: nn.Module) -> T:
    """Call `run(inputs)`, which runs the model, with fake tensors as inputs, which have shapes but no values.

    Real tensors are used if the model reads values, or if computing with them is faster than torch's shape
    computation. The result of `run` must not contain tensors.
    """
    if is_cheap(model, inputs):
        return run(inputs)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            return run(tree_map(lambda leaf: _to_fake(leaf, fake), inputs))
    except Exception:  # a model's own code may raise anything where values are missing
        return run(inputs)


def _to_fake(leaf: Any, fake: FakeTensorMode) -> Any:
    return fake.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


# Tracks which marked tensors a result was computed from, through autograd or around it. A stage has
# placeholders for what it lacks: weights of other stages, and results of modules that ran before it. It must
# drop whatever it computes from a placeholder before it sends anything on. Values cannot show that: a
# placeholder may be multiplied by a gate that is zero today, and a plan's tensors have no values. So every
# operation passes the marks of its arguments on to its results.


class TaintMode(DispatchMode):
    """Mode in which operations pass the marks (names) of their arguments on to their results.

    Marked storages stay alive as long as this object.
    """

    def __init__(self) -> None:
        super().__init__()
        self._marks: dict[int, frozenset[str]] = {}
        self._tensors: list[Tensor] = []

    def mark(self, tensor: Tensor, names: Iterable[str]) -> None:
        key = _key(tensor)
        self._marks[key] = self._marks.get(key, frozenset()).union(names)
        # Kept alive, so that no later storage gets a marked one's address.
        self._tensors.append(tensor.detach())

    def taints_of(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """Return the marks of everything that these tensors were computed from."""
        marks = [self._marks[key] for key in map(_key, tensors) if key in self._marks]
        return frozenset[str]().union(*marks)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> Any:
        result = call_operation(func, args, kwargs)
        if self._marks and not _reads_shapes_only(func):
            names = self.taints_of(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            if names:
                for leaf in tree_leaves(result):
                    if isinstance(leaf, Tensor):
                        self.mark(leaf, names)
        return result


def _key(tensor: Tensor) -> int:
    try:
        return storage_key(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse, say
        return id(tensor)


def _reads_shapes_only(func: OpOverload) -> bool:
    """Check whether an operation ignores its arguments' values, as `zeros_like` and `new_empty` do."""
    name = func.__name__.partition(".")[0]
    return name.startswith("new_") or name.endswith("_like")
