"""Loads rankdeck's memory ledger into a user's process without importing rankdeck, and without side effects.

The ledger's files need only the standard library and torch, and import each other relatively, so they can be
loaded under a hand-made package. A failure of the ledger never changes the result or error of the script's
operations: the ledger turns itself off at its first failure. Read full_observation.py first.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEDGER_PACKAGE = "_rankdeck_ledger"
_NOTHING = object()


def load_ledger(failed: Callable[[Exception], None]) -> Any:
    """Return a new ledger for one device. If the ledger fails, it calls `failed` with its first error."""
    if _LEDGER_PACKAGE not in sys.modules:
        room: Any = type(sys)(_LEDGER_PACKAGE)
        # rankdeck's own folder under another name, so that its __init__.py does not run.
        room.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
        sys.modules[_LEDGER_PACKAGE] = room
    for module in ("ledger", "ledger_mode"):
        __import__(_LEDGER_PACKAGE + ".memory." + module)
    make_mode = _make_mode(sys.modules[_LEDGER_PACKAGE + ".memory.ledger_mode"], failed)
    dispatch = sys.modules[_LEDGER_PACKAGE + ".torch_compat.dispatch"]
    return _make_ledger(sys.modules[_LEDGER_PACKAGE + ".memory.ledger"], make_mode, dispatch)


def _make_mode(follower_module: Any, failed: Callable[[Exception], None]) -> Any:
    """Return the ledger's mode class, changed so that it stops observing at its first failure."""

    class _Mode(follower_module.LedgerMode):
        def __init__(self, storages: Any, state: Any) -> None:
            super().__init__(storages, state, self._call_once)
            self._result: Any = _NOTHING
            self._has_raised = False
            self.is_off = False

        def _call_once(self, func: Any, args: Any, kwargs: Any) -> Any:
            try:
                self._result = func(*args, **kwargs) if kwargs else func(*args)
            except BaseException:
                self._has_raised = True
                raise
            return self._result

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.is_off:
                return func(*args, **(kwargs or {}))
            self._result, self._has_raised = _NOTHING, False
            try:
                sent = self._unknown(args) if func.namespace == "c10d" else []
                out = super().__torch_dispatch__(func, types, args, kwargs)
                if sent:
                    self._storages.adopt(sent, 0, "communication")
            except BaseException as error:
                if self._has_raised:
                    error.__traceback__ = None  # All frames are ours, or torch's around them.
                    raise
                if not isinstance(error, Exception):
                    raise
                self.is_off = True
                failed(error)
                out = self._result
                if out is _NOTHING:
                    out = func(*args, **(kwargs or {}))
            finally:
                self._result = _NOTHING
            return out

        def _unknown(self, values: Any) -> list[Any]:
            """Return the tensors in `values` whose allocation the ledger did not observe. In a collective,
            these are gradient buckets."""
            tensors = []
            for value in values:
                if isinstance(value, (list, tuple)):
                    tensors += self._unknown(value)
                elif hasattr(value, "untyped_storage") and self._entry_of(value) is None:
                    tensors.append(value)
            return tensors

    return _Mode


def _make_ledger(ledger_module: Any, make_mode: Any, dispatch: Any) -> Any:
    class _Following(ledger_module.Ledger):
        mode: Any = None

        def _modes(self) -> Any:
            self.mode = make_mode(self, self._threads.state)
            return self.mode

        def is_on_top(self) -> bool:
            return dispatch.top_mode() is self.mode

        def pause(self) -> Any:
            return dispatch.without_modes()

        def give_up(self) -> None:
            self.mode.is_off = True

    # Patches would wrap functions of torch and Python that the script uses.
    return _Following(1, patches=False)


class _Owners:
    """Stand-in for a module that has the parameters and buffers of `models`, and the parameters of
    `optimizers`, whose modules may be unknown."""

    def __init__(self, models: list[Any], optimizers: list[Any]) -> None:
        self._models, self._optimizers = models, optimizers

    def parameters(self) -> Iterator[Any]:
        for model in self._models:
            yield from model.parameters()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def buffers(self) -> Iterator[Any]:
        for model in self._models:
            yield from model.buffers()


def watch_owners(ledger: Any, leader: Any, others: list[Any], models: list[Any]) -> None:
    """Register the optimizers and models with the ledger as owners of tensors."""
    ledger.watch(_Owners(models, [leader, *others]), leader)
    for optimizer in others:
        if callable(getattr(optimizer, "register_step_pre_hook", None)):
            ledger.watch(_Owners([], []), optimizer)
