"""Read events as they are written: a reader keeps a cursor (offset, seq) per file and continues from there.

A reader may be killed at any time: a new one with the same cursors neither loses nor repeats an event.
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
    """A reader's position in one file: the next byte to read and the `seq` expected there."""

    offset: int = 0
    seq: int = 0


class LineCounts(NamedTuple):
    """Numbers of lines that a reader could not return: missing, unreadable, and of a newer version."""

    missing: int = 0
    unreadable: int = 0
    newer: int = 0


@dataclass
class EventReader:
    """Reader of a run's events as they are written.

    `cursors` (file name -> Cursor) is the only state to save for continuing later. In a multi-host run all
    times are corrected to one clock.

    `missing` counts, per file, the lines that gaps in `seq` reveal. `unreadable` counts lines that are not
    events, and files that cannot be read (a pipe, a folder). `newer` counts the events of a newer version.
    Attempts before `first_attempt` and after `last_attempt` are skipped. If `writers` is set, files of
    other writers are skipped too.
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
    """Files with a line longer than `MAX_LINE_BYTES`."""

    def __post_init__(self) -> None:
        self._clocks = ClockOffsets(self.run)

    def counts(self) -> LineCounts:
        """Return the numbers of lines, summed over all files, that could not be returned as events so far."""
        return LineCounts(self.missing.total(), self.unreadable.total(), self.newer.total())

    def read(self, max_bytes: int = 16 << 20) -> list[tuple[str, events.AnyEvent]]:
        """Return new events as (writer, event), in order within each file.

        A writer is "rank-0", "supervisor" or "sampler". At most about `max_bytes` are read; call again until
        the list is empty. An unterminated last line is left for a later call.
        """
        return [(name.rsplit(".", 2)[0], event) for name, batch in self.batches(max_bytes) for event in batch]

    def batches(
        self, max_bytes: int = 16 << 20, chunk_bytes: int = _CHUNK_BYTES
    ) -> Iterator[tuple[str, list[events.AnyEvent]]]:
        """Yield (file name, events) chunk by chunk; the file's cursor advances with each chunk.

        An attempt's files are read to the end before those of the next attempt. The files of one attempt are
        read in turn, a chunk each, the supervisor's first, so that no file waits for the end of another file.
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
                    start = cursor.offset
                    batch = self.read_file(name, chunk_bytes)
                    max_bytes -= cursor.offset - start
                    if cursor.offset > start:
                        yield name, batch
                    else:
                        waiting.remove(name)

    def read_file(self, name: str, chunk_bytes: int = _CHUNK_BYTES) -> list[events.AnyEvent]:
        """Return the next events of one file. The file's cursor does not move if there are no new lines."""
        cursor = self.cursors.setdefault(name, Cursor())
        chunk = self._read_chunk(name, cursor, chunk_bytes)
        batch = self._decode(name, cursor, chunk) if chunk else []
        self._clocks.correct_events(name, batch)
        return batch

    def file_names(self) -> list[str]:
        """Return the names of the existing event files, after reading the newest clock offsets."""
        self._clocks.refresh()
        paths = files.entries(self.run.events_folder)
        names = sorted(path.name for path in paths if path.name.endswith(".jsonl"))
        return [name for name in names if self.writers is None or name.rsplit(".", 2)[0] in self.writers]

    def _read_chunk(self, name: str, cursor: Cursor, num_bytes: int) -> bytes:
        """Return complete lines from the cursor on; empty if there is no complete line yet."""
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
                    # The line is None too, which is counted as a newer event below.
                    self.newer[name] -= 1
        self.newer[name] += decoded.count(None)
        known_events = [event for event in decoded if event is not None]
        # Fast path: the first and last seq show that no line of the chunk is missing. A million events are
        # read in a second.
        if (
            known_events
            and len(known_events) == len(decoded) == known_events[-1].seq - cursor.seq + 1
            and known_events[0].seq == cursor.seq
        ):
            cursor.seq += len(known_events)
            return known_events
        for event in decoded:
            if event is None:
                cursor.seq += 1
                continue
            if event.seq > cursor.seq:
                self.missing[name] += event.seq - cursor.seq
            cursor.seq = event.seq + 1
        return known_events


# Correct the times of a multi-host run to one clock: the coordinator's, or in a copy the local one.  Each
# host writes times by its own clock, and the files are never changed. The coordinator asks the nodes for
# their time and stores their clock offsets in the run's directory (launch/coordinator_guard.py); readers
# subtract them.

CLOCKS_FILE = "clocks.jsonl"
_MAX_CLOCKS_BYTES = 1 << 20
"""Maximum number of bytes of clocks.jsonl that are read at a time."""


class _ClockOffsetLine(msgspec.Struct):
    """One line of clocks.jsonl: the clock of `host` is `ahead_s` seconds ahead of the first host's clock.

    The offset applies from the time `since`, which is measured by the clock of `host`.
    """

    attempt: int
    host: str
    ranks: tuple[int, int]
    since: float
    ahead_s: Annotated[float, msgspec.Meta(ge=-250e9, le=250e9)]


_line_decoder = msgspec.json.Decoder(_ClockOffsetLine)


class ClockOffsets:
    """The clock offsets of one run's hosts. `refresh` reads the offsets written since its last call."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._read_bytes = 0
        self._offsets: dict[int, list[_ClockOffsetLine]] = {}
        self._offsets_by_file: dict[str, tuple[list[float], list[float]]] = {}
        self._origin_ahead_s = 0.0

    def refresh(self) -> None:
        """Read new offsets. Never raises: offsets that cannot be read are ignored."""
        origin = self._run.origin
        self._origin_ahead_s = 0.0 if origin is None else origin.ahead_s
        try:
            data = files.read_at(self._run.path / CLOCKS_FILE, self._read_bytes, _MAX_CLOCKS_BYTES)
        except OSError:
            return
        complete_data = data[: data.rfind(b"\n") + 1]
        if not complete_data:
            return
        self._read_bytes += len(complete_data)
        self._offsets_by_file.clear()
        for line in complete_data.splitlines():
            try:
                offset_line = _line_decoder.decode(line)
            except msgspec.DecodeError:
                continue
            self._offsets.setdefault(offset_line.attempt, []).append(offset_line)

    def correct(self, file_name: str, t: float) -> float:
        """Return a time from an event file, corrected to the common clock."""
        return clamp_time(t - self._ahead_s(file_name, t))

    def correct_events(self, file_name: str, file_events: Iterable[AnyEvent]) -> None:
        """Correct, in place, the times of events that were read from an event file."""
        if not self._origin_ahead_s and not self._file_offsets(file_name)[1]:
            return
        for event in file_events:
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
        """Return how far the clock of the file's writer was ahead of the common clock when it showed `t`."""
        since, offsets = self._file_offsets(file_name)
        host_ahead_s = offsets[max(0, bisect_right(since, t) - 1)] if offsets else 0.0
        return host_ahead_s + self._origin_ahead_s

    def _file_offsets(self, file_name: str) -> tuple[list[float], list[float]]:
        """Return (start times, offsets) for the file's writer; empty for the first host."""
        if file_name not in self._offsets_by_file:
            writer = file_name.rsplit(".", 2)[0]
            kind, _, host = writer.partition("-")
            offsets = [
                offset
                for offset in self._offsets.get(parse_attempt(file_name), ())
                if (
                    offset.ranks[0] <= int(host) < offset.ranks[1]
                    if kind == "rank" and host.isdecimal()
                    else offset.host == host
                )
            ]
            self._offsets_by_file[file_name] = (
                [offset.since for offset in offsets],
                [offset.ahead_s for offset in offsets],
            )
        return self._offsets_by_file[file_name]
