"""One rank's lines in the run's event files, by the standard library alone.

The file is claimed with a lock that ends with the process. Who finds it locked takes the next number that no
rank of this run has; who finds one of a process that has ended goes on behind its last line. Who only logs
lets go of it after each write, and others wait that long for it. Each line is one
write; what the disk does not take is counted, and told once there is room again. A script may close what it
does not know (a daemon does), so that a file of its own gets our descriptor's number: nothing is written or
closed there. See events.py in rankdeck.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TAIL_BYTES = 1 << 20
_MIN_FD = 512
_MAX_RANKS = 4096
_CLAIM_TIMEOUT_S = 0.05

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode


class RankFile:
    """An open, locked file. `rank` may differ from what was asked for; `last_step` is what it held
    already."""

    def __init__(self, folder: str, rank: int, attempt: int, num_ranks: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.rank = rank
        while not self._claim_with_retry(os.path.join(folder, "rank-%d.%d.jsonl" % (self.rank, attempt))):
            self.rank = max(self.rank + 1, num_ranks)
            if self.rank >= _MAX_RANKS:
                raise OSError("no rank's number is free")
        self._lock = threading.Lock()
        self.num_dropped, self.error_number, self._reason = 0, 0, ""
        self._seq, self.last_step = self._read_position()

    def _claim_with_retry(self, path: str) -> bool:
        """The same, also where somebody lets go of the file in a moment."""
        until = time.monotonic() + _CLAIM_TIMEOUT_S
        while not self._claim(path):
            if time.monotonic() > until:
                return False
            time.sleep(_CLAIM_TIMEOUT_S / 10)
        return True

    def _claim(self, path: str) -> bool:
        """Open and lock the file; False where another process has it."""
        handle = open_high_fd(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle, self._path, self._file_id = handle, path, _file_identity(handle)
        return True

    def release(self) -> None:
        """Others may have it from now on."""
        if self._has_descriptor():
            self._length = os.fstat(self._handle).st_size
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def resume(self) -> bool:
        """Have it again, behind what others have written since; False where another process has it."""
        try:
            if self._has_descriptor():
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._handle).st_size != self._length:
                    self._seq, self.last_step = self._read_position()
                return True
        except OSError:
            pass
        return False

    def _has_descriptor(self) -> bool:
        """Whether the descriptor is still that of our file."""
        try:
            return _file_identity(self._handle) == self._file_id
        except OSError:
            return False

    def _read_position(self) -> tuple[int, int]:
        """The next line's number, and the last step that is there."""
        length = os.fstat(self._handle).st_size
        start = max(0, length - _TAIL_BYTES)
        tail = os.pread(self._handle, length - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):  # It was killed inside a write.
            os.ftruncate(self._handle, start + whole)
        seq, step = None, None
        for line in reversed(tail[:whole].splitlines()):
            try:
                event = json.loads(line)
                seq = event["seq"] + 1 if seq is None else seq
                if event["kind"] == "steps":
                    step = event["first"] + len(event["ended"]) - 1
                    break
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        return seq or 0, step or 0

    def write(self, kind: str, fields: Mapping[str, object]) -> None:
        """Append one event; never raises for what a disk does."""
        with self._lock:
            if self.num_dropped:
                lines, reason = self.num_dropped, self._reason
                if self._append("dropped", {"lines": lines, "reason": reason}):
                    self.num_dropped -= lines
            if not self._append(kind, fields):
                self.num_dropped += 1

    def _append(self, kind: str, fields: Mapping[str, object]) -> bool:
        event = {"kind": kind, "v": 1, "seq": self._seq, "t": time.time()}
        event.update(fields)
        try:
            text = _encode(event)
        except ValueError:
            text = _encode(replace_non_finite(event))
        line = text.encode("utf-8", "replace") + b"\n"
        try:
            if not self._has_descriptor() and not self._claim(self._path):
                raise OSError("the script closed the file")
            length = os.fstat(self._handle).st_size
            try:
                while line:  # a second write says why the first one was short
                    line = line[os.write(self._handle, line) :]
            except OSError:
                os.ftruncate(self._handle, length)
                raise
        except OSError as error:
            self._reason, self.error_number = str(error), error.errno or 0
            return False
        self._seq += 1
        return True

    def close(self) -> None:
        if self._has_descriptor():
            os.close(self._handle)


def open_high_fd(path: str) -> int:
    """A descriptor to append with, out of the way of the numbers that the script's own files get."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        aside = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError:  # So many may not be open here.
        return handle
    os.close(handle)
    return aside


def _file_identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def replace_non_finite(value: Any) -> Any:
    """The same without NaN and infinity, for which JSON has no word."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value
