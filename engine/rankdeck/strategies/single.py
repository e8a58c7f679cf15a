"""single: one device holds everything. The reference that every other strategy must equal.

Where: weights, gradients, optimizer state, activations, all on device 0. Sent: 0 bytes. Wins: whenever it
fits and is fast enough. Breaks: with the first byte that does not fit. Read data_parallel.py and ddp.py next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    Strategy,
    call,
    compiled,
    first_samples,
    place,
)


class Single(Strategy):
    name = "single"

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        self._module = place(model_fn(), self.setup, self.device)
        self._forward = compiled(self._module, self.setup)

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        with self.autocast():
            with self.spans.phase(0, "forward"):
                outputs = call(self._forward, inputs)
            with self.spans.phase(0, "loss"):
                total, count = self.loss.function(outputs, targets)
                del outputs
        with self.spans.phase(0, "backward"):
            (total * scale).backward()
        return LossSum(total.detach(), count)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        inputs, targets = self.to_device(first_samples(batch, num_valid))
        with self.evaluating():
            outputs: Any = call(self._forward, inputs)
            return self.heldout_sums(outputs, targets)
