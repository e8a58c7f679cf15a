"""ddp: one process per device, each with a full replica; gradients meet in buckets while backward still runs.

Where: weights, gradients, optimizer state in full on every device, plus buckets of the gradients' size. Sent
per rank and step: 2(n-1)/n x G bytes, for G bytes of gradients (ring all-reduce). Wins: whenever the model
fits one device. Breaks: a model that does not; slow links with small batches. Source: Li et al., PyTorch
Distributed, VLDB 2020. Read single.py before, fsdp after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Strategy, call, first_samples, place


class Ddp(Strategy):
    name = "ddp"

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Every rank builds; the wrapper then sends rank 0's weights and buffers to all."""
        module = place(model_fn(), self.setup, self.device)
        options = self.setup.options
        self._module = module
        with self._making_buckets():
            self._ddp = DistributedDataParallel(
                module,
                device_ids=None if self.setup.is_rehearsal else [self.device],
                bucket_cap_mb=options.get("bucket_mb", 25.0),
                gradient_as_bucket_view=options.get("gradient_as_bucket_view", False),
            )
        if self.setup.ledger is not None:
            ledger = self.setup.ledger
            module.register_forward_pre_hook(lambda *_: ledger.end_phase("communication"))

    def _making_buckets(self) -> contextlib.AbstractContextManager[None]:
        """Buckets are made by the constructor, and once more by the wrapper just before the second forward."""
        ledger = self.setup.ledger
        return contextlib.nullcontext() if ledger is None else ledger.phase("communication")

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        # Only the last part's backward sends: before it, gradients just add up on each rank.
        waiting = contextlib.nullcontext() if last else self._ddp.no_sync()
        with waiting:
            with self.autocast():
                total, count = self.loss.function(self._forward(inputs), targets)
            # The wrapper divides by the number of ranks; a sum must not be divided.
            (total * (scale * self.setup.world_size)).backward()
        return LossSum(total.detach(), count)

    def _forward(self, inputs: Any) -> Any:
        with self._making_buckets():
            return call(self._ddp, inputs)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """No collective: each rank runs the plain module on its own samples."""
        if num_valid == 0:
            return HeldoutSums(0.0, 0.0, None if self.loss.correct is None else 0.0)
        inputs, targets = self.to_device(first_samples(batch, num_valid))
        with self.evaluating():
            return self.heldout_sums(call(self._module, inputs), targets)

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        num_ranks = self.setup.world_size
        gradients = sum(p.numel() * p.element_size() for p in self._module.parameters() if p.requires_grad)
        backend = dist.get_backend()
        return f"native ({backend})", round(2 * (num_ranks - 1) / num_ranks * gradients), False
