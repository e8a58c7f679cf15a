"""rankdeck's memory ledger in a person's process: loaded without rankdeck, and never in the way.

The files of the ledger need the standard library and torch alone, and import each other relatively: under a
package made by hand they know nothing of the rest. An operation's result or error is the script's whatever
the ledger makes of it: the first failure of its own ends its looking. Read full_observation.py before.
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
    """A new ledger of one device. `failed` is told what went wrong in it."""
    if _LEDGER_PACKAGE not in sys.modules:
        room: Any = type(sys)(_LEDGER_PACKAGE)
        room.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
        sys.modules[_LEDGER_PACKAGE] = room
    for module in ("ledger", "ledger_mode"):
        __import__(_LEDGER_PACKAGE + ".memory." + module)
    make_mode = _make_mode(sys.modules[_LEDGER_PACKAGE + ".memory.ledger_mode"], failed)
    dispatch = sys.modules[_LEDGER_PACKAGE + ".torch_compat.dispatch"]
    return _make_ledger(sys.modules[_LEDGER_PACKAGE + ".memory.ledger"], make_mode, dispatch.top_mode)


def _make_mode(follower_module: Any, failed: Callable[[Exception], None]) -> Any:
    """The ledger's mode, which looks no more once it has failed."""

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
                    error.__traceback__ = None  # All of it is ours, and torch's around us.
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
            """Tensors that are sent and that nobody has made while the ledger looked: buckets."""
            found = []
            for value in values:
                if isinstance(value, (list, tuple)):
                    found += self._unknown(value)
                elif hasattr(value, "untyped_storage") and self._entry_of(value) is None:
                    found.append(value)
            return found

    return _Mode


def _make_ledger(ledger_module: Any, make_mode: Any, top_mode: Callable[[], Any]) -> Any:
    class _Following(ledger_module.Ledger):
        mode: Any = None

        def _modes(self) -> Any:
            self.mode = make_mode(self, self._threads.state)
            return self.mode

        def is_on_top(self) -> bool:
            return top_mode() is self.mode

        def give_up(self) -> None:
            self.mode.is_off = True

    return _Following(1, patches=False)


class _Owners:
    """The parameters and buffers of several modules, and of optimizers whose module nobody knows."""

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
    """Have the ledger know these owners by name."""
    ledger.watch(_Owners(models, [leader, *others]), leader)
    for optimizer in others:
        if callable(getattr(optimizer, "register_step_pre_hook", None)):
            ledger.watch(_Owners([], []), optimizer)
