"""Run the backward pass of all strategies, iterate over the autograd graph, and explain the errors of losses
that call autograd.grad."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import Any

from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.models.losses import Loss
from rankdeck.parallel.pytree import first_samples

USE_DDP = phrase('Use strategy.use = "ddp".')
# torch has no exception classes for these two cases, only their messages.
_FREED_STORAGE_TEXT = "out of bounds for storage of size 0"
_UNUSED_IN_GRAPH_TEXT = "appears to not have been used in the graph"


def backward(total: Tensor, scale: float | Tensor) -> None:
    """Run the backward pass of `total * scale`.

    The total is multiplied by the scale because torch would import sympy if the scale were passed as the
    total's gradient.

    Raises: ModelError if the backward pass needs weights that FSDP has freed.
    """
    try:
        (total * (scale.to(total) if isinstance(scale, Tensor) else scale)).backward()
    except RuntimeError as error:
        if _FREED_STORAGE_TEXT not in str(error):
            raise
        raise ModelError(
            phrase(
                "The backward pass needs weights that FSDP has freed: the model's forward method or its "
                "loss calls autograd.grad with create_graph=True, as a gradient penalty does."
            ),
            path="strategy.use",
            advice=USE_DDP,
        ) from error


def iter_graph_nodes(starts: Iterable[Any], stops: Container[Any] = ()) -> Iterator[Any]:
    """Yield the autograd nodes that a backward pass from `starts` reaches, nearest first, including `starts`.

    The walk does not go past nodes in `stops`. A start may be None, which stands for the node of a tensor
    without a history.
    """
    waiting = deque(node for node in starts if node is not None)
    visited = set(waiting)
    while waiting:
        node = waiting.popleft()
        yield node
        if node in stops:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                waiting.append(following)


def is_unused_in_graph(error: BaseException) -> bool:
    """Check whether autograd.grad failed because a requested tensor is not part of the graph."""
    return isinstance(error, RuntimeError) and _UNUSED_IN_GRAPH_TEXT in str(error)


@contextlib.contextmanager
def detached_loss_errors(advice: Phrase = USE_DDP) -> Iterator[None]:
    """Explain the error of a loss that differentiates with respect to tensors on another device or stage.

    The graph of the loss does not reach back to such tensors, for example the model's inputs.

    Raises: ModelError if the loss calls autograd.grad for such a tensor.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_unused_in_graph(error):
            raise
        raise ModelError(
            phrase(
                "The loss calls autograd.grad, as a gradient penalty does, for a tensor that "
                "was used on another device or stage."
            ),
            path="strategy.use",
            advice=advice,
        ) from error


def loss_of_valid(loss: Loss, outputs: Any, targets: Any, num_valid: int | None) -> tuple[Tensor, Any]:
    """Return the loss's sum and count over the first `num_valid` samples of a batch (None: all).

    If `num_valid` is 0, both are zero, but a backward pass can still start from the sum.
    """
    with detached_loss_errors():
        if num_valid is None:
            return loss.function(outputs, targets)
        # With no valid sample, one sample's loss times zero keeps a graph, so that backward still works.
        some = max(num_valid, 1)
        total, count = loss.function(first_samples(outputs, some), first_samples(targets, some))
    return (total, count) if num_valid else (total * 0, 0)
