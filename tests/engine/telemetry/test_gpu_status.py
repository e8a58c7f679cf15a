"""One set of rules says which GPU a person may use, to the engine and to the app."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from rankdeck.events import ProcessUse
from rankdeck.telemetry.gpu_status import DRIVER_OVERHEAD_BYTES, GpuRefusal, GpuStatus, parse_gpu_rows

GIB = 2**30
FREE = GpuStatus(index=0, uuid="GPU-0", name="H100", used_bytes=DRIVER_OVERHEAD_BYTES, processes=())
DESKTOP = ProcessUse(10, "Xorg", 2 * GIB, "graphics")


def test_an_unused_gpu_is_available() -> None:
    desktop = replace(FREE, used_bytes=3 * GIB, processes=[DESKTOP])
    for gpu in (FREE, desktop, replace(FREE, used_bytes=None)):
        assert (
            gpu.is_available and gpu.is_in_gpu_all and gpu.refusal is None and gpu.unaccounted_bytes is None
        )


@pytest.mark.parametrize(
    ("change", "refusal", "is_for_all"),
    [
        ({"simulated": True}, GpuRefusal.SIMULATED, False),
        ({"lost_at": 1.0}, GpuRefusal.LOST, False),
        ({"uuid": "GPU-0#1"}, GpuRefusal.DUPLICATE_UUID, False),
        ({"mig": True}, GpuRefusal.MIG_ENABLED, False),
        ({"parent": "GPU-1"}, None, False),
        ({"run": "/runs/one"}, GpuRefusal.LEASED, True),
        ({"processes": [ProcessUse(1)]}, None, True),
        ({"used_bytes": 6 * GIB}, None, True),
        ({"used_bytes": None, "stale_used_bytes": 6 * GIB}, None, True),
    ],
)
def test_other_gpus_are_not_available(
    change: dict[str, Any], refusal: GpuRefusal | None, is_for_all: bool
) -> None:
    gpu = replace(FREE, **change)
    assert not gpu.is_available
    assert gpu.is_free == (change.keys() <= {"simulated", "uuid", "parent"})
    assert (gpu.refusal, gpu.is_in_gpu_all) == (refusal, is_for_all)


def test_memory_without_a_known_process_is_unaccounted() -> None:
    gpu = replace(FREE, used_bytes=6 * GIB, processes=[DESKTOP])
    assert gpu.unaccounted_bytes == 4 * GIB and not gpu.is_free
    assert replace(gpu, processes=[DESKTOP, ProcessUse(1)]).unaccounted_bytes is None
    assert replace(gpu, processes=None).unaccounted_bytes is None, "not asked yet"
    assert replace(gpu, mig=True).unaccounted_bytes is None, "its instances name them"


def test_gpu_rows_survive_json() -> None:
    gpu = replace(FREE, processes=[DESKTOP], run="/runs/one", states={"fan": "unsupported"}, age_s=0.5)
    (row,) = parse_gpu_rows(json.loads(json.dumps([gpu.as_json()])))
    assert row.as_json() == gpu.as_json() and not row.compute_processes
