"""Implements activation checkpointing: a block drops its inner activations after its forward pass and
recomputes them in the backward pass.

A wrapped block keeps its position and its weights' names; only its class changes, to a subclass that runs
forward() through torch.utils.checkpoint. (An instance attribute `forward` would work on one device, but a
DataParallel replica copies instance attributes and would then run with the original module's weights.) Read
base.py first. Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.models.base import repeated_blocks
from rankdeck.torch_compat.modules import NormBase


def checkpoint_blocks(model: nn.Module) -> int:
    """Wrap the model's repeated blocks in place and return their number.

    The blocks are those that the model itself defines or, if it defines none, the children of its ModuleList
    or Sequential with the most weights.

    Raises:
        ModelError: the model has neither blocks nor a ModuleList or Sequential with children.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise ModelError(
            phrase(
                "train.activation_checkpointing: {model} has no list of blocks to wrap.",
                model=type(model).__name__,
            ),
            path="train.activation_checkpointing",
            advice=phrase(
                "Put the repeated layers into an nn.ModuleList or nn.Sequential, or add a "
                "repeated_blocks() method to the model."
            ),
        )
    for block in blocks:
        if not isinstance(block, _CheckpointedBlock):
            block.__class__ = _checkpointed_class(type(block))  # type: ignore[arg-type]  # classes hash
    return len(blocks)


def undo_checkpointing(model: nn.Module) -> None:
    """Undo `checkpoint_blocks` in place."""
    for block in model.modules():
        if isinstance(block, _CheckpointedBlock):
            # The bases are (_CheckpointedBlock, the block's own class).
            block.__class__ = type(block).__bases__[1]


class _CheckpointedBlock(nn.Module):
    """Mixin that precedes the block's class in the MRO, so that super().forward is the block's own
    forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        contexts = functools.partial(_contexts, self)
        return checkpoint(super().forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


# One subclass per block class, so that blocks of one class stay of one class.
@functools.cache
def _checkpointed_class(block_class: type[nn.Module]) -> type[nn.Module]:
    return type(block_class.__name__, (_CheckpointedBlock, block_class), {})


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return two contexts: one for the forward pass, one for the recomputation in the backward pass."""
    return contextlib.nullcontext(), _FrozenRunningStatistics(block)


# A class, because a generator-based context manager works only once and zero-bubble schedules enter it twice.
class _FrozenRunningStatistics:
    """Context that freezes batch norms' running statistics during recomputation, because the forward pass has
    already updated them for this batch.

    It may be entered twice per backward pass: a zero-bubble schedule recomputes a block's activations once
    for the inputs' gradients and once for the weights' gradients.
    """

    def __init__(self, block: nn.Module) -> None:
        self._norms = [
            module
            for module in block.modules()
            if isinstance(module, NormBase) and module.track_running_stats
        ]
        self._saved: list[tuple[float | None, torch.Tensor | None]] = []

    def __enter__(self) -> None:
        self._saved = [(norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        for norm in self._norms:
            # The forward still uses the batch's statistics; with momentum 0 the running ones do not move.
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *_: object) -> None:
        for norm, (momentum, num_batches) in zip(self._norms, self._saved, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches
