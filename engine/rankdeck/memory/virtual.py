"""Virtual devices of a rehearsal: each tensor has a device number, and is copied when it is transferred.

On a machine without GPUs every tensor is in host memory. Its virtual device is set by the code that moves it
(fan_out scatters it, a pipeline or model split transfers it). A transfer makes a real copy, so that each
device has its own bytes, and is recorded in the ledger; if tracking is off, a transfer costs one clone.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from rankdeck.memory.ledger import AnyLedger, Ledger, NullLedger


class VirtualDevices:
    """`num_devices` virtual devices of one process. In the methods, a `source` of None is the host, from
    which batches come."""

    def __init__(self, num_devices: int, ledger: AnyLedger | None = None) -> None:
        assert not isinstance(ledger, Ledger) or ledger.num_devices >= num_devices
        self.num_devices = num_devices
        self.ledger: AnyLedger = ledger or NullLedger()
        self.moved_bytes: dict[tuple[int, int], int] = {}
        """Bytes transferred so far per (source, target), tracked or not, excluding transfers from the host.
        """
        self._lock = threading.Lock()

    def count_transfer(self, source: int | None, target: int, num_bytes: int) -> None:
        """Count transferred bytes. Transfers within a device or from the host are not counted."""
        if source is None or source == target:
            return
        with self._lock:
            pair = (source, target)
            self.moved_bytes[pair] = self.moved_bytes.get(pair, 0) + num_bytes
        self.ledger.record_transfer(source, target, num_bytes)

    def copy(self, tensor: Tensor, source: int | None, target: int, kind: str | None = None) -> Tensor:
        """Return a copy of `tensor` on `target`, or `tensor` itself if `source` is `target`. The copy is
        labelled `kind` (if None, by the rule in ledger.py), and its gradient is not transferred back."""
        if source == target:
            return tensor
        self.count_transfer(source, target, tensor.numel() * tensor.element_size())
        with self.ledger.transfer_to(target, kind):
            # A real copy, so that the ledger sees a new storage on the target.
            return tensor.clone()

    def transfer(self, tensor: Tensor, source: int, target: int, kind: str | None = None) -> Tensor:
        """Return a copy of `tensor` on `target`, or `tensor` itself if `source` is `target`. The copy is
        labelled `kind` (if None, by the rule in ledger.py), and its gradient is transferred back."""
        if source == target:
            return tensor
        moved: Tensor = _Transfer.apply(tensor, self, source, target, kind)
        return moved


class _Transfer(torch.autograd.Function):
    """Autograd function that copies a tensor to another virtual device, and its gradient back."""

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
