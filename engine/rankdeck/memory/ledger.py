"""The storage ledger: every live storage of a rehearsal, with its virtual device and its kind.

A storage is added when an operation returns it (ledger_mode.py), on the device of that operation's inputs,
and removed when it is freed (storages.py). Transfers between devices happen inside `transfer_to`, and are
counted. The kind of a new storage is the thread's phase (scopes.py); without a phase it is "activations", or
"temporary" inside a backward pass (except for recomputed activations). Gradients and optimizer state are
labelled once they are recognized (watched_module.py), also in a peak that includes them.

Tracking can be limited to some of the steps (training/sampling_budget.py). Between these steps, freed
storages are still removed, and the next tracked step adds the storages that the watched modules have by then.
The ledger never searches for tensors: no search could reach DistributedDataParallel's buckets, but they are
in the ledger because construction and the first steps were tracked.
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
    """The storages of `num_devices` virtual devices.

    One ledger serves all threads of a process. A thread is tracked if it enters `tracking` itself, or if a
    tracked thread starts it or gives it work. If `patches` is False, nothing in torch or Python is patched
    during tracking, so other threads and resized storages are not tracked.
    """

    can_track: ClassVar[bool] = True
    """Whether steps can be tracked at all; False for a NullLedger."""

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
        """Whether the calling thread is tracked."""
        return self._threads.state.depth > 0

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Track the operations of the calling thread. Nested use is harmless.

        The first thread to enter adds the storages that the watched modules have at that time.
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
        """Return the dispatch modes to enter in the calling thread while it is tracked."""
        return LedgerMode(self, self._threads.state)

    def _worker_context(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Return a function that creates a context for a thread that works for the calling thread, on the
        same device; None if the calling thread is not tracked.

        A long-lived worker stays in the context, so tensors it creates between tracked steps are tracked too.
        """
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
            # Patches and optimizer hooks affect the whole process, so only the first thread applies them.
            first = self._num_tracking == 1
            if first:
                if self._patches is not None:
                    self._patches.apply()
                # Storages that FSDP resized while untracked still have their old size here.
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
        """Do not track what this thread allocates in this context, such as host memory or tensors used only
        for their shape."""
        state = self._threads.state
        state.paused += 1
        try:
            yield
        finally:
            state.paused -= 1

    def _copy_to_host(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copy a tensor to untracked host memory; return a function that copies it back to its device."""
        device = self.device_of(tensor)
        with self.paused():
            host_copy = tensor.detach().clone()

        def back() -> Tensor:
            with self.transfer_to(self._threads.state.device if device is None else device):
                return host_copy.clone()

        return back

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Add and label the parameters, gradients and buffers of a module, and its optimizer's state.

        Storages that have no device yet go to device 0. Gradients and optimizer state are added on the device
        of their parameter. Call this once the optimizer exists.
        """
        watched = WatchedModule(module, optimizer)
        with self._lock:
            self._watched.append(watched)
            if self._num_tracking:
                watched.start(self, self.phase)

    def phase(self, kind: str) -> Scope:
        """Return a context in which this thread's new storages are labelled `kind`; if `kind` is "auto", the
        rule in the module docstring applies."""
        return Scope(self._threads.state, None, kind, is_transfer=False)

    def end_phase(self, kind: str) -> None:
        """End this thread's phase early if its kind is `kind`. From then on, new storages are labelled by the
        rule in the module docstring."""
        state = self._threads.state
        if state.kind == kind_index(kind):
            state.kind = None

    def on_device(self, device: int) -> Scope:
        """Return a context in which tensors created without tensor inputs (zeros, rand) belong to
        `device`."""
        return Scope(self._threads.state, device, None, is_transfer=False)

    def record_transfer(self, source: int, target: int, num_bytes: int) -> None:
        """Record that bytes moved from one device to another; `transfer_to` sets their kind."""

    def transfer_to(self, target: int, kind: str | None = None) -> Scope:
        """Return a context in which operations may read from any device, and their results belong to
        `target`."""
        return Scope(self._threads.state, target, kind, is_transfer=True)


# nullcontext is stateless: one instance serves all calls.
_NO_SCOPE: AbstractContextManager[None] = nullcontext()


class NullLedger:
    """Ledger that does nothing, for when bytes are not tracked.

    It is used for GPUs, which have their own statistics, and for compiled graphs, which bypass a ledger.
    """

    can_track: ClassVar[bool] = False
    is_tracking: ClassVar[bool] = False

    def _no_scope(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return _NO_SCOPE

    tracking = paused = phase = on_device = transfer_to = _no_scope

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Record nothing."""

    watch = adopt = relabel = end_phase = reset_peaks = record_transfer = _ignore

    def device_of(self, _: Any) -> int | None:
        return None

    def devices(self) -> list[DeviceBytes]:
        return []


AnyLedger = Ledger | NullLedger
