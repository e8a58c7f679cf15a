"""Relay events from the nodes to the coordinator, whose run directory then covers the whole run.

Each node's guard reads its local event files and sends new data; the coordinator's guard appends the data to
its own files. All events of ranks and samplers are relayed. Of the events of supervisors and guards, only
problems and hang reports (`_RELAYED_KINDS`) are relayed, into files with the host's name. Data in flight when
a connection breaks is not sent again. Standard library only, like the whole guard.
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
"""Maximum number of chunks sent per poll, so that a heartbeat never waits behind more than a megabyte."""
_RELAYED_FILE = re.compile(r"(rank-\d{1,6}|supervisor|guard|sampler)\.\d{1,6}\.jsonl", re.ASCII)
_RELAYED_KINDS = ("problem", "stood_still")
_UNSAFE_CHARACTERS = re.compile(r"[^\w-]", re.ASCII)


def host_slug(host: str) -> str:
    """Return a host's name in the form used in file names."""
    return _UNSAFE_CHARACTERS.sub("-", host)


class EventSender:
    """Reader of a node's event files from attempt `attempt` on; the caller sends the data to the
    coordinator."""

    def __init__(self, run: str, attempt: int = 0) -> None:
        self._folder, self._attempt = Path(run, "events"), attempt
        self._sent: dict[str, int] = {}

    def read_new(self) -> Iterator[GuardMessage]:
        """Yield messages with the data written since the last call; from supervisor and guard files, yield
        only complete lines."""
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
                        # A line that is too long is skipped, so that it does not block those after it.
                        offset += os.pread(file.fileno(), _MAX_LINE_BYTES, offset).find(b"\n") + 1
                        data = os.pread(file.fileno(), _CHUNK_BYTES, offset)
                    # The coordinator filters these files by line, so only complete lines are sent.
                    data = data[: data.rfind(b"\n") + 1]
        except OSError:
            return None
        if not data:
            return None
        self._sent[name] = offset + len(data)
        # latin-1 maps each byte to one character, so that JSON can carry any bytes.
        return {"word": "events", "file": name, "data": data.decode("latin-1")}


class EventReceiver:
    """Writer of relayed events to the coordinator's run directory; `ranks` maps each host to its ranks."""

    def __init__(self, run: str, ranks: dict[str, range]) -> None:
        self._folder = Path(run, "events")
        self._ranks = ranks
        self._num_events: dict[str, int] = {}

    def receive(self, host: str, word: GuardMessage) -> None:
        """Append a message's data to the file that it names, unless `host` may not write that file."""
        name, data = word.get("file"), word.get("data")
        if not isinstance(name, str) or not isinstance(data, str) or not _RELAYED_FILE.fullmatch(name):
            return
        writer, attempt, _ = name.split(".")
        content = data.encode("latin-1", "replace")
        if writer.startswith("rank-"):
            # A host may write the files of its own ranks only.
            if int(writer[5:]) not in self._ranks.get(host, ()):
                return
        else:
            writer = f"{writer}-{host_slug(host)}"
            if not writer.startswith("sampler"):
                content = b"".join(self._relayed_lines(f"{writer}.{attempt}", content))
        # O_NOFOLLOW: a link in the folder must not lead the write elsewhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(self._folder / f"{writer}.{attempt}.jsonl", flags, 0o644)
        except OSError:
            return
        try:
            os.write(handle, content)
        except OSError:
            pass  # a full disk
        finally:
            os.close(handle)

    def _relayed_lines(self, file: str, content: bytes) -> Iterator[bytes]:
        """Yield the lines whose events are of a relayed kind, renumbered with new `seq` numbers."""
        for line in content.splitlines():
            try:
                event = json.loads(line)
                is_ours = event.get("kind") in _RELAYED_KINDS
            except (ValueError, AttributeError, RecursionError):
                continue
            if is_ours:
                number = self._num_events.get(file, 0)
                self._num_events[file] = number + 1
                # Readers take a gap in `seq` for lost lines, and filtered lines would leave gaps.
                yield json.dumps({**event, "seq": number}).encode() + b"\n"
