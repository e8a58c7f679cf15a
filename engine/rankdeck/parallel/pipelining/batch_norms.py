"""Batch norms of a stage keep the running statistics of whole batches, as on one device, although they see a
microbatch at a time.

    each microbatch     mean and squared deviations per channel, put together with those before it
    after the last one  one update of running_mean, running_var and num_batches_tracked

So they are those of one device that takes the part of the batch at once. What a norm divides by is its
microbatch's: weights are those of one device that takes the microbatches one after another (accumulate).
Read ../collectives/sync_batch_norm.py before: there statistics come from ranks instead; and
../state/forward.py for all other state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.unflatten import InterpreterModule

from rankdeck.parallel.collectives.sync_batch_norm import update_running
from rankdeck.torch_compat.modules import BatchNorm, own_buffers


@dataclass
class _Statistics:
    """Of all microbatches until now: means and squared deviations (C,), and the count behind them."""

    mean: Tensor
    squares: Tensor
    count: int

    def add(self, mean: Tensor, squares: Tensor, count: int) -> None:
        """Source: Chan, Golub and LeVeque (1979), as in sync_batch_norm.py."""
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.squares = self.squares + squares + delta.square() * (self.count * count / total)
        self.count = total


class WholeBatchStatistics:
    """Of the batch norms in a stage: they leave their running statistics alone until `update`."""

    def __init__(self, stage: nn.Module) -> None:
        self.microbatch = 0
        """That runs now, forward or backward."""
        self._found: dict[tuple[Any, int], _Statistics] = {}
        self._num_calls: Counter[tuple[nn.Module, int]] = Counter()
        """In each microbatch: a norm that is used twice counts its batch twice, as on one device."""
        self._own: tuple[Tensor | None, ...] = ()
        self._share = 1.0
        """Of a microbatch in what a norm writes."""
        self.norms = [module for module in stage.modules() if _is_norm(module)]
        for module in self.norms:
            module.register_forward_pre_hook(self._lend)
            module.register_forward_hook(self._take, with_kwargs=True)

    def _lend(self, norm: Any, _: Any) -> None:
        """Give the norm others to write into, with a momentum of 1 where it may be chosen: then they are its
        microbatch's own.

        Recomputed activations have been counted: there checkpointing takes num_batches_tracked away.
        """
        self._own = ()
        if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
            self._own = norm.running_mean, norm.running_var, norm.num_batches_tracked
            is_traced, own_momentum = isinstance(norm, InterpreterModule), norm.momentum
            self._share = own_momentum if is_traced else 1.0
            self._momentum, norm.momentum = own_momentum, 1.0
            norm.running_mean = torch.zeros_like(norm.running_mean)
            norm.running_var = torch.zeros_like(norm.running_var)
            norm.num_batches_tracked = torch.zeros_like(norm.num_batches_tracked)

    def _take(self, norm: Any, args: Any, kwargs: Any, _: Any) -> None:
        if not self._own:
            return
        mean, variance = norm.running_mean / self._share, norm.running_var / self._share
        norm.running_mean, norm.running_var, norm.num_batches_tracked = self._own
        norm.momentum, self._own = self._momentum, ()
        inputs = args[0] if args else kwargs["input"]
        count = inputs.numel() // inputs.shape[1]
        squares = variance * (count - 1)
        call = norm, self.microbatch
        known = self._found.get(key := (norm, self._num_calls[call]))
        self._num_calls[call] += 1
        if known is None:
            self._found[key] = _Statistics(mean, squares, count)
        else:
            known.add(mean, squares, count)

    def update(self) -> None:
        """After the last microbatch of a batch."""
        for (norm, _), found in self._found.items():
            count = found.mean.new_full((), found.count)
            update_running(norm, found.mean, found.squares / count, count)
        self._found.clear()
        self._num_calls.clear()


def _is_norm(module: Any) -> bool:
    """A batch norm of this stage, or what tracing made of one: a graph over its buffers, which gets its
    momentum back. Norms of other stages have no buffers here."""
    if own_buffers(module).get("running_mean") is None:
        return False
    if not isinstance(module, InterpreterModule):
        return isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.batch_norm.default and str(node.args[3]) == "running_mean":
            is_training, momentum = node.args[5:7]
            module.track_running_stats, module.momentum = is_training, momentum
            return bool(is_training and momentum)
    return False
