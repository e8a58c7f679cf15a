"""A virtual X server on a display number that it chooses itself, so that several runs never meet."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def virtual_display(width: int = 1440, height: int = 900) -> Iterator[str]:
    """Start Xvfb; yields its display as DISPLAY wants it (":7"), once it accepts windows.

    Raises: FileNotFoundError without Xvfb, RuntimeError when it ends at once.
    """
    read_end, write_end = os.pipe()
    screen = f"{width}x{height}x24"
    command = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", screen, "-nolisten", "tcp", "-noreset"]
    try:
        server = subprocess.Popen(
            command, pass_fds=[write_end], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    finally:
        os.close(write_end)
    try:
        with os.fdopen(read_end) as answer:
            number = answer.readline().strip()
        if not number:
            raise RuntimeError(f"Xvfb ended with {server.wait()} before it had a display")
        yield f":{number}"
    finally:
        server.terminate()
        server.wait(10)
