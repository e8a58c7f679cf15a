"""Per-thread state for new storages: their device, their kind, and whether a transfer creates them.

Each thread has its own state; a `Scope` changes it temporarily. Read storages.py next.
"""

from __future__ import annotations

import threading

from .entries import kind_index


class ThreadState:
    """State of one thread. If `kind` is None, new storages get their kind by the rule in ledger.py."""

    __slots__ = ("depth", "device", "is_transfer", "kind", "paused")

    def __init__(self) -> None:
        self.device = 0
        self.kind: int | None = None
        self.is_transfer = False
        self.paused = 0
        self.depth = 0


class ThreadLocalState(threading.local):
    """Thread-local storage for each thread's `ThreadState`."""

    def __init__(self) -> None:
        self.state = ThreadState()


class Scope:
    """Context manager that sets some fields of this thread's state and restores them on exit."""

    __slots__ = ("_device", "_is_transfer", "_kind", "_saved", "_sets_kind", "_state")

    def __init__(
        self, state: ThreadState, device: int | None, kind: str | None, *, is_transfer: bool
    ) -> None:
        self._state = state
        self._device = device
        self._kind = None if kind is None or kind == "auto" else kind_index(kind)
        self._sets_kind = kind is not None
        self._is_transfer = is_transfer
        self._saved: tuple[int, int | None, bool] = (0, None, False)

    def __enter__(self) -> None:
        state = self._state
        self._saved = (state.device, state.kind, state.is_transfer)
        if self._device is not None:
            state.device = self._device
        if self._sets_kind:
            state.kind = self._kind
        state.is_transfer = state.is_transfer or self._is_transfer

    def __exit__(self, *_: object) -> None:
        self._state.device, self._state.kind, self._state.is_transfer = self._saved
