"""A GPU's memory by segment: it adds up to what the driver says, whatever the two sides tell."""

from __future__ import annotations

import pytest

from rankdeck.events import DeviceMemory, ProcessUse
from rankdeck.run.breakdown import SEGMENTS, break_down

GIB = 2**30
MEMORY = DeviceMemory(
    device=0,
    live_bytes=4 * GIB,
    peak_bytes=10 * GIB,
    peak_by_kind={"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 4 * GIB, "activations": 2 * GIB},
    reserved_bytes=12 * GIB,
)
OURS, THEIRS = ProcessUse(1, "python", 13 * GIB, rank=0), ProcessUse(2, "python", 5 * GIB)


def test_segments_are_others_context_unused_kinds_driver_and_free() -> None:
    segments = break_down(18 * GIB, MEMORY, [OURS, THEIRS], total_bytes=80 * GIB, driver_bytes=GIB)
    assert {name: size // GIB for name, size in segments.items() if size} == {
        "others": 5,
        "context": 1,
        "reserved_unused": 2,
        "parameters": 2,
        "gradients": 2,
        "optimizer": 4,
        "activations": 2,
        "driver": 1,
        "free": 61,
    }
    assert [name for name in SEGMENTS if name in segments] == list(segments)
    assert sum(segments.values()) == 80 * GIB


@pytest.mark.parametrize("processes", [None, [], [ProcessUse(99, None, 18 * GIB, foreign=True)]])
def test_unattributed_processes_are_their_own_segment(processes: list[ProcessUse] | None) -> None:
    segments = break_down(18 * GIB, MEMORY, processes, total_bytes=80 * GIB)
    assert (segments["unattributed"], "others" in segments, "context" in segments) == (6 * GIB, False, False)
    assert sum(segments.values()) == 80 * GIB


@pytest.mark.parametrize("used", [0, 1 * GIB, 9 * GIB, 11 * GIB, 12 * GIB, 40 * GIB])
@pytest.mark.parametrize("process_bytes", [None, 0, 6 * GIB, 13 * GIB])
@pytest.mark.parametrize("memory", [None, MEMORY])
def test_segments_of_readings_at_different_times_add_up(
    used: int, process_bytes: int | None, memory: DeviceMemory | None
) -> None:
    segments = break_down(
        used, memory, [ProcessUse(1, "python", process_bytes, rank=0)], total_bytes=40 * GIB
    )
    assert all(size >= 0 for size in segments.values())
    assert sum(size for name, size in segments.items() if name not in ("driver", "free")) == used


def test_unknown_segments_are_left_out() -> None:
    assert "free" not in break_down(GIB, None, None)
    assert "driver" not in break_down(GIB, None, None)
