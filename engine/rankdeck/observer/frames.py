"""Finds the script's own frames, and removes the observer's frames from the script's tracebacks."""

from __future__ import annotations

import os
import sys
import sysconfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY_FOLDERS = tuple(
    {
        os.path.abspath(path) + os.sep
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
_MAX_FRAMES = 60


def drop_own_frame(error: BaseException) -> None:
    """Remove from the traceback of `error` the frame of the function that catches and re-raises `error`."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next


def script_frames() -> Iterator[Any]:
    """Yield the running frames of the user's own code, innermost first."""
    frame: Any = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if not frame.f_code.co_filename.startswith((_OWN_FOLDER, *_LIBRARY_FOLDERS, "<")):
            yield frame
        frame = frame.f_back


def script_line() -> str:
    """Return "file:line" of the innermost running frame of the user's own code; "" if there is none."""
    for frame in script_frames():
        return "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
    return ""


def is_called_by_script(*skipped_names: str) -> bool:
    """Check whether the user's own code called the observer, directly or through library functions named in
    `skipped_names`."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        is_library = code.co_filename.startswith(_LIBRARY_FOLDERS)
        if not code.co_filename.startswith(_OWN_FOLDER) and not (
            is_library and code.co_name in skipped_names
        ):
            return not is_library
        frame = frame.f_back
    return False
