"""Phases are kept of sampled steps only, and which steps those are the ranks know without asking."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from rankdeck import events
from rankdeck.profiling.spans import LateSpan, SpanRecorder


def take_events(spans: SpanRecorder, *, wait: bool = True) -> list[events.Spans]:
    return [event for event, _ in spans.take_samples(rank=0, device_indices=[3, 4], wait=wait)]


def names_of(event: events.Spans) -> list[str]:
    return [event.names[index] for index in event.name]


def test_a_sampled_step_is_recorded_as_columns_in_phase_order() -> None:
    spans = SpanRecorder([torch.device("cpu")] * 2)
    spans.start_step(7, record=True)
    with spans.phase(0, "forward", stage=1, microbatch=2) as mark:
        assert mark is not None
        mark.num_bytes = 12
    with spans.phase(1, "backward"):
        pass
    spans.end_step()
    (event,) = take_events(spans)
    assert (event.step, names_of(event), event.device) == (7, ["forward", "backward"], [3, 4])
    assert (event.stage, event.microbatch, event.num_bytes) == ([1, None], [2, None], [12, None])
    assert event.began == pytest.approx(time.time(), abs=5)
    assert 0 <= event.start_us[0] <= event.start_us[1] <= event.seconds * 1e6


def test_an_outer_phase_comes_before_inner_ones() -> None:
    spans = SpanRecorder()
    spans.start_step(1, record=True)
    with spans.phase(0, "forward"):
        time.sleep(0.001)
        with spans.phase(0, "gather"):
            pass
        time.sleep(0.001)
    spans.end_step()
    assert names_of(take_events(spans)[0]) == ["forward", "gather"]


def test_phases_outside_a_sampled_step_are_not_recorded() -> None:
    spans = SpanRecorder()
    assert spans.phase(0, "forward") is spans.phase(0, "backward")
    spans.start_step(1, record=False)
    with spans.phase(0, "forward") as mark:
        assert mark is None
    spans.end_step()
    assert take_events(spans) == []


def test_threads_record_phases_in_parallel() -> None:
    spans = SpanRecorder([torch.device("cpu")] * 2)
    spans.start_step(1, record=True)
    both = threading.Barrier(2)

    def work(device: int) -> None:
        with spans.phase(device, "forward"):
            both.wait(10)

    threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.end_step()
    (event,) = take_events(spans)
    starts, ends = event.start_us, [s + d for s, d in zip(event.start_us, event.duration_us, strict=True)]
    assert sorted(event.device) == [3, 4]
    assert max(starts) <= min(ends)


def test_a_late_span_joins_the_step_it_belongs_to() -> None:
    spans = SpanRecorder()
    spans.find_late_spans = lambda: [LateSpan(0, "all-reduce", start_s, 0.0001, num_bytes=8)]
    spans.start_step(1, record=True)
    start_s = time.time()
    with spans.phase(0, "backward"):
        pass
    spans.end_step()
    assert take_events(spans, wait=False) == []
    spans.start_step(2, record=False)
    spans.end_step()
    (event,) = take_events(spans, wait=False)
    assert sorted(names_of(event)) == ["all-reduce", "backward"]


def test_a_late_span_of_another_step_is_left_out() -> None:
    spans = SpanRecorder()
    spans.find_late_spans = lambda: [LateSpan(0, "all-reduce", time.time() - 60.0, 0.001)]
    for step in (1, 2):
        spans.start_step(step, record=step == 1)
        with spans.phase(0, "backward"):
            pass
        spans.end_step()
    assert names_of(take_events(spans)[0]) == ["backward"]
