"""One set of rules says which GPU a person may use, to the engine and to the app."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankdeck.telemetry.availability import OWN_BYTES, Availability, GpuRefusal

GIB = 2**30
FREE = Availability(used_bytes=OWN_BYTES)


def test_a_whole_gpu_that_nobody_computes_on_is_for_auto() -> None:
    desktop = replace(FREE, used_bytes=3 * GIB, users=[("graphics", 3 * GIB)])
    for gpu in (FREE, desktop, Availability()):
        assert gpu.is_for_auto and gpu.is_for_all and gpu.refusal is None and gpu.hidden_bytes is None


@pytest.mark.parametrize(
    ("change", "refusal", "is_for_all"),
    [
        ({"is_simulated": True}, GpuRefusal.SIMULATED, False),
        ({"is_lost": True}, GpuRefusal.LOST, False),
        ({"is_twin": True}, GpuRefusal.TWIN, False),
        ({"is_split": True}, GpuRefusal.SPLIT, False),
        ({"is_instance": True}, None, False),
        ({"held_by": "/runs/one"}, GpuRefusal.HELD, True),
        ({"users": [("compute", None)]}, None, True),
        ({"used_bytes": 6 * GIB}, None, True),
    ],
)
def test_auto_takes_nothing_else(
    change: dict[str, Any], refusal: GpuRefusal | None, is_for_all: bool
) -> None:
    gpu = replace(FREE, **change)
    assert not gpu.is_for_auto
    assert gpu.is_free == (change.keys() <= {"is_simulated", "is_twin", "is_instance"})
    assert (gpu.refusal, gpu.is_for_all) == (refusal, is_for_all)


def test_memory_of_nobody_that_is_named_is_hidden() -> None:
    gpu = replace(FREE, used_bytes=6 * GIB, users=[("graphics", 2 * GIB)])
    assert gpu.hidden_bytes == 4 * GIB and not gpu.is_free
    assert replace(gpu, users=[("graphics", 2 * GIB), ("compute", None)]).hidden_bytes is None
    assert replace(gpu, users=None).hidden_bytes is None, "not asked yet"
    assert replace(gpu, is_split=True).hidden_bytes is None, "its instances name them"
