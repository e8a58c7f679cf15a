"""Python's search for garbage, kept away from what will never be any."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """No garbage is looked for inside."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def freeze_new_objects() -> Iterator[None]:
    """What is made inside stays for good: no garbage is looked for meanwhile, nor among it later.

    torch is more than half a million objects. Going through them takes a process tenths of a second every
    time, and in a forked one it copies every page that they lie on.
    """
    with pause_gc():
        try:
            yield
        finally:
            gc.freeze()
