"""Writes a rank's lines into the run's event files, with the standard library only.

A process claims its file with a lock that ends with the process. If the file is locked, the process takes the
next free rank number of the run. If the process that wrote the file has ended, the new process continues
after the last line. A process that logs values but does not train unlocks its file after each write, and
other processes wait until the file is unlocked. Each line is one write. Lines that cannot be written to disk
are counted, and the count is reported once writing works again. A script may close descriptors that it did
not open (a daemon does), and one of its own files may then get the same descriptor number: this module
neither writes to such a file nor closes it. See events.py in rankdeck.
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
    """An open, locked event file.

    `rank` may differ from the requested rank; `last_step` is the last step already in the file when it was
    claimed.
    """

    def __init__(self, folder: str, rank: int, attempt: int, num_ranks: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.rank = rank
        while not self._claim_with_retry(os.path.join(folder, "rank-%d.%d.jsonl" % (self.rank, attempt))):
            # Lower numbers belong to ranks that may still start.
            self.rank = max(self.rank + 1, num_ranks)
            if self.rank >= _MAX_RANKS:
                raise OSError("all rank numbers are in use")
        self._lock = threading.Lock()
        self.num_dropped, self.error_number, self._reason = 0, 0, ""
        self._seq, self.last_step = self._read_position()

    def _claim_with_retry(self, path: str) -> bool:
        """Claim the file, retrying for a moment while it is locked; return False if it stays locked."""
        until = time.monotonic() + _CLAIM_TIMEOUT_S
        while not self._claim(path):
            if time.monotonic() > until:
                return False
            time.sleep(_CLAIM_TIMEOUT_S / 10)
        return True

    def _claim(self, path: str) -> bool:
        """Open and lock the file; return False if another process holds the lock."""
        handle = open_high_fd(path)
        try:
            # The kernel releases this lock when the process ends, however it ends.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle, self._path, self._file_id = handle, path, _file_identity(handle)
        return True

    def release(self) -> None:
        """Unlock the file for other processes."""
        if self._has_descriptor():
            self._length = os.fstat(self._handle).st_size
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def resume(self) -> bool:
        """Lock the file again and continue after lines that other processes wrote; return False if another
        process holds the lock."""
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
        """Return whether the descriptor still refers to the event file."""
        try:
            return _file_identity(self._handle) == self._file_id
        except OSError:
            return False

    def _read_position(self) -> tuple[int, int]:
        """Return (the next sequence number, the last step in the file)."""
        length = os.fstat(self._handle).st_size
        start = max(0, length - _TAIL_BYTES)
        tail = os.pread(self._handle, length - start, start)
        end_of_lines = tail.rfind(b"\n") + 1
        if end_of_lines < len(tail):  # The process was killed during a write.
            os.ftruncate(self._handle, start + end_of_lines)
        seq, step = None, None
        for line in reversed(tail[:end_of_lines].splitlines()):
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
        """Append an event; disk errors are counted but not raised."""
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
            # NaN is rare, so events are only searched for it when encoding fails.
            text = _encode(replace_non_finite(event))
        line = text.encode("utf-8", "replace") + b"\n"
        try:
            if not self._has_descriptor() and not self._claim(self._path):
                raise OSError("the script closed the event file")
            length = os.fstat(self._handle).st_size
            try:
                while line:  # after a short write, a second one fails with the reason
                    line = line[os.write(self._handle, line) :]
            except OSError:
                # A partial line would join with the next one.
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
    """Open a file for appending, with a descriptor number above those that the script's own files get."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        # os.closerange in a script closes our descriptors too. If ours had a low number, the script's next
        # file would get the same number, and steps would be written into that file.
        aside = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError:  # The limit of descriptors is lower.
        return handle
    os.close(handle)
    return aside


def _file_identity(handle: int) -> tuple[int, int]:
    stat = os.fstat(handle)
    return stat.st_dev, stat.st_ino


def replace_non_finite(value: Any) -> Any:
    """Return a copy with NaN and infinities replaced by None, because JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value
