"""The person's terminal while a script has it: every key goes to the script, and modes are put back after it.

The script's rank 0 has a terminal of its own (streams.py), which edits lines, echoes, and turns Ctrl-C into a
signal; so the person's own does none of this meanwhile. It is taken only while the shell lets this command
have it: a job in the background touches neither its modes nor what is typed.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Callable
from typing import Any

_CHUNK_BYTES = 1 << 12


class Keyboard:
    """What is typed, passed on through a pipe; `reading_end` is the script's."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle
        self.reading_end, self._writing_end = os.pipe()
        os.set_blocking(self._writing_end, False)
        self._before: list[Any] | None = None
        self._waiting = b""
        self.suspend_key, self.interrupt_key = b"\x1a", b"\x03"

    @property
    def is_taken(self) -> bool:
        return self._before is not None

    def take(self) -> None:
        """Pass on every key from here on, if this command is in the foreground."""
        if self.is_taken or not self._is_in_foreground():
            return
        try:
            before = termios.tcgetattr(self.handle)
            termios.tcsetattr(self.handle, termios.TCSANOW, _every_key(before))
        except termios.error:
            return  # it is gone
        self._before = before
        self.interrupt_key, self.suspend_key = before[6][termios.VINTR], before[6][termios.VSUSP]

    def give_back(self) -> None:
        """The modes as they were, whatever the script did to them."""
        if self._before is None:
            return
        before, self._before = self._before, None
        try:
            termios.tcsetattr(self.handle, termios.TCSADRAIN, before)
        except termios.error:
            pass

    def close(self) -> None:
        self.give_back()
        for handle in (self.reading_end, self._writing_end):
            try:
                os.close(handle)
            except OSError:
                pass

    def read(self) -> bytes:
        """What was typed; empty when the terminal is gone."""
        try:
            typed = os.read(self.handle, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            typed = b""
        if not typed:
            self._before = None
        return typed

    def pass_on(self, typed: bytes = b"") -> None:
        """To the script; what its pipe has no room for waits."""
        self._waiting += typed
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._writing_end, self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:  # the script's side has ended
            self._waiting = b""

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.handle) == os.getpgrp()
        except OSError:
            return False


def _every_key(modes: list[Any]) -> list[Any]:
    """Keys come as they are pressed; output is treated as before."""
    raw = [*modes[:6], list(modes[6])]
    raw[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    raw[3] &= ~(termios.ISIG | termios.ICANON | termios.ECHO | termios.IEXTEN)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    return raw


def keyboard_for(*outputs: int, is_terminal: Callable[[int], bool] = os.isatty) -> Keyboard | None:
    """The keyboard where stdin and an output are terminals; None where stdin is the script's as it is."""
    if is_terminal(0) and any(map(is_terminal, outputs)):
        return Keyboard(0)
    return None
