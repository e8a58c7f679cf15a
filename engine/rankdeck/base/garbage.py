"""Keeps Python's garbage collector away from objects that live as long as the process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Turn the garbage collector off inside the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def freeze_new_objects() -> Iterator[None]:
    """Exclude objects that the block creates from garbage collection, and do not collect inside it.

    torch is more than half a million objects. Traversing them takes a process tenths of a second every time,
    and in a forked process it copies every page that they are on.
    """
    # With the collector on during imports, ranks were forked after 2.6 s instead of 1.7.
    with pause_gc():
        try:
            yield
        finally:
            gc.freeze()
