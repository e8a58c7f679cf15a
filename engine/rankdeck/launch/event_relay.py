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

from rankdeck.launch.peers import GuardMessage

_CHUNK_BYTES = 16_384
_MAX_LINE_BYTES = 8 << 20
_MAX_CHUNKS = 64
"""Pieces that are sent at one look: a beat does not wait behind more than a megabyte."""
_RELAYED_FILE = re.compile(r"(rank-\d{1,6}|supervisor|guard|sampler)\.\d{1,6}\.jsonl", re.ASCII)
_RELAYED_KINDS = ("problem", "stood_still")
_UNSAFE_CHARACTERS = re.compile(r"[^\w-]", re.ASCII)


def host_slug(host: str) -> str:
    """A host's name as the names of its files have it."""
    return _UNSAFE_CHARACTERS.sub("-", host)


class EventSender:
    """Of one host's directory, from an attempt on."""

    def __init__(self, run: str, attempt: int = 0) -> None:
        self._folder, self._attempt = Path(run, "events"), attempt
        self._sent: dict[str, int] = {}

    def read_new(self) -> Iterator[GuardMessage]:
        """What was written since the last look; whole lines of what is not passed on as it is."""
        left = _MAX_CHUNKS
        for name in sorted(self._file_names()):
            while left > 0 and (word := self._next_chunk(name)) is not None:
                left -= 1
                yield word

    def _file_names(self) -> list[str]:
        try:
            names = [file.name for file in self._folder.iterdir() if _RELAYED_FILE.fullmatch(file.name)]
        except OSError:
            return []
        return [name for name in names if int(name.split(".")[1]) >= self._attempt]

    def _next_chunk(self, name: str) -> GuardMessage | None:
        offset = self._sent.get(name, 0)
        try:
            with open(self._folder / name, "rb") as file:
                data = os.pread(file.fileno(), _CHUNK_BYTES, offset)
                if name.startswith(("supervisor", "guard")):
                    if len(data) == _CHUNK_BYTES and b"\n" not in data:
                        # Too long a line stays here, and holds up none.
                        offset += os.pread(file.fileno(), _MAX_LINE_BYTES, offset).find(b"\n") + 1
                        data = os.pread(file.fileno(), _CHUNK_BYTES, offset)
                    data = data[: data.rfind(b"\n") + 1]
        except OSError:
            return None
        if not data:
            return None
        self._sent[name] = offset + len(data)
        return {"word": "events", "file": name, "data": data.decode("latin-1")}


class EventReceiver:
    """Into the head's directory. `ranks`: by host, those whose files may come from there."""

    def __init__(self, run: str, ranks: dict[str, range]) -> None:
        self._folder = Path(run, "events")
        self._ranks = ranks
        self._num_events: dict[str, int] = {}

    def receive(self, host: str, word: GuardMessage) -> None:
        """What is not that host's to tell is left out."""
        name, data = word.get("file"), word.get("data")
        if not isinstance(name, str) or not isinstance(data, str) or not _RELAYED_FILE.fullmatch(name):
            return
        writer, attempt, _ = name.split(".")
        told = data.encode("latin-1", "replace")
        if writer.startswith("rank-"):
            if int(writer[5:]) not in self._ranks.get(host, ()):
                return
        else:
            writer = f"{writer}-{host_slug(host)}"
            if not writer.startswith("sampler"):
                told = b"".join(self._relayed_lines(f"{writer}.{attempt}", told))
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

    def _relayed_lines(self, file: str, told: bytes) -> Iterator[bytes]:
        """Its lines that are passed on, counted anew: when the run began and ended, the head says."""
        for line in told.splitlines():
            try:
                event = json.loads(line)
                is_ours = event.get("kind") in _RELAYED_KINDS
            except (ValueError, AttributeError, RecursionError):
                continue
            if is_ours:
                number = self._num_events.get(file, 0)
                self._num_events[file] = number + 1
                yield json.dumps({**event, "seq": number}).encode() + b"\n"
