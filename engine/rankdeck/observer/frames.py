"""Removes the observer's frames from the script's tracebacks."""

from __future__ import annotations


def drop_own_frame(error: BaseException) -> None:
    """Remove from the traceback of `error` the frame of the function that catches and re-raises `error`."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
