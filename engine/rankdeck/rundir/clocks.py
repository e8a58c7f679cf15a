"""The times of a run that came from several hosts, by one clock: its first host's, or in a copy this one's.

Each host writes what its own clock says, and files stay as they are. The first host asks the others what time
it is, and keeps beside the run how far ahead they are (launch/host_clocks.py); readers take that off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Annotated

import msgspec

from rankdeck.base import files
from rankdeck.events import AnyEvent, Metrics, RunStarted, Spans, Steps
from rankdeck.rundir.directory import RunDir, in_range
from rankdeck.rundir.lines import attempt_of

CLOCKS = "clocks.jsonl"
_MOST_BYTES = 1 << 20
"""Of what is read at once."""


class _Told(msgspec.Struct):
    """A host's clock was so far ahead of the first host's from `since` on (by the host's own clock)."""

    attempt: int
    host: str
    ranks: tuple[int, int]
    since: float
    ahead_s: Annotated[float, msgspec.Meta(ge=-250e9, le=250e9)]


_line = msgspec.json.Decoder(_Told)


class Clocks:
    """Of one run. What is written while it is read counts from then on."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._read_bytes = 0
        self._told: dict[int, list[_Told]] = {}
        self._of_file: dict[str, tuple[list[float], list[float]]] = {}
        self._origin_ahead_s = 0.0

    def refresh(self) -> None:
        """See what is known by now. Raises nothing: what cannot be read is not known."""
        origin = self._run.copied_from
        self._origin_ahead_s = 0.0 if origin is None else origin.ahead_s
        try:
            data = files.read_at(self._run.path / CLOCKS, self._read_bytes, _MOST_BYTES)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        self._read_bytes += len(whole)
        self._of_file.clear()
        for line in whole.splitlines():
            try:
                told = _line.decode(line)
            except msgspec.DecodeError:
                continue
            self._told.setdefault(told.attempt, []).append(told)

    def right(self, file_name: str, t: float) -> float:
        """A time in that file of events."""
        return in_range(t - self._ahead_s(file_name, t))

    def put_right(self, file_name: str, told: Iterable[AnyEvent]) -> None:
        """The times of events that were just read from that file."""
        if not self._origin_ahead_s and not self._of(file_name)[1]:
            return
        for event in told:
            ahead_s = self._ahead_s(file_name, event.t)
            event.t = in_range(event.t - ahead_s)
            if isinstance(event, Steps):
                event.ended = [t - ahead_s for t in event.ended]
            elif isinstance(event, Metrics):
                event.times = [t - ahead_s for t in event.times]
            elif isinstance(event, Spans):
                event.began = in_range(event.began - ahead_s)
            elif isinstance(event, RunStarted):
                event.started = in_range(event.started - ahead_s)

    def _ahead_s(self, file_name: str, t: float) -> float:
        """Of whoever wrote that file, when its clock said `t`."""
        since, ahead = self._of(file_name)
        own = ahead[max(0, bisect_right(since, t) - 1)] if ahead else 0.0
        return own + self._origin_ahead_s

    def _of(self, file_name: str) -> tuple[list[float], list[float]]:
        """(since when, how far ahead) of whoever wrote it; empty of the first host."""
        if file_name not in self._of_file:
            writer = file_name.rsplit(".", 2)[0]
            kind, _, host = writer.partition("-")
            found = [
                told
                for told in self._told.get(attempt_of(file_name), ())
                if (
                    told.ranks[0] <= int(host) < told.ranks[1]
                    if kind == "rank" and host.isdecimal()
                    else told.host == host
                )
            ]
            self._of_file[file_name] = [told.since for told in found], [told.ahead_s for told in found]
        return self._of_file[file_name]
