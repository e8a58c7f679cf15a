"""Convert the steps of a run to a trace for the Perfetto viewer (ui.perfetto.dev).

Each rank is a process. If steps were sampled, the process has one track per device for its phases, and a
second track for phases that overlap them (an all-reduce in the backward pass). A user script has no recorded
phases: its steps follow each other on one track, with counters for its logged values and for the time spent
waiting for its data loader. Memory is a counter per device. Source: the Trace Event Format of Chrome ("X"
complete events, "C" counters, "M" names). Times are microseconds since the run's start. Read anatomy.py
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rankdeck import events
from rankdeck.run.anatomy import SIMULATED_TIME, DeviceRow, Span, is_valid_share, merge_shares
from rankdeck.run.bounds import MAX_DURATION_S, MAX_VALUE

_TRACK_OFFSET = 1_000
"""Offset from a device index to the number of the track for overlapping phases."""
_CLOCK_NOISE_S = 2e-6
_Tracks = dict[tuple[int, int], str]
"""Track names by rank and track number."""


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a trace; `pid` is a rank."""

    ph: str
    name: str
    cat: str | UnsetType = UNSET
    ts: float | UnsetType = UNSET
    dur: float | UnsetType = UNSET
    pid: int
    tid: int | UnsetType = UNSET
    args: Mapping[str, Any]


def make_trace(all_events: Iterable[events.AnyEvent]) -> dict[str, object]:
    """Build the trace as JSON objects from a run's events; events of different ranks may come in any
    order."""
    all_events = list(all_events)
    started = next((event for event in all_events if isinstance(event, events.RunStarted)), None)
    has_phases = any(isinstance(event, events.Spans) for event in all_events)
    trace_events, other = (_phase_events if has_phases else _step_events)(all_events, started)
    return {
        "traceEvents": msgspec.to_builtins(trace_events),
        "displayTimeUnit": "ms",
        "otherData": {"run": started.run if started else "", **other},
    }


def _phase_events(
    all_events: list[events.AnyEvent], started: events.RunStarted | None
) -> tuple[list[TraceEvent], dict[str, str | None]]:
    shares = [event for event in all_events if isinstance(event, events.Spans) and is_valid_share(event)]
    memory = [event for event in all_events if isinstance(event, events.Memory)]
    names = {} if started is None else {info.index: info.title for info in started.devices}
    times = [share.began for share in shares] + [reading.t for reading in memory]
    zero = started.started if started is not None else min(times, default=0.0)
    trace_events: list[TraceEvent] = []
    tracks: _Tracks = {}
    for share in shares:
        anatomy = merge_shares([share])
        for row in anatomy.rows:
            name = names.get(row.device, f"device {row.device}")
            trace_events.extend(_device_events(row, share, anatomy.started - zero, name, tracks))
    for reading in memory:
        trace_events.extend(_memory_events(reading, zero, names))
    strategy = started.strategy if started else ""
    time = SIMULATED_TIME if any(share.simulated for share in shares) else "measured"
    rank_names = _process_names({share.rank for share in shares}, f" ({strategy})" if started else "")
    return [*rank_names, *_track_names(tracks), *trace_events], {"strategy": strategy, "time": time}


def _device_events(
    row: DeviceRow, share: events.Spans, offset_s: float, name: str, tracks: _Tracks
) -> Iterator[TraceEvent]:
    """Yield a device's phases, and the gaps between them, as trace events that start `offset_s` later.

    `name` is the device's name. The tracks that the events use are added to `tracks`.
    """
    free_s = 0.0
    for span in row.spans:
        is_under = span.start_s < free_s - _CLOCK_NOISE_S
        track = row.device + (_TRACK_OFFSET if is_under else 0)
        tracks[row.rank, track] = f"{name}: overlapping phases" if is_under else name
        free_s = max(free_s, span.end_s)
        yield _phase_event(span, row.rank, track, offset_s, _phase_args(span, share))
    for gap in row.idle(share.seconds):
        yield _phase_event(gap, row.rank, row.device, offset_s, {"step": share.step})


def _phase_event(span: Span, rank: int, track: int, offset_s: float, args: Mapping[str, Any]) -> TraceEvent:
    return TraceEvent(
        ph="X",
        name=span.name,
        cat="idle" if span.name == "idle" else "phase",
        ts=(offset_s + span.start_s) * 1e6,
        dur=span.duration_s * 1e6,
        pid=rank,
        tid=track,
        args=args,
    )


def _phase_args(span: Span, share: events.Spans) -> Mapping[str, Any]:
    fields = {"step": share.step, "microbatch": span.microbatch, "stage": span.stage, "bytes": span.num_bytes}
    args: dict[str, object] = {key: value for key, value in fields.items() if value is not None}
    if share.simulated:
        args["time"] = SIMULATED_TIME
    if share.followed:
        args["slowed_by"] = "memory ledger"
    return args


def _process_names(ranks: Iterable[int], more: str = "") -> Iterator[TraceEvent]:
    """Yield events that make a viewer show each rank as "rank N", followed by `more`, in order of rank."""
    for rank in sorted(ranks):
        yield TraceEvent(ph="M", name="process_name", pid=rank, args={"name": f"rank {rank}{more}"})
        yield TraceEvent(ph="M", name="process_sort_index", pid=rank, args={"sort_index": rank})


def _track_names(tracks: _Tracks) -> Iterator[TraceEvent]:
    for (rank, track), name in sorted(tracks.items()):
        yield TraceEvent(ph="M", name="thread_name", pid=rank, tid=track, args={"name": name})
        # Puts each device's second track right below its first.
        order = track % _TRACK_OFFSET * 2 + track // _TRACK_OFFSET
        yield TraceEvent(ph="M", name="thread_sort_index", pid=rank, tid=track, args={"sort_index": order})


def _step_events(
    all_events: list[events.AnyEvent], started: events.RunStarted | None
) -> tuple[list[TraceEvent], dict[str, str | None]]:
    zero = started.started if started is not None else 0.0
    trace_events: list[TraceEvent] = []
    ranks: set[int] = set()
    for event in all_events:
        match event:
            case events.Steps():
                trace_events.extend(_rank_step_events(event, zero))
            case events.Memory():
                trace_events.extend(_memory_events(event, zero))
            case events.Metrics():
                trace_events.extend(_metric_events(event, zero))
            case _:
                continue
        ranks.add(event.rank)
    names = [name for rank in sorted(ranks) for name in (*_process_names([rank]), _steps_track_name(rank))]
    return [*names, *filter(_is_finite, trace_events)], {"time": "measured"}


def _steps_track_name(rank: int) -> TraceEvent:
    return TraceEvent(ph="M", name="thread_name", pid=rank, tid=0, args={"name": "steps"})


def _is_finite(event: TraceEvent) -> bool:
    """Check whether the event's numbers are in a range that viewers can show; a script may log any value."""
    numbers = (event.ts or 0.0, event.dur or 0.0, *event.args.values())
    return all(abs(number) < MAX_VALUE for number in numbers)


def _rank_step_events(event: events.Steps, zero: float) -> Iterator[TraceEvent]:
    columns = (event.ended, event.step_s, event.loss_sum or (), event.count or (), event.wait_s or ())
    for index, (ended, step_s, loss, count, wait_s) in enumerate(zip_longest(*columns)):
        # Columns of a damaged event may differ in length.
        if ended is None or step_s is None or not 0 <= step_s < MAX_DURATION_S:
            continue
        args: dict[str, float] = {"step": event.first + index}
        if loss is not None and count:
            args["loss"] = loss / count
        begins_s = ended - step_s - zero
        if wait_s is not None:
            args["waited_for_loader_s"] = wait_s
            yield _counter_event("loader wait", event.rank, begins_s, {"seconds": wait_s})
        yield TraceEvent(
            ph="X",
            name="step",
            cat="step",
            ts=begins_s * 1e6,
            dur=step_s * 1e6,
            pid=event.rank,
            tid=0,
            args=args,
        )


def _memory_events(
    reading: events.Memory, zero: float, names: Mapping[int, str] | None = None
) -> Iterator[TraceEvent]:
    """Yield memory counters; the peak is left out if the reading covers only tensors with a known owner."""
    for device in reading.devices:
        values = {} if reading.source == events.OWNERS_SEEN else {"peak_bytes": device.peak_bytes}
        values["live_bytes"] = device.live_bytes
        name = (names or {}).get(device.device, f"device {device.device}")
        yield _counter_event(f"memory of {name}", reading.rank, reading.t - zero, values)


def _metric_events(event: events.Metrics, zero: float) -> Iterator[TraceEvent]:
    for name, values in event.values.items():
        for t, value in zip(event.times, values, strict=False):
            if value is not None and math.isfinite(value):
                yield _counter_event(name, event.rank, t - zero, {"value": value})


def _counter_event(name: str, rank: int, at_s: float, args: Mapping[str, float]) -> TraceEvent:
    return TraceEvent(ph="C", name=name, ts=max(0.0, at_s * 1e6), pid=rank, args=args)
