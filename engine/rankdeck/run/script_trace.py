"""The steps of a person's own script as a trace for the Perfetto viewer, as trace.py makes one of phases.

A process per rank with its steps one behind the other, and counters of the time that it waited for its
loader, of memory, and of what the script logged. What happens within a step was not seen, and has no bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from rankdeck import events
from rankdeck.run.bounds import LONGEST_S, TOO_LARGE


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
        "traceEvents": [*_names(sorted(ranks)), *filter(_is_finite, found)],
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


def _names(ranks: Iterable[int]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "steps"}}
