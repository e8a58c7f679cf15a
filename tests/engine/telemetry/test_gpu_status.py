"""One set of rules says which GPU a person may use, to the engine and to the app."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from rankdeck.events import ProcessUse
from rankdeck.telemetry.gpu_status import OWN_BYTES, GpuRefusal, GpuStatus, read_rows

GIB = 2**30
FREE = GpuStatus(index=0, uuid="GPU-0", name="H100", used_bytes=OWN_BYTES, processes=())
DESKTOP = ProcessUse(10, "Xorg", 2 * GIB, "graphics")


def test_a_whole_gpu_that_nobody_computes_on_is_for_auto() -> None:
    desktop = replace(FREE, used_bytes=3 * GIB, processes=[DESKTOP])
    for gpu in (FREE, desktop, replace(FREE, used_bytes=None)):
        assert gpu.is_for_auto and gpu.is_for_all and gpu.refusal is None and gpu.hidden_bytes is None


@pytest.mark.parametrize(
    ("change", "refusal", "is_for_all"),
    [
        ({"simulated": True}, GpuRefusal.SIMULATED, False),
        ({"lost_at": 1.0}, GpuRefusal.LOST, False),
        ({"uuid": "GPU-0#1"}, GpuRefusal.TWIN, False),
        ({"mig": True}, GpuRefusal.SPLIT, False),
        ({"parent": "GPU-1"}, None, False),
        ({"run": "/runs/one"}, GpuRefusal.HELD, True),
        ({"processes": [ProcessUse(1)]}, None, True),
        ({"used_bytes": 6 * GIB}, None, True),
        ({"used_bytes": None, "stale_used_bytes": 6 * GIB}, None, True),
    ],
)
def test_auto_takes_nothing_else(
    change: dict[str, Any], refusal: GpuRefusal | None, is_for_all: bool
) -> None:
    gpu = replace(FREE, **change)
    assert not gpu.is_for_auto
    assert gpu.is_free == (change.keys() <= {"simulated", "uuid", "parent"})
    assert (gpu.refusal, gpu.is_for_all) == (refusal, is_for_all)


def test_memory_of_nobody_that_is_named_is_hidden() -> None:
    gpu = replace(FREE, used_bytes=6 * GIB, processes=[DESKTOP])
    assert gpu.hidden_bytes == 4 * GIB and not gpu.is_free
    assert replace(gpu, processes=[DESKTOP, ProcessUse(1)]).hidden_bytes is None
    assert replace(gpu, processes=None).hidden_bytes is None, "not asked yet"
    assert replace(gpu, mig=True).hidden_bytes is None, "its instances name them"


def test_what_one_host_tells_of_its_gpus_another_reads_back() -> None:
    gpu = replace(FREE, processes=[DESKTOP], run="/runs/one", states={"fan": "unsupported"}, age_s=0.5)
    (told,) = read_rows(json.loads(json.dumps([gpu.as_json()])))
    assert told.as_json() == gpu.as_json() and not told.compute_processes
