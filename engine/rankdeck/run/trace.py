"""The sampled steps of a run as a trace that the Perfetto viewer (ui.perfetto.dev) opens.

A process per rank, in it a track per device with its phases, a second one for what runs under them (an
all-reduce under backward), and a counter of the memory of each device that the ledger or the driver told.
Source: the Trace Event Format of Chrome ("X" complete events, "C" counters, "M" names). Times are
microseconds since the run's start. Read anatomy.py before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from rankdeck import events
from rankdeck.run.anatomy import SIMULATED_TIME, DeviceRow, Span, fits, put_together
from rankdeck.run.bounds import LONGEST_S, TOO_LARGE

_UNDER = 1_000
"""Added to a device's number for the track of what runs under its other phases."""
_CLOCK_NOISE_S = 2e-6


def trace_of(told: Iterable[events.AnyEvent]) -> dict[str, Any]:
    """The whole trace as JSON objects, from a run's events in any order of ranks."""
    started: events.RunStarted | None = None
    shares: list[events.Spans] = []
    memory: list[events.Memory] = []
    for event in told:
        match event:
            case events.RunStarted():
                started = started or event
            case events.Spans() if fits(event):
                shares.append(event)
            case events.Memory():
                memory.append(event)
    names = {} if started is None else {info.index: info.title for info in started.devices}
    moments = [share.began for share in shares] + [reading.t for reading in memory]
    zero = started.started if started is not None else min(moments, default=0.0)
    found: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], str] = {}
    for share in shares:
        anatomy = put_together([share])
        for row in anatomy.rows:
            name = names.get(row.device, f"device {row.device}")
            found.extend(_phases(row, share, anatomy.began - zero, name, tracks))
    for reading in memory:
        found.extend(_counters(reading, zero, names))
    return {
        "traceEvents": [*_names(tracks, shares, started), *found],
        "displayTimeUnit": "ms",
        "otherData": {
            "run": started.run if started else "",
            "strategy": started.strategy if started else "",
            "time": SIMULATED_TIME if any(share.simulated for share in shares) else "measured",
        },
    }


def _phases(
    row: DeviceRow, share: events.Spans, offset_s: float, name: str, tracks: dict[tuple[int, int], str]
) -> Iterator[dict[str, Any]]:
    """A device's phases and the gaps between them."""
    free_s = 0.0
    for span in row.spans:
        is_under = span.start_s < free_s - _CLOCK_NOISE_S
        track = row.device + (_UNDER if is_under else 0)
        tracks[row.rank, track] = f"{name}: under other phases" if is_under else name
        free_s = max(free_s, span.end_s)
        yield _complete(span, row.rank, track, offset_s, _args(span, share))
    for gap in row.idle(share.seconds):
        yield _complete(gap, row.rank, row.device, offset_s, {"step": share.step})


def _complete(span: Span, rank: int, track: int, offset_s: float, args: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": "idle" if span.name == "idle" else "phase",
        "ts": (offset_s + span.start_s) * 1e6,
        "dur": span.duration_s * 1e6,
        "pid": rank,
        "tid": track,
        "args": dict(args),
    }


def _args(span: Span, share: events.Spans) -> dict[str, Any]:
    args: dict[str, Any] = {"step": share.step}
    args |= {
        key: value
        for key, value in (
            ("microbatch", span.microbatch),
            ("stage", span.stage),
            ("bytes", span.num_bytes),
        )
        if value is not None
    }
    if share.simulated:
        args["time"] = SIMULATED_TIME
    if share.followed:
        args["slowed_by"] = "memory ledger"
    return args


def _counters(reading: events.Memory, zero: float, names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for memory in reading.devices:
        yield {
            "ph": "C",
            "name": f"memory of {names.get(memory.device, memory.device)}",
            "ts": max(0.0, (reading.t - zero) * 1e6),
            "pid": reading.rank,
            "args": {"peak_bytes": memory.peak_bytes, "live_bytes": memory.live_bytes},
        }


def _names(
    tracks: Mapping[tuple[int, int], str], shares: Iterable[events.Spans], started: events.RunStarted | None
) -> Iterator[dict[str, Any]]:
    """What processes and tracks are called, and in which order they stand."""
    strategy = f" ({started.strategy})" if started else ""
    for rank in sorted({share.rank for share in shares}):
        args: dict[str, Any] = {"name": f"rank {rank}{strategy}"}
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": args}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for (rank, track), name in sorted(tracks.items()):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}
        order = track % _UNDER * 2 + track // _UNDER
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": rank,
            "tid": track,
            "args": {"sort_index": order},
        }


# The steps of a person's own script as a trace for the Perfetto viewer, as one of phases is made above.
#
# A process per rank with its steps one behind the other, and counters of the time that it waited for its
# loader, of memory, and of what the script logged. What happens within a step was not seen, and has no bar.


def trace_of_script(told: Iterable[events.AnyEvent]) -> dict[str, Any]:
    """The whole trace as JSON objects, from a run's events in any order of ranks."""
    told = list(told)
    started = next((event for event in told if isinstance(event, events.RunStarted)), None)
    zero = started.started if started is not None else 0.0
    found: list[dict[str, Any]] = []
    ranks: set[int] = set()
    for event in told:
        match event:
            case events.Steps():
                found.extend(_steps(event, zero))
            case events.Memory():
                found.extend(_memory(event, zero))
            case events.Metrics():
                found.extend(_logged(event, zero))
            case _:
                continue
        ranks.add(event.rank)
    return {
        "traceEvents": [*_script_names(sorted(ranks)), *filter(_is_finite, found)],
        "displayTimeUnit": "ms",
        "otherData": {"run": started.run if started else "", "time": "measured"},
    }


def _is_finite(event: dict[str, Any]) -> bool:
    """Whether it is an event that a viewer can place: figures of a script may be anything."""
    numbers = (event["ts"], event.get("dur", 0.0), *event["args"].values())
    return all(abs(number) < TOO_LARGE for number in numbers)


def _steps(event: events.Steps, zero: float) -> Iterator[dict[str, Any]]:
    columns = (event.ended, event.step_s, event.loss_sum or (), event.count or (), event.wait_s or ())
    for index, (ended, step_s, loss, count, wait_s) in enumerate(zip_longest(*columns)):
        if ended is None or step_s is None or not 0 <= step_s < LONGEST_S:
            continue
        args: dict[str, Any] = {"step": event.first + index}
        if loss is not None and count:
            args["loss"] = loss / count
        begins = ended - step_s - zero
        if wait_s is not None:
            args["waited_for_loader_s"] = wait_s
            yield _counter("loader wait", event.rank, begins, {"seconds": wait_s})
        yield {
            "ph": "X",
            "name": "step",
            "cat": "step",
            "ts": begins * 1e6,
            "dur": step_s * 1e6,
            "pid": event.rank,
            "tid": 0,
            "args": args,
        }


def _memory(event: events.Memory, zero: float) -> Iterator[dict[str, Any]]:
    for device in event.devices:
        held = {"live_bytes": device.live_bytes}
        if event.source != events.OWNERS_SEEN:
            held["peak_bytes"] = device.peak_bytes
        yield _counter(f"memory of device {device.device}", event.rank, event.t - zero, held)


def _logged(event: events.Metrics, zero: float) -> Iterator[dict[str, Any]]:
    for name, values in event.values.items():
        for t, value in zip(event.times, values, strict=False):
            if value is not None and math.isfinite(value):
                yield _counter(name, event.rank, t - zero, {"value": value})


def _counter(name: str, rank: int, at_s: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "ts": max(0.0, at_s * 1e6), "pid": rank, "args": args}


def _script_names(ranks: Iterable[int]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "steps"}}
