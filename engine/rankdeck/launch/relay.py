"""What the ranks of other hosts write comes to the head, so that its directory tells of the whole run.

Each guard follows its own ranks' events and sends what is new; the head's guard appends it to files of the
same names. A rank's file is whole there; of what a supervisor, a guard and a sampler say, problems, readings
and where ranks stand still come, under the host's name. What was on its way when a connection broke is on
that host alone. Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rankdeck.launch.peers import Word

_PIECE_BYTES = 16_384
_LONGEST_BYTES = 8 << 20
_MOST_AT_ONCE = 64
"""Pieces that are sent at one look: a beat does not wait behind more than a megabyte."""
_TRAVELS = re.compile(r"(rank-\d{1,6}|supervisor|guard|sampler)\.\d{1,6}\.jsonl", re.ASCII)
_PASSED_ON = ("problem", "stood_still")
_SIGNS = re.compile(r"[^\w-]", re.ASCII)


def name_in_files(host: str) -> str:
    """A host's name as the names of its files have it."""
    return _SIGNS.sub("-", host)


class Sender:
    """Of one host's directory, from an attempt on."""

    def __init__(self, run: str, attempt: int = 0) -> None:
        self._folder, self._attempt = Path(run, "events"), attempt
        self._sent: dict[str, int] = {}

    def news(self) -> Iterator[Word]:
        """What was written since the last look; whole lines of what is not passed on as it is."""
        left = _MOST_AT_ONCE
        for name in sorted(self._names()):
            while left > 0 and (word := self._piece(name)) is not None:
                left -= 1
                yield word

    def _names(self) -> list[str]:
        try:
            names = [file.name for file in self._folder.iterdir() if _TRAVELS.fullmatch(file.name)]
        except OSError:
            return []
        return [name for name in names if int(name.split(".")[1]) >= self._attempt]

    def _piece(self, name: str) -> Word | None:
        offset = self._sent.get(name, 0)
        try:
            with open(self._folder / name, "rb") as file:
                data = os.pread(file.fileno(), _PIECE_BYTES, offset)
                if name.startswith(("supervisor", "guard")):
                    if len(data) == _PIECE_BYTES and b"\n" not in data:
                        # Too long a line stays here, and holds up none.
                        offset += os.pread(file.fileno(), _LONGEST_BYTES, offset).find(b"\n") + 1
                        data = os.pread(file.fileno(), _PIECE_BYTES, offset)
                    data = data[: data.rfind(b"\n") + 1]
        except OSError:
            return None
        if not data:
            return None
        self._sent[name] = offset + len(data)
        return {"word": "events", "file": name, "data": data.decode("latin-1")}


class Receiver:
    """Into the head's directory. `ranks`: by host, those whose files may come from there."""

    def __init__(self, run: str, ranks: dict[str, range]) -> None:
        self._folder = Path(run, "events")
        self._ranks = ranks
        self._num_told: dict[str, int] = {}

    def take(self, host: str, word: Word) -> None:
        """What is not that host's to tell is left out."""
        name, data = word.get("file"), word.get("data")
        if not isinstance(name, str) or not isinstance(data, str) or not _TRAVELS.fullmatch(name):
            return
        writer, attempt, _ = name.split(".")
        told = data.encode("latin-1", "replace")
        if writer.startswith("rank-"):
            if int(writer[5:]) not in self._ranks.get(host, ()):
                return
        else:
            writer = f"{writer}-{name_in_files(host)}"
            if not writer.startswith("sampler"):
                told = b"".join(self._passed_on(f"{writer}.{attempt}", told))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(self._folder / f"{writer}.{attempt}.jsonl", flags, 0o644)
        except OSError:
            return
        try:
            os.write(handle, told)
        except OSError:
            pass  # a full disk
        finally:
            os.close(handle)

    def _passed_on(self, file: str, told: bytes) -> Iterator[bytes]:
        """Its lines that are passed on, counted anew: when the run began and ended, the head says."""
        for line in told.splitlines():
            try:
                event = json.loads(line)
                is_ours = event.get("kind") in _PASSED_ON
            except (ValueError, AttributeError, RecursionError):
                continue
            if is_ours:
                number = self._num_told.get(file, 0)
                self._num_told[file] = number + 1
                yield json.dumps({**event, "seq": number}).encode() + b"\n"
