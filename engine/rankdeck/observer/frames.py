"""Tracebacks as the script would have them alone."""

from __future__ import annotations


def drop_own_frame(error: BaseException) -> None:
    """Take the frame of whoever has just caught `error`, and raises it again, out of its traceback."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
