"""The devices of a rehearsal: numbers for where tensors live, and the one way across.

On a machine without GPUs every tensor is in host memory; which virtual device it belongs to is known from
the code that moves it (fan_out scatters, a cut between stages transfers). A crossing is a real copy, so
that both devices pay for their own bytes. The ledger, when it follows, learns of each crossing here;
without it a crossing costs one clone.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from rankdeck.memory.ledger import AnyLedger, Ledger, NullLedger


class VirtualDevices:
    """`num_devices` devices of one process. `source` None stands for the host, where batches come from."""

    def __init__(self, num_devices: int, ledger: AnyLedger | None = None) -> None:
        assert not isinstance(ledger, Ledger) or ledger.num_devices >= num_devices
        self.num_devices = num_devices
        self.ledger: AnyLedger = ledger or NullLedger()
        self.moved_bytes: dict[tuple[int, int], int] = {}
        """Bytes that crossed so far by (source, target), followed or not; not those from the host."""
        self._lock = threading.Lock()

    def count_transfer(self, source: int | None, target: int, num_bytes: int) -> None:
        """Count bytes that crossed. Nothing is counted within a device, or from the host."""
        if source is None or source == target:
            return
        with self._lock:
            pair = (source, target)
            self.moved_bytes[pair] = self.moved_bytes.get(pair, 0) + num_bytes
        self.ledger.record_transfer(source, target, num_bytes)

    def copy(self, tensor: Tensor, source: int | None, target: int, kind: str | None = None) -> Tensor:
        """A copy on `target`, or the tensor itself if it is there. Gradients do not cross here."""
        if source == target:
            return tensor
        self.count_transfer(source, target, tensor.numel() * tensor.element_size())
        with self.ledger.transfer_to(target, kind):
            return tensor.clone()

    def transfer(self, tensor: Tensor, source: int, target: int, kind: str | None = None) -> Tensor:
        """`tensor` on `target` as `kind` ("activations" by default); its gradient travels back."""
        if source == target:
            return tensor
        moved: Tensor = _Transfer.apply(tensor, self, source, target, kind)
        return moved


class _Transfer(torch.autograd.Function):
    """A copy forward, and a copy of the gradient backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, devices: VirtualDevices, source: int, target: int, kind: str | None
    ) -> Tensor:
        ctx.route = (devices, source, target)
        return devices.copy(tensor, source, target, kind)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        devices, source, target = ctx.route
        return devices.copy(grads[0], target, source), None, None, None, None
