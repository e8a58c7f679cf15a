"""The planner against a real GPU: the true peak of rank r of N, by real CUDA tensors and a process group
whose collectives are done at once. One card is enough for ddp, fsdp, tensor and pipeline.

Prints the errors of active and reserved bytes; needs a GPU, so it is not part of `make test`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankdeck.config.gpu_models import GpuModel, find_gpu
from rankdeck.planner.candidates import Candidate
from rankdeck.planner.figures import line_of, plan_rank, ranks_to_plan
from rankdeck.planner.targets import Target, TargetDevice
from tests.helpers import gpu_peaks

ACTIVE_BAR, RESERVED_BAR = 0.03, 0.10
NUM_RANKS = 4
STRATEGIES = {
    "single": ("single", {}),
    "ddp": ("ddp", {}),
    "fsdp": ("fsdp", {}),
    "gpipe": ("pipeline", {"schedule": "gpipe", "microbatches": 4}),
    "1f1b": ("pipeline", {"schedule": "1f1b", "microbatches": 4}),
    "tensor": ("tensor", {}),
}

pytestmark = pytest.mark.gpu


def measured(strategy: str, rank: int, precision: str) -> dict[str, Any]:
    """Peaks of one rank, in a process of its own: the allocator starts empty."""
    command = [sys.executable, gpu_peaks.__file__, strategy, str(rank), str(NUM_RANKS), precision]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_peaks_are_as_planned(name: str, precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    strategy, options = STRATEGIES[name]
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    gpu = find_gpu(torch.cuda.get_device_name(0), total_bytes) or GpuModel("GPU", total_bytes)
    target = Target("one GPU", (TargetDevice(gpu.name, total_bytes, 0, gpu),) * NUM_RANKS, like_cuda=True)
    row = Candidate(strategy, dict(options))
    config = row.config(gpu_peaks.config(precision), target)
    ranks = ranks_to_plan(config, NUM_RANKS)
    rank = ranks[-1]
    passed = {rank: plan_rank(config, rank, target)}
    assert passed[rank].reason is None, passed[rank].reason
    planned = line_of(row, config, target, dict.fromkeys(range(NUM_RANKS), passed[rank])).devices[0]
    found = measured(json.dumps([strategy, options]), rank, precision)
    assert planned.reserved_bytes is not None
    active = planned.active_bytes / found["allocated_bytes"] - 1
    reserved = planned.reserved_bytes / found["reserved_bytes"] - 1
    context_mib = (found["process_bytes"] or 0) / 2**20 - found["reserved_bytes"] / 2**20
    with capsys.disabled():
        print(
            f"\n{name} {precision} rank {rank} of {NUM_RANKS}: active {active * 100:+.2f} %, reserved "
            f"{reserved * 100:+.2f} %; outside the allocator {context_mib:.0f} MiB, planned "
            f"{planned.constants_bytes / 2**20:.0f}"
        )
    assert abs(active) <= ACTIVE_BAR
    assert abs(reserved) <= RESERVED_BAR
