"""One run as somebody on another host follows it: what is new of its files since they were looked at.

The other side has the first bytes of some files; it said how many, and the checksum of their end. The run's
last word goes last, when everything before it was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping

from rankdeck.base import files
from rankdeck.remote import travelling
from rankdeck.remote.wire import MAX_BODY_BYTES, Message, Piece, Told, Whole
from rankdeck.rundir import RunDir

_Stamp = tuple[int, int, int]


class RunFeed:
    """`have`: name -> (bytes, checksum of their end), of what the other side has."""

    def __init__(self, number: int, run: RunDir, have: Mapping[str, tuple[int, int]]) -> None:
        self._number = number
        self._run = run
        self._sent = {name: size for name, (size, checksum) in have.items() if self._is(name, size, checksum)}
        self._stamps: dict[str, _Stamp] = {}
        self._told: bool | None = None

    def _is(self, name: str, size: int, checksum: int) -> bool:
        path = self._run.path / name
        try:
            return (
                travelling.grows(name)
                and 0 <= size <= path.stat().st_size
                and travelling.checksum_of_end(path, size) == checksum
            )
        except OSError:
            return False

    def news(self) -> Iterator[tuple[Message, bytes]]:
        """What is new, a piece at a time; whoever takes them may stop at any piece and ask again later."""
        # Before its files: what is written after that is seen by the next look.
        is_alive = self._run.is_alive()
        for name in travelling.whole_files(self._run.path):
            yield from self._whole(name)
        if is_alive and self._told is not True:
            self._stamps.pop(travelling.END, None)
            yield self._tell(is_alive)
        is_behind = False
        for name in travelling.growing_files(self._run.path):
            is_behind |= yield from self._pieces(name)
        if not is_alive and not is_behind:
            yield from self._whole(travelling.END)
            if self._told is not False:
                yield self._tell(is_alive)

    def _tell(self, is_alive: bool) -> tuple[Message, bytes]:
        self._told = is_alive
        return Told(number=self._number, is_alive=is_alive), b""

    def _whole(self, name: str) -> Iterator[tuple[Message, bytes]]:
        path = self._run.path / name
        try:
            found = path.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            if self._stamps.get(name) == stamp:
                return
            data = files.read_bytes(path)
        except OSError:
            return
        for begin in range(0, max(1, len(data)), MAX_BODY_BYTES):
            last = begin + MAX_BODY_BYTES >= len(data)
            if last:
                self._stamps[name] = stamp
            yield Whole(number=self._number, name=name, last=last), data[begin : begin + MAX_BODY_BYTES]

    def _pieces(self, name: str) -> Generator[tuple[Message, bytes], None, bool]:
        """Events to their end, of a log one piece: whether it has more. No event waits for a log."""
        path, is_log = self._run.path / name, name.startswith("logs/")
        most = travelling.LARGEST_LOG_BYTES if is_log else sys.maxsize
        while True:
            offset = self._sent.get(name, 0)
            try:
                size = min(most, path.stat().st_size)
                if size <= offset:
                    return False
                data = files.read_at(path, offset, min(MAX_BODY_BYTES, size - offset))
            except OSError:
                return False
            if not data:
                return False
            self._sent[name] = offset + len(data)
            yield Piece(number=self._number, name=name, offset=offset), data
            if is_log:
                return self._sent[name] < size
