"""Reading events as they come: a reader keeps (file, offset, seq) and goes on from there.

It may be killed at any time and loses and doubles nothing.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from rankdeck import events
from rankdeck.base import files
from rankdeck.events import AnyEvent, Metrics, RunStarted, Spans, Steps
from rankdeck.run_dir.directory import RunDir, clamp_time
from rankdeck.run_dir.event_files import MAX_LINE_BYTES, parse_attempt

_CHUNK_BYTES = 1 << 20


class Cursor(msgspec.Struct):
    """Where a reader is in one file: the byte to go on from and the `seq` expected there."""

    offset: int = 0
    seq: int = 0


class LineCounts(NamedTuple):
    """What a reader could not give: lines that are missing, that are no events, and of a newer version."""

    missing: int = 0
    unreadable: int = 0
    newer: int = 0


@dataclass
class EventReader:
    """Reads a run's events as they come; `cursors` (file name -> Cursor) is all that has to be kept to go on
    later. Of a run that came from several hosts all times are by one clock.

    `missing` counts the lines that gaps in `seq` reveal, per file; `unreadable` the lines that are no events,
    and a file that cannot be read (a pipe, a folder); `newer` the events that a newer version wrote. Attempts
    before `first_attempt` and after `last_attempt` are left out, and so are other files than those of
    `writers` where these are named.
    """

    run: RunDir
    cursors: dict[str, Cursor] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    newer: Counter[str] = field(default_factory=Counter)
    first_attempt: int = 0
    last_attempt: int | None = None
    writers: tuple[str, ...] | None = None
    _unreadable_files: set[str] = field(default_factory=set, init=False, repr=False)
    """Files with a line that is longer than any event."""

    def __post_init__(self) -> None:
        self._clocks = ClockOffsets(self.run)

    def counts(self) -> LineCounts:
        """What could not be given so far, of all files."""
        return LineCounts(self.missing.total(), self.unreadable.total(), self.newer.total())

    def read(self, max_bytes: int = 16 << 20) -> list[tuple[str, events.AnyEvent]]:
        """New events as (writer, event), every file in its own order; writer is "rank-0", "supervisor" or
        "sampler".

        At most about `max_bytes` are read; call again until the list is empty. An unterminated last line
        waits.
        """
        return [(name.rsplit(".", 2)[0], event) for name, batch in self.batches(max_bytes) for event in batch]

    def batches(
        self, max_bytes: int = 16 << 20, chunk_bytes: int = _CHUNK_BYTES
    ) -> Iterator[tuple[str, list[events.AnyEvent]]]:
        """The same as `read`, a list per chunk with the name of its file; the cursor moves chunk by chunk.

        An attempt is read to its end before the next one, which began after it. Files of an attempt take
        turns, the supervisor's first, so that no rank is read to its end while another waits.
        """
        by_attempt: dict[int, list[str]] = {}
        for name in sorted(self.file_names(), key=lambda name: not name.startswith("supervisor")):
            if parse_attempt(name) < self.first_attempt:
                continue
            by_attempt.setdefault(parse_attempt(name), []).append(name)
        for attempt in sorted(by_attempt):
            if self.last_attempt is not None and attempt > self.last_attempt:
                return
            waiting = by_attempt[attempt]
            while waiting and max_bytes > 0:
                for name in list(waiting):
                    cursor = self.cursors.setdefault(name, Cursor())
                    begin = cursor.offset
                    found = self.read_file(name, chunk_bytes)
                    max_bytes -= cursor.offset - begin
                    if cursor.offset > begin:
                        yield name, found
                    else:
                        waiting.remove(name)

    def read_file(self, name: str, chunk_bytes: int = _CHUNK_BYTES) -> list[events.AnyEvent]:
        """The next events of one file; its cursor stays where it is if there are none."""
        cursor = self.cursors.setdefault(name, Cursor())
        chunk = self._read_chunk(name, cursor, chunk_bytes)
        found = self._decode(name, cursor, chunk) if chunk else []
        self._clocks.correct_events(name, found)
        return found

    def file_names(self) -> list[str]:
        """The files of events that there are; what is known of their hosts' clocks from here on."""
        self._clocks.refresh()
        found = files.entries(self.run.events_folder)
        names = sorted(path.name for path in found if path.name.endswith(".jsonl"))
        return [name for name in names if self.writers is None or name.rsplit(".", 2)[0] in self.writers]

    def _read_chunk(self, name: str, cursor: Cursor, num_bytes: int) -> bytes:
        """Whole lines from the cursor on; empty when there is none yet."""
        path = self.run.events_folder / name
        while name not in self._unreadable_files:
            try:
                data = files.read_at(path, cursor.offset, num_bytes)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self.unreadable[name] = 1
                return b""
            end = data.rfind(b"\n") + 1
            if end or len(data) < num_bytes:
                return data[:end]
            if num_bytes > MAX_LINE_BYTES:
                self._unreadable_files.add(name)
                self.unreadable[name] += 1
                return b""
            num_bytes *= 4  # one line longer than a chunk
        return b""

    def _decode(self, name: str, cursor: Cursor, chunk: bytes) -> list[events.AnyEvent]:
        cursor.offset += len(chunk)
        decoded: list[events.AnyEvent | None] = []
        try:
            decoded = events.decode_lines(chunk)
        except msgspec.DecodeError:
            for line in chunk.split(b"\n")[:-1]:
                try:
                    decoded.append(events.decode(line))
                except msgspec.DecodeError:
                    decoded.append(None)
                    self.unreadable[name] += 1
                    self.newer[name] -= 1
        self.newer[name] += decoded.count(None)
        known = [event for event in decoded if event is not None]
        # The usual chunk is whole, and its two ends tell so: a million events are read in a second.
        if (
            known
            and len(known) == len(decoded) == known[-1].seq - cursor.seq + 1
            and known[0].seq == cursor.seq
        ):
            cursor.seq += len(known)
            return known
        for event in decoded:
            if event is None:
                cursor.seq += 1
                continue
            if event.seq > cursor.seq:
                self.missing[name] += event.seq - cursor.seq
            cursor.seq = event.seq + 1
        return known


# The times of a run that came from several hosts, by one clock: its first host's, or in a copy this one's.
#
# Each host writes what its own clock says, and files stay as they are. The first host asks the others what
# time it is, and keeps beside the run how far ahead they are (launch/coordinator_guard.py); readers take that
# off.

CLOCKS_FILE = "clocks.jsonl"
_MAX_CLOCKS_BYTES = 1 << 20
"""Of what is read at once."""


class _ClockOffsetLine(msgspec.Struct):
    """A host's clock was so far ahead of the first host's from `since` on (by the host's own clock)."""

    attempt: int
    host: str
    ranks: tuple[int, int]
    since: float
    ahead_s: Annotated[float, msgspec.Meta(ge=-250e9, le=250e9)]


_line_decoder = msgspec.json.Decoder(_ClockOffsetLine)


class ClockOffsets:
    """Of one run. What is written while it is read counts from then on."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._read_bytes = 0
        self._offsets: dict[int, list[_ClockOffsetLine]] = {}
        self._offsets_by_file: dict[str, tuple[list[float], list[float]]] = {}
        self._origin_ahead_s = 0.0

    def refresh(self) -> None:
        """See what is known by now. Raises nothing: what cannot be read is not known."""
        origin = self._run.origin
        self._origin_ahead_s = 0.0 if origin is None else origin.ahead_s
        try:
            data = files.read_at(self._run.path / CLOCKS_FILE, self._read_bytes, _MAX_CLOCKS_BYTES)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        self._read_bytes += len(whole)
        self._offsets_by_file.clear()
        for line in whole.splitlines():
            try:
                told = _line_decoder.decode(line)
            except msgspec.DecodeError:
                continue
            self._offsets.setdefault(told.attempt, []).append(told)

    def correct(self, file_name: str, t: float) -> float:
        """A time in that file of events."""
        return clamp_time(t - self._ahead_s(file_name, t))

    def correct_events(self, file_name: str, told: Iterable[AnyEvent]) -> None:
        """The times of events that were just read from that file."""
        if not self._origin_ahead_s and not self._file_offsets(file_name)[1]:
            return
        for event in told:
            ahead_s = self._ahead_s(file_name, event.t)
            event.t = clamp_time(event.t - ahead_s)
            if isinstance(event, Steps):
                event.ended = [t - ahead_s for t in event.ended]
            elif isinstance(event, Metrics):
                event.times = [t - ahead_s for t in event.times]
            elif isinstance(event, Spans):
                event.began = clamp_time(event.began - ahead_s)
            elif isinstance(event, RunStarted):
                event.started = clamp_time(event.started - ahead_s)

    def _ahead_s(self, file_name: str, t: float) -> float:
        """Of whoever wrote that file, when its clock said `t`."""
        since, ahead = self._file_offsets(file_name)
        own = ahead[max(0, bisect_right(since, t) - 1)] if ahead else 0.0
        return own + self._origin_ahead_s

    def _file_offsets(self, file_name: str) -> tuple[list[float], list[float]]:
        """(since when, how far ahead) of whoever wrote it; empty of the first host."""
        if file_name not in self._offsets_by_file:
            writer = file_name.rsplit(".", 2)[0]
            kind, _, host = writer.partition("-")
            found = [
                told
                for told in self._offsets.get(parse_attempt(file_name), ())
                if (
                    told.ranks[0] <= int(host) < told.ranks[1]
                    if kind == "rank" and host.isdecimal()
                    else told.host == host
                )
            ]
            self._offsets_by_file[file_name] = (
                [told.since for told in found],
                [told.ahead_s for told in found],
            )
        return self._offsets_by_file[file_name]
