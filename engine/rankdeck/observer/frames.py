"""Removes the observer's frames from the script's tracebacks."""

from __future__ import annotations


def drop_own_frame(error: BaseException) -> None:
    """Remove the frame of the function that caught `error` and re-raises it from its traceback."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
