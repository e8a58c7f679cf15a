"""Ledger of a plan: like a rehearsal's, but for fake tensors, and with a log for the allocator model.

A thread that the ledger tracks also enters fake mode, so the replicas' threads create no real tensors. In
a plan for GPUs, storages are rounded as in CUDA's allocator, and optimizer state on the host (step counters,
unless the step is fused) is left out. Read fake_pass.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rankdeck.memory.entries import kind_index
from rankdeck.memory.ledger import Ledger
from rankdeck.memory.ledger_mode import ComputeFn, LedgerMode
from rankdeck.torch_compat.dispatch import Kwargs, storage_key
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.torch_compat.fake_tensors import DEVICE_OP, FakeTensor

if TYPE_CHECKING:
    from torch import Tensor

    from rankdeck.memory.entries import StorageEntry
    from rankdeck.torch_compat.fake_tensors import FakeTensorMode

CUDA_ROUNDING_BYTES = 512

StorageChange = tuple[int, int, bool]
"""(storage key, the storage's new size in bytes or 0 when freed, whether it is a communication buffer)."""


class _PlanLedgerMode(LedgerMode):
    """Ledger mode that itself answers the most frequent call, which asks for a fake tensor's device."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        # A fast path for the most frequent call: the answer needs neither fake mode nor the ledger.
        if func is DEVICE_OP and type(args[0]) is FakeTensor:
            return args[0].fake_device
        return super().__torch_dispatch__(func, types, args, kwargs)


class PlanLedger(Ledger):
    """Ledger of a plan. `logs[device]` lists the changes of a device's storages, in order."""

    def __init__(
        self, num_devices: int, fake: FakeTensorMode, compute: ComputeFn, *, like_cuda: bool
    ) -> None:
        super().__init__(num_devices, round_to_bytes=CUDA_ROUNDING_BYTES if like_cuda else 1)
        self.logs: list[list[StorageChange]] = [[] for _ in range(num_devices)]
        self.fake_mode = fake
        self._compute = compute
        self._like_cuda = like_cuda
        self._communication = kind_index("communication")
        self.counters_on_device = False
        """Whether the optimizer's kernels count steps themselves, so that the step counters are on the GPU.
        """
        self.on_transfer: Callable[[int, int, int], None] | None = None
        """Callback for each copy between two devices; its arguments are the source, the target and the number
        of bytes."""

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with self.fake_mode, _PlanLedgerMode(self, self._threads.state, self._compute):
            yield

    def record_transfer(self, source: int, target: int, num_bytes: int) -> None:
        if self.on_transfer is not None:
            self.on_transfer(source, target, num_bytes)

    def adopt(self, tensors: Iterable[Tensor], device: int, kind: str) -> None:
        # torch keeps step counters (0-dim) on the host, unless the step is fused or capturable.
        if self._like_cuda and kind == "optimizer" and not self.counters_on_device:
            tensors = list(tensors)
            for counter in (tensor for tensor in tensors if tensor.dim() == 0):
                self._exclude(counter)
            tensors = [tensor for tensor in tensors if tensor.dim()]
        super().adopt(tensors, device, kind)

    def on_model_built(self) -> None:
        """Restart the logs with the live storages only: tensors that existed temporarily while the model was
        built never reach a GPU."""
        if self._like_cuda:
            self.logs = [
                [
                    (entry.key, entry.num_bytes, False)
                    for entry in self.live.values()
                    if entry.device == device_index
                ]
                for device_index in range(self.num_devices)
            ]

    def _exclude(self, tensor: Tensor) -> None:
        entry = self.live.get(storage_key(local_part(tensor).untyped_storage()))
        if entry is not None and entry.num_bytes:
            self._set_size(entry, 0)

    def _set_size(self, entry: StorageEntry, num_bytes: int) -> None:
        if self._like_cuda and num_bytes != entry.num_bytes:
            log = self.logs[entry.device]
            is_communication = entry.kind == self._communication
            if entry.num_bytes:
                log.append((entry.key, 0, is_communication))
            if num_bytes:
                log.append((entry.key, num_bytes, is_communication))
        super()._set_size(entry, num_bytes)

    def _on_storage_freed(self, ref: StorageEntry) -> None:
        if self._like_cuda and ref.num_bytes and self.live.get(ref.key) is ref:
            self.logs[ref.device].append((ref.key, 0, ref.kind == self._communication))
        super()._on_storage_freed(ref)
