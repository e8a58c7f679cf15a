"""A qtbot whose waits last longer the busier the machine is, as all waits of tests do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytestqt.qtbot import QtBot

from tests.helpers.waiting import scale_timeout


def _stretched(timeout_ms: int) -> int:
    return round(scale_timeout(timeout_ms))


class PatientQtBot(QtBot):
    """Timeouts are those of an idle machine, in milliseconds."""

    def waitUntil(self, callback: Callable[[], Any], *, timeout: int = 5000) -> None:
        super().waitUntil(callback, timeout=_stretched(timeout))

    def waitSignal(self, signal: Any, *, timeout: int = 5000, **more: Any) -> Any:
        return super().waitSignal(signal, timeout=_stretched(timeout), **more)

    def waitActive(self, widget: Any, *, timeout: int = 5000) -> Any:
        return super().waitActive(widget, timeout=_stretched(timeout))

    def waitExposed(self, widget: Any, *, timeout: int = 5000) -> Any:
        return super().waitExposed(widget, timeout=_stretched(timeout))
