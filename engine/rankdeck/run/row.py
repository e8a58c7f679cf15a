"""A run at a glance: the row of a list, from the ends of its files.

A list of many runs must not read every event of each: the first lines of the supervisor tell what was
started, the last lines of rank 0 how far it came.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.rundir import RunDir, attempt_of

EventT = TypeVar("EventT", bound=events.Event)
_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 17


def glance(run: RunDir) -> dict[str, Any]:
    """The row of `rankdeck runs --json`."""
    started = first_event(run, "supervisor", events.RunStarted)
    began = first_event(run, "supervisor", events.RunStarted, newest=False)
    steps = last_event(run, "rank-0", events.Steps)
    return {
        "run": run.name,
        "path": str(run.path),
        "outcome": run.outcome(),
        "strategy": started.strategy if started else _configured_strategy(run),
        "started": began.started if began else run.environment().get("started"),
        "steps": steps.first + len(steps.ended) - 1 if steps else 0,
    }


def _configured_strategy(run: RunDir) -> str | None:
    try:
        return run.config().strategy.use
    except ConfigError:
        return None


def first_event(run: RunDir, writer: str, kind: type[EventT], *, newest: bool = True) -> EventT | None:
    """The first event of a kind at the beginning of a writer's newest, or oldest, file."""
    paths = _files(run, writer)
    if not paths:
        return None
    try:
        with open(paths[0 if newest else -1], "rb") as stream:
            lines = stream.read(_HEAD_BYTES).splitlines()
    except OSError:
        return None
    return next((event for event in map(_decode, lines) if isinstance(event, kind)), None)


def last_event(run: RunDir, writer: str, kind: type[EventT]) -> EventT | None:
    """The last event of a kind that a writer wrote: an attempt that got nowhere adds nothing."""
    found = (_last_event_in(path, kind) for path in _files(run, writer))
    return next((event for event in found if event is not None), None)


def _last_event_in(path: Path, kind: type[EventT]) -> EventT | None:
    """The last event of a kind in a file, read from its end."""
    try:
        with open(path, "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            rest = b""
            while end > 0:
                start = max(0, end - _TAIL_BYTES)
                stream.seek(start)
                lines = (stream.read(end - start) + rest).split(b"\n")
                # The first piece may be the end of a line that begins before it.
                rest, end = (lines.pop(0) if start else b""), start
                for line in reversed(lines):
                    event = _decode(line)
                    if isinstance(event, kind):
                        return event
    except OSError:
        pass
    return None


def _decode(line: bytes) -> events.AnyEvent | None:
    try:
        return events.decode(line)
    except msgspec.DecodeError:
        return None


def _files(run: RunDir, writer: str) -> list[Path]:
    """The writer's files, the newest attempt first."""
    paths = run.events_folder.glob(f"{writer}.*.jsonl")
    return sorted(paths, key=lambda path: attempt_of(path.name), reverse=True)
