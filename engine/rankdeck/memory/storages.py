"""Table of live storages with their virtual devices and kinds, and each device's sums and peaks.

A storage is added explicitly; a weak reference removes it when it is freed. Its kind may be set later, which
also corrects a peak that includes the storage. Read entries.py first, ledger_mode.py next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from ..torch_compat.dispatch import storage_key, storage_tensors
from ..torch_compat.dtensors import local_part
from .entries import Account, DeviceBytes, StorageEntry, kind_index

if TYPE_CHECKING:
    from torch import Tensor


class Storages:
    """The storages of the live tensors on `num_devices` virtual devices, with their bytes; thread-safe.

    The size of each storage is rounded up to a multiple of `round_to_bytes`, as an allocator would do (512
    for CUDA's allocator); with 1, sizes are not rounded.
    """

    def __init__(self, num_devices: int, *, round_to_bytes: int = 1) -> None:
        assert num_devices >= 1 and round_to_bytes >= 1
        self.num_devices = num_devices
        self.live: dict[int, StorageEntry] = {}
        """Entries by storage key; LedgerMode reads them without the lock."""
        self._round_to_bytes = round_to_bytes
        self._accounts = [Account() for _ in range(num_devices)]
        self.live_bytes = 0
        """Live bytes of all virtual devices together."""
        self.peak_bytes = 0
        """Highest total of all virtual devices at any one time; each device may reach its own peak at another
        time."""
        self._num_changes = 0
        # Re-entrant: a storage may be freed, and removed by its callback, while another is being added.
        self._lock = threading.RLock()

    def device_of(self, tensor: Tensor) -> int | None:
        """Return the virtual device of a tensor; None if the tensor is not in the ledger."""
        tensor = local_part(tensor)
        for component in (tensor,) if tensor.layout is torch.strided else storage_tensors(tensor):
            entry = self.live.get(storage_key(component.untyped_storage()))
            if entry is not None:
                return entry.device
        return None

    def adopt(self, tensors: Iterable[Tensor], device: int, kind: str) -> None:
        """Add tensors on `device` with kind `kind`. Tensors that are already in the table keep their device,
        and their kind becomes `kind`."""
        index = kind_index(kind)
        for storage in _storages_of(tensors):
            if storage_key(storage) in self.live:
                self._relabel(storage, index)
            else:
                self.add(storage, device, index)

    def relabel(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Set the kind of the storages of `tensors`, and correct the peaks that include them. Skip storages
        that are not in the table."""
        index = kind_index(kind)
        for storage in _storages_of(tensors):
            self._relabel(storage, index)

    def add(self, storage: torch.UntypedStorage, device: int, kind: int) -> None:
        """Add a storage, unless it is already in the table."""
        key = storage_key(storage)
        with self._lock:
            if key in self.live:
                return
            entry = StorageEntry(storage, self._on_storage_freed)
            entry.key = key
            entry.device = device
            entry.kind = kind
            # _set_size below counts the difference, and with it the peak.
            entry.num_bytes = 0
            self.live[key] = entry
            self._set_size(entry, self._round_up(storage.nbytes()))

    def update_size(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a storage, if the storage is in the table."""
        with self._lock:
            entry = self.live.get(storage_key(storage))
            if entry is not None:
                num_bytes = self._round_up(storage.nbytes())
                if num_bytes != entry.num_bytes:
                    self._set_size(entry, num_bytes)

    def _set_size(self, entry: StorageEntry, num_bytes: int) -> None:
        delta = num_bytes - entry.num_bytes
        entry.num_bytes = num_bytes
        self._num_changes += 1
        entry.added_at = self._num_changes
        account = self._accounts[entry.device]
        account.by_kind[entry.kind] += delta
        account.live_bytes += delta
        if account.live_bytes > account.peak_bytes:
            account.reset_peak(self._num_changes)
        self.live_bytes += delta
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _on_storage_freed(self, ref: StorageEntry) -> None:
        with self._lock:
            # The address of a freed storage may already be the key of a new one.
            if self.live.get(ref.key) is not ref:
                return
            del self.live[ref.key]
            account = self._accounts[ref.device]
            account.by_kind[ref.kind] -= ref.num_bytes
            account.live_bytes -= ref.num_bytes
            self.live_bytes -= ref.num_bytes

    def _relabel(self, storage: torch.UntypedStorage, kind: int) -> None:
        with self._lock:
            entry = self.live.get(storage_key(storage))
            if entry is not None and entry.kind != kind:
                self._accounts[entry.device].relabel(entry, kind)

    def refresh_sizes(self) -> None:
        """Update all sizes: storages may have been resized while untracked (FSDP frees memory this way)."""
        # A copy, because a storage may be freed during the loop, which removes its entry.
        for entry in list(self.live.values()):
            storage = entry()
            if storage is not None:
                self.update_size(storage)

    def _round_up(self, num_bytes: int) -> int:
        step = self._round_to_bytes
        return num_bytes if step == 1 else (num_bytes + step - 1) // step * step

    def devices(self) -> list[DeviceBytes]:
        """Return one reading per virtual device, all from the same moment."""
        with self._lock:
            return [account.read(device) for device, account in enumerate(self._accounts)]

    def reset_peaks(self) -> None:
        """Reset the peaks to the bytes that are live now; called before each sampled step."""
        with self._lock:
            self.peak_bytes = self.live_bytes
            for account in self._accounts:
                account.reset_peak(self._num_changes)


def _storages_of(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        for component in storage_tensors(local_part(tensor)):
            yield component.untyped_storage()
