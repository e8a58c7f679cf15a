"""Data of the ledger: one entry per live storage, and one account per device.

An account counts a device's live bytes by kind, and contains a snapshot of these counts at the device's peak.
A storage's kind may change later (a temporary of the backward pass turns out to be a gradient); the change is
also applied to the snapshot if the storage was live at the peak. Read ledger.py next.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.memory_kinds import MEMORY_KINDS

if TYPE_CHECKING:
    import torch

    StorageRef = weakref.ref[torch.UntypedStorage]
else:
    StorageRef = weakref.ref

KIND_INDEX: dict[str, int] = {kind: index for index, kind in enumerate(MEMORY_KINDS)}


def kind_index(kind: str) -> int:
    """Return the index of `kind` in MEMORY_KINDS.

    Raises:
        ValueError: the kind is not one of MEMORY_KINDS.
    """
    try:
        return KIND_INDEX[kind]
    except KeyError:
        choices = f"{', '.join(MEMORY_KINDS[:-1])} or {MEMORY_KINDS[-1]}"
        raise ValueError(f"{kind!r} is not a kind of memory. Use {choices}.") from None


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes of the live tensors on one device.

    `peak_by_kind` is a snapshot at the peak. Reserved bytes are None unless a GPU's allocator reports them.
    """

    device: int
    live_bytes: int
    peak_bytes: int
    live_by_kind: dict[str, int]
    peak_by_kind: dict[str, int]
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None


class StorageEntry(StorageRef):
    """Entry of a live storage: a weak reference to the storage, with its device, kind and size.

    `added_at` is the ledger's count of changes when the entry's bytes were added; the count tells whether a
    peak includes this entry.
    """

    __slots__ = ("added_at", "device", "key", "kind", "num_bytes")

    added_at: int
    device: int
    key: int
    kind: int
    num_bytes: int


class Account:
    """The bytes of one virtual device. Only the ledger accesses it, under its lock."""

    __slots__ = ("by_kind", "live_bytes", "peak_at", "peak_by_kind", "peak_bytes")

    def __init__(self) -> None:
        self.live_bytes = 0
        self.by_kind = [0] * len(MEMORY_KINDS)
        self.peak_bytes = 0
        self.peak_by_kind = list(self.by_kind)
        self.peak_at = 0

    def reset_peak(self, now: int) -> None:
        self.peak_bytes = self.live_bytes
        self.peak_by_kind = self.by_kind[:]
        self.peak_at = now

    def relabel(self, entry: StorageEntry, kind: int) -> None:
        """Change the entry's kind, also in the peak's snapshot if the snapshot includes the entry."""
        self.by_kind[entry.kind] -= entry.num_bytes
        self.by_kind[kind] += entry.num_bytes
        # Only a storage that was live at the peak is part of it.
        if entry.added_at <= self.peak_at:
            self.peak_by_kind[entry.kind] -= entry.num_bytes
            self.peak_by_kind[kind] += entry.num_bytes
        entry.kind = kind

    def read(self, device: int) -> DeviceBytes:
        return DeviceBytes(
            device=device,
            live_bytes=self.live_bytes,
            peak_bytes=self.peak_bytes,
            live_by_kind=dict(zip(MEMORY_KINDS, self.by_kind, strict=True)),
            peak_by_kind=dict(zip(MEMORY_KINDS, self.peak_by_kind, strict=True)),
        )
