"""The storage ledger: every live storage of a rehearsal, its virtual device and what it is for.

A storage enters the book when an operation returns it (follower.py), on the device of that operation's
inputs, and leaves it when it dies (a weak reference). What crosses between devices does so inside
`crossing`, and is counted. The kind of a new storage is the thread's phase; without one it is
"activations", or "temporary" inside a backward (recomputed activations apart). Gradients and optimizer
state are named once they are known as such (watching.py), also in a peak that saw them.

The ledger may follow some steps only (sampling.py). In between, entries go on dying; a later sample adds
what the watched owners hold. It never scans for tensors: DistributedDataParallel's buckets live where no
scan finds them, and stay known because construction and the first steps were followed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import torch

from rankdeck.memory import torch_hooks
from rankdeck.memory.entries import Account, DeviceBytes, Entry, kind_index
from rankdeck.memory.follower import Follower, ThreadState
from rankdeck.memory.watching import Watched

if TYPE_CHECKING:
    from torch import Tensor


class _Threads(threading.local):
    """Where each thread is: its device, its phase, whether it follows."""

    def __init__(self) -> None:
        self.state = ThreadState()


class Scope:
    """Sets some of this thread's state, and puts back on leaving what was there."""

    __slots__ = ("_crossing", "_device", "_kind", "_names_kind", "_saved", "_state")

    def __init__(self, state: ThreadState, device: int | None, kind: str | None, *, crossing: bool) -> None:
        self._state = state
        self._device = device
        self._kind = None if kind is None or kind == "auto" else kind_index(kind)
        self._names_kind = kind is not None
        self._crossing = crossing
        self._saved: tuple[int, int | None, bool] = (0, None, False)

    def __enter__(self) -> None:
        state = self._state
        self._saved = (state.device, state.kind, state.crossing)
        if self._device is not None:
            state.device = self._device
        if self._names_kind:
            state.kind = self._kind
        state.crossing = state.crossing or self._crossing

    def __exit__(self, *_: object) -> None:
        self._state.device, self._state.kind, self._state.crossing = self._saved


class Ledger:
    """The bytes of live tensors on `num_devices` virtual devices.

    One ledger serves all threads of a process; each thread that runs tensor operations enters `following`
    itself. `round_to_bytes` rounds each storage up, as an allocator would (512 for CUDA's); 1 counts what
    was asked for.
    """

    can_follow: ClassVar[bool] = True
    """Whether steps can be followed at all: not with a NullLedger."""

    def __init__(self, num_devices: int, *, round_to_bytes: int = 1) -> None:
        assert num_devices >= 1 and round_to_bytes >= 1
        self.num_devices = num_devices
        self.moved_bytes: dict[tuple[int, int], int] = {}
        """Bytes that crossed while following, by (source, target)."""
        self.live: dict[int, Entry] = {}
        """Entries by the address of their storage; for the follower, which reads it without the lock."""
        self._round_to_bytes = round_to_bytes
        self._accounts = [Account() for _ in range(num_devices)]
        self._live_bytes = 0
        self._peak_bytes = 0
        self._changes = 0
        self._lock = (
            threading.RLock()
        )  # re-entrant: a storage may die, and be booked out, while one is booked in
        self._threads = _Threads()
        self._num_following = 0
        self._watched: list[Watched] = []
        self._patches = torch_hooks.Patches(self.resized, self.paused, self.phase)

    @property
    def is_following(self) -> bool:
        """Whether the calling thread follows."""
        return self._threads.state.depth > 0

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the operations of the calling thread. Entering twice is harmless.

        The first thread to enter adds what the watched owners hold by now.
        """
        state = self._threads.state
        state.depth += 1
        try:
            if state.depth > 1:
                yield
                return
            with Follower(self, state), self._watch():
                yield
        finally:
            state.depth -= 1

    @contextmanager
    def _watch(self) -> Iterator[None]:
        with self._lock:
            self._num_following += 1
            first = self._num_following == 1
            if first:
                self._patches.put_on()
                self._refresh_sizes()
                for watched in self._watched:
                    watched.start(self)
        try:
            yield
        finally:
            with self._lock:
                self._num_following -= 1
                if self._num_following == 0:
                    self._patches.take_off()
                    for watched in self._watched:
                        watched.stop(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what this thread makes here: host memory, or tensors that only carry a shape."""
        state = self._threads.state
        state.paused += 1
        try:
            yield
        finally:
            state.paused -= 1

    def watch(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, device: int = 0
    ) -> None:
        """Know these owners: their parameters, gradients, buffers and optimizer state are added and named
        as such.

        An optimizer's state is booked on the device of its parameter. Call it once per module that lives on
        a device of its own, and once the optimizer exists.
        """
        watched = Watched(module, optimizer, device)
        with self._lock:
            self._watched.append(watched)
            if self._num_following:
                watched.start(self)

    def unwatch(self) -> None:
        """Forget all owners, so that they can die. What is in the book stays there until it dies."""
        with self._lock:
            for watched in self._watched:
                watched.stop(self)
            self._watched.clear()

    def phase(self, kind: str) -> Scope:
        """A context in which this thread's new storages are `kind`; "auto" follows the rule above."""
        return Scope(self._threads.state, None, kind, crossing=False)

    def end_phase(self, kind: str) -> None:
        """End this thread's phase early if it is `kind`: the rest of it follows the rule above."""
        state = self._threads.state
        if state.kind == kind_index(kind):
            state.kind = None

    def on(self, device: int) -> Scope:
        """A context in which tensors made from nothing (zeros, rand) belong to `device`."""
        return Scope(self._threads.state, device, None, crossing=False)

    def crossing(self, target: int, kind: str | None = None) -> Scope:
        """A context in which operations may read any device, and what they return belongs to `target`."""
        return Scope(self._threads.state, target, kind, crossing=True)

    def count_moved(self, source: int, target: int, num_bytes: int) -> None:
        """Book `num_bytes` that crossed from `source` to `target`."""
        with self._lock:
            pair = (source, target)
            self.moved_bytes[pair] = self.moved_bytes.get(pair, 0) + num_bytes

    def device_of(self, tensor: Tensor) -> int | None:
        """The virtual device of a tensor, None when the ledger does not know it."""
        entry = self.live.get(local_part(tensor).untyped_storage()._cdata)
        return None if entry is None else entry.device

    def kind_of(self, tensor: Tensor) -> int | None:
        """The index in MEMORY_KINDS of what a tensor is for, None when the ledger does not know it."""
        entry = self.live.get(local_part(tensor).untyped_storage()._cdata)
        return None if entry is None else entry.kind

    def adopt(self, tensors: Iterable[Tensor], device: int, kind: str) -> None:
        """Book tensors on `device` as `kind`. Those already booked keep their device and become `kind`."""
        index = kind_index(kind)
        for tensor in tensors:
            tensor = local_part(tensor)
            if tensor.layout is not torch.strided or tensor.is_meta:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self.live:
                self._rename(storage, index)
            else:
                self.add(storage, device, index)

    def relabel(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Name the storages of `tensors` as `kind`, also in a peak that saw them. Skips unknown ones."""
        index = kind_index(kind)
        for tensor in tensors:
            tensor = local_part(tensor)
            if tensor.layout is torch.strided:
                self._rename(tensor.untyped_storage(), index)

    def add(self, storage: torch.UntypedStorage, device: int, kind: int) -> None:
        """Book a storage in, unless it is in the book."""
        key = storage._cdata
        with self._lock:
            if key in self.live:
                return
            entry = Entry(storage, self._gone)
            entry.key = key
            entry.device = device
            entry.kind = kind
            entry.num_bytes = 0
            self.live[key] = entry
            self._change(entry, self._rounded(storage.nbytes()))

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Book the bytes that a known storage has now."""
        with self._lock:
            entry = self.live.get(storage._cdata)
            if entry is not None:
                num_bytes = self._rounded(storage.nbytes())
                if num_bytes != entry.num_bytes:
                    self._change(entry, num_bytes)

    def _change(self, entry: Entry, num_bytes: int) -> None:
        delta = num_bytes - entry.num_bytes
        entry.num_bytes = num_bytes
        self._changes += 1
        entry.born = self._changes
        account = self._accounts[entry.device]
        account.by_kind[entry.kind] += delta
        account.live_bytes += delta
        if account.live_bytes > account.peak_bytes:
            account.reset_peak(self._changes)
        self._live_bytes += delta
        if self._live_bytes > self._peak_bytes:
            self._peak_bytes = self._live_bytes

    def _gone(self, ref: Entry) -> None:
        with self._lock:
            if self.live.get(ref.key) is not ref:
                return
            del self.live[ref.key]
            account = self._accounts[ref.device]
            account.by_kind[ref.kind] -= ref.num_bytes
            account.live_bytes -= ref.num_bytes
            self._live_bytes -= ref.num_bytes

    def _rename(self, storage: torch.UntypedStorage, kind: int) -> None:
        with self._lock:
            entry = self.live.get(storage._cdata)
            if entry is not None and entry.kind != kind:
                self._accounts[entry.device].rename(entry, kind)

    def _refresh_sizes(self) -> None:
        """Storages may have been resized while nobody followed (FSDP frees in this way)."""
        for entry in list(self.live.values()):
            storage = entry()
            if storage is not None:
                self.resized(storage)

    def _rounded(self, num_bytes: int) -> int:
        step = self._round_to_bytes
        return num_bytes if step == 1 else (num_bytes + step - 1) // step * step

    def devices(self) -> list[DeviceBytes]:
        """One reading per virtual device, all of one moment."""
        with self._lock:
            return [account.reading(device) for device, account in enumerate(self._accounts)]

    @property
    def live_bytes(self) -> int:
        """Bytes that live now on all virtual devices together."""
        return self._live_bytes

    @property
    def peak_bytes(self) -> int:
        """The highest sum over all virtual devices; their own peaks come at different moments."""
        return self._peak_bytes

    def reset_peaks(self) -> None:
        """Start new peaks from what lives now, as before each sampled step."""
        with self._lock:
            self._peak_bytes = self._live_bytes
            for account in self._accounts:
                account.reset_peak(self._changes)


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that this rank holds of a DTensor; any other tensor itself."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
