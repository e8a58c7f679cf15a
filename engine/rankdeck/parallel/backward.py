"""Going back from a loss, as all strategies do, gradients that a model or its loss takes by itself, and the
graph that both go back through.
"""

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
_FREED_STORAGE_TEXT = "out of bounds for storage of size 0"
_UNUSED_IN_GRAPH_TEXT = "appears to not have been used in the graph"


def backward(total: Tensor, scale: float | Tensor) -> None:
    """The backward of `total * scale`. With the scale as the total's gradient, torch would import sympy.

    Raises: ModelError where it needs weights that FSDP has let go of.
    """
    try:
        (total * (scale.to(total) if isinstance(scale, Tensor) else scale)).backward()
    except RuntimeError as error:
        if _FREED_STORAGE_TEXT not in str(error):
            raise
        raise ModelError(
            phrase(
                "The backward needs weights that FSDP has let go of: the model's forward or its loss calls "
                "autograd.grad with create_graph=True, as a gradient penalty does."
            ),
            path="strategy.use",
            advice=USE_DDP,
        ) from error


def iter_graph_nodes(starts: Iterable[Any], stops: Container[Any] = ()) -> Iterator[Any]:
    """Autograd's nodes that a backward from `starts` reaches, these included, the nearest first. It ends at
    `stops`; a start may be None, the node of a tensor without a history."""
    waiting = deque(node for node in starts if node is not None)
    known = set(waiting)
    while waiting:
        node = waiting.popleft()
        yield node
        if node in stops:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)


def is_unused_in_graph(error: BaseException) -> bool:
    """Whether autograd.grad was called for a tensor that the graph at hand does not begin with."""
    return isinstance(error, RuntimeError) and _UNUSED_IN_GRAPH_TEXT in str(error)


@contextlib.contextmanager
def detached_loss_errors(advice: Phrase = USE_DDP) -> Iterator[None]:
    """A loss of outputs whose graph does not reach back to the model's inputs.

    Raises: ModelError where it differentiates by them.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_unused_in_graph(error):
            raise
        raise ModelError(
            phrase(
                "The loss calls autograd.grad, as a gradient penalty does, for a tensor that another device "
                "or stage computed with."
            ),
            path="strategy.use",
            advice=advice,
        ) from error


def loss_of_valid(loss: Loss, outputs: Any, targets: Any, num_valid: int | None) -> tuple[Tensor, Any]:
    """The loss's sum and count over the first samples of a batch (None: all); where none counts, zeros that
    have a gradient."""
    with detached_loss_errors():
        if num_valid is None:
            return loss.function(outputs, targets)
        some = max(num_valid, 1)
        total, count = loss.function(first_samples(outputs, some), first_samples(targets, some))
    return (total, count) if num_valid else (total * 0, 0)
