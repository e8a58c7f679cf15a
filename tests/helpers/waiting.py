"""Waiting for a condition instead of sleeping for a guess."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CHECK_TIMEOUT_S = 60.0
"""For the check before the first step where what it finds is looked at, on a machine that does other things
beside."""


def scale_timeout(seconds: float) -> float:
    """How long may take, on this machine as busy as it is, what takes so many seconds on an idle one."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(
    condition: Callable[[], T], *, deadline_s: float = 10.0, interval_s: float = 0.02, what: str = ""
) -> T:
    """The condition's first true value.

    Raises: AssertionError that says what did not come true within `deadline_s` of an idle machine.
    """
    deadline_s = scale_timeout(deadline_s)
    end_s = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end_s:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name} did not come true within {deadline_s:g} s (last value: {value!r})")
        time.sleep(interval_s)
