"""single: one device holds everything. It is the reference that every other strategy must equal.

Where: weights, gradients, optimizer state, activations, all on device 0. Sent: 0 bytes. Wins: whenever the
model fits and is fast enough. Breaks: when the model no longer fits on the device. `Strategy.compute` in
base.py runs the forward and backward passes, as for ddp, fsdp, tensor and hybrid. Read data_parallel.py and
ddp.py next.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Strategy, compile_forward, place_model


class Single(Strategy):
    name = "single"

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        self.module = place_model(model_fn(), self.setup, self.device)
        self._forward = compile_forward(self.module, self.setup)

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        return self.compute(self._forward, batch, scale)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        return self.compute_heldout(self._forward, batch, num_valid)
