"""The storage ledger: every live storage of a rehearsal, its virtual device and what it is for.

A storage is entered when an operation returns it (ledger_mode.py), on the device of that operation's inputs,
and leaves when it dies (storages.py). What crosses between devices does so inside `crossing`, and is counted.
The kind of a new storage is the thread's phase (scopes.py); without one it is "activations", or "temporary"
inside a backward (recomputed activations apart). Gradients and optimizer state are named once they are known
as such (watched_module.py), also in a peak that saw them.

The ledger may follow some steps only (samplers.py). In between, entries go on dying; a later sample adds
what the watched owners hold. It never scans for tensors: DistributedDataParallel's buckets live where no
scan finds them, and stay known because construction and the first steps were followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..torch_compat.ledger_hooks import LedgerPatches
from .entries import DeviceBytes, kind_index
from .ledger_mode import LedgerMode
from .scopes import Scope, ThreadLocalState
from .storages import Storages
from .watched_module import WatchedModule


class Ledger(Storages):
    """Follows the storages of `num_devices` virtual devices.

    One ledger serves all threads of a process. A thread enters `tracking` itself, or is started or given
    work by one that follows. Without `patches` nothing of torch and Python is wrapped meanwhile: other
    threads and resized storages are then not followed.
    """

    can_track: ClassVar[bool] = True
    """Whether steps can be followed at all: not with a NullLedger."""

    def __init__(self, num_devices: int, *, round_to_bytes: int = 1, patches: bool = True) -> None:
        super().__init__(num_devices, round_to_bytes=round_to_bytes)
        self._threads = ThreadLocalState()
        self._num_tracking = 0
        self._watched: list[WatchedModule] = []
        self._patches: LedgerPatches | None = None
        if patches:
            self._patches = LedgerPatches(
                self.update_size,
                self.paused,
                self.phase,
                to_host=self._copy_to_host,
                worker_context=self._worker_context,
            )

    @property
    def is_tracking(self) -> bool:
        """Whether the calling thread follows."""
        return self._threads.state.depth > 0

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Follow the operations of the calling thread. Entering twice is harmless.

        The first thread to enter adds what the watched owners hold by now.
        """
        state = self._threads.state
        state.depth += 1
        try:
            if state.depth > 1:
                yield
                return
            with self._modes(), self._track_owners():
                yield
        finally:
            state.depth -= 1

    def _modes(self) -> AbstractContextManager[object]:
        """What the calling thread is in while it follows."""
        return LedgerMode(self, self._threads.state)

    def _worker_context(self) -> Callable[[], AbstractContextManager[None]] | None:
        """A context for a thread that works for the calling one, on its device; None where that does not
        follow. A thread that lives on goes on with it: what it makes between samples stays known."""
        state = self._threads.state
        return (
            None if state.paused or not state.depth else functools.partial(self._track_worker, state.device)
        )

    @contextmanager
    def _track_worker(self, device: int) -> Iterator[None]:
        state = self._threads.state
        state.depth += 1
        try:
            with self.on_device(device), self._modes() if state.depth == 1 else nullcontext():
                yield
        finally:
            state.depth -= 1

    @contextmanager
    def _track_owners(self) -> Iterator[None]:
        with self._lock:
            self._num_tracking += 1
            first = self._num_tracking == 1
            if first:
                if self._patches is not None:
                    self._patches.apply()
                self.refresh_sizes()
                for watched in self._watched:
                    watched.start(self, self.phase)
        try:
            yield
        finally:
            with self._lock:
                self._num_tracking -= 1
                if self._num_tracking == 0:
                    if self._patches is not None:
                        self._patches.restore()
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

    def _copy_to_host(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copy a tensor to the host, which is not counted; what is returned copies it back to its device."""
        device = self.device_of(tensor)
        with self.paused():
            kept = tensor.detach().clone()

        def back() -> Tensor:
            with self.transfer_to(self._threads.state.device if device is None else device):
                return kept.clone()

        return back

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Know these owners: their parameters, gradients, buffers and optimizer state are added and named
        as such; what no operation has placed yet belongs to device 0.

        Gradients and an optimizer's state are entered on the device of their parameter. Call it once the
        optimizer exists.
        """
        watched = WatchedModule(module, optimizer)
        with self._lock:
            self._watched.append(watched)
            if self._num_tracking:
                watched.start(self, self.phase)

    def phase(self, kind: str) -> Scope:
        """A context in which this thread's new storages are `kind`; "auto" follows the rule above."""
        return Scope(self._threads.state, None, kind, is_transfer=False)

    def end_phase(self, kind: str) -> None:
        """End this thread's phase early if it is `kind`: the rest of it follows the rule above."""
        state = self._threads.state
        if state.kind == kind_index(kind):
            state.kind = None

    def on_device(self, device: int) -> Scope:
        """A context in which tensors made from nothing (zeros, rand) belong to `device`."""
        return Scope(self._threads.state, device, None, is_transfer=False)

    def record_transfer(self, source: int, target: int, num_bytes: int) -> None:
        """Bytes went from one device to another; what they are is said by `transfer_to`."""

    def transfer_to(self, target: int, kind: str | None = None) -> Scope:
        """A context in which operations may read any device, and what they return belongs to `target`."""
        return Scope(self._threads.state, target, kind, is_transfer=True)


_NO_SCOPE: AbstractContextManager[None] = nullcontext()


class NullLedger:
    """Answers the calls of a Ledger and keeps nothing, for devices whose bytes are not followed: GPUs, which
    count for themselves, and compiled graphs, which run past a ledger."""

    can_track: ClassVar[bool] = False
    is_tracking: ClassVar[bool] = False

    def _no_scope(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return _NO_SCOPE

    tracking = paused = phase = on_device = transfer_to = _no_scope

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Nothing is kept."""

    watch = adopt = relabel = end_phase = reset_peaks = record_transfer = _ignore

    def device_of(self, _: Any) -> int | None:
        return None

    def devices(self) -> list[DeviceBytes]:
        return []


AnyLedger = Ledger | NullLedger
