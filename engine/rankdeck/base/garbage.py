"""Prevents Python's garbage collector from traversing objects that live as long as the process."""

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
    """Exclude from garbage collection all objects that the block creates, and disable the collector inside
    the block.

    Importing torch creates more than half a million objects. Each collection that traverses them takes tenths
    of a second and, in a forked process, copies every memory page that contains such an object.
    """
    # With the collector on during imports, ranks were forked after 2.6 s instead of 1.7.
    with pause_gc():
        try:
            yield
        finally:
            gc.freeze()
