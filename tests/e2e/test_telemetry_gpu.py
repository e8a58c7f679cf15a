"""Telemetry on a real card: NVML against torch, and a run's memory by segment against both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdeck import events
from rankdeck.events import DeviceMemory, ProcessUse
from rankdeck.memory.torch_memory import OwnerBytes, read_gpu_bytes, reset_gpu_peaks
from rankdeck.run.breakdown import break_down
from rankdeck.run_dir import RunDir
from tests.helpers.cli import rankdeck
from tests.helpers.launching import all_events

pytestmark = pytest.mark.gpu
GIB = 2**30
TOLERANCE = 0.03


@pytest.fixture
def device() -> torch.device:
    """torch's first device, with its context made."""
    cuda_device = torch.device("cuda", 0)
    torch.zeros(1, device=cuda_device)
    torch.cuda.synchronize(cuda_device)
    return cuda_device


def row_of(device: torch.device) -> dict[str, Any]:
    """What `rankdeck devices --json` says of torch's device, found by its UUID."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    rows = rankdeck("devices", "--json", exit_code=0).json
    (row,) = [row for row in rows if row["uuid"].partition("-")[2] == uuid]
    return dict(row)


def process_bytes(row: dict[str, Any]) -> int:
    """What NVML says that this process holds; skips where it does not tell (in many containers)."""
    used_bytes = [item["used_bytes"] for item in row["processes"] if item["pid"] == os.getpid()]
    if not used_bytes or used_bytes[0] is None:
        pytest.skip("NVML does not tell this process apart here")
    return int(used_bytes[0])


def test_nvml_and_torch_describe_the_same_gpu(device: torch.device) -> None:
    row, properties = row_of(device), torch.cuda.get_device_properties(device)
    assert row["name"] == properties.name and row["state"] == "ok" and not row["simulated"]
    assert row["total_bytes"] == pytest.approx(properties.total_memory, rel=TOLERANCE)
    assert row["used_bytes"] + row["driver_bytes"] < row["total_bytes"]
    assert 0 <= row["utilisation"] <= 1 and 10 < row["temperature_c"] < 110 and row["power_w"] > 5


def test_nvml_reports_what_torch_reserves(device: torch.device) -> None:
    before = row_of(device)["used_bytes"]
    tensor = torch.empty(2 * GIB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    assert row_of(device)["used_bytes"] - before == pytest.approx(tensor.nbytes, rel=TOLERANCE)


def test_memory_segments_add_up_to_what_nvml_reports(device: torch.device) -> None:
    before = row_of(device)
    context = process_bytes(before) - torch.cuda.memory_reserved(device)
    reset_gpu_peaks(device)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4096, 4096, device=device)).sum().backward()
    optimizer.step()
    torch.cuda.synchronize(device)
    gpu_bytes, row = read_gpu_bytes(device, OwnerBytes(model, optimizer)), row_of(device)
    memory = DeviceMemory(
        device=0,
        live_bytes=gpu_bytes.live_bytes,
        peak_bytes=gpu_bytes.peak_bytes,
        peak_by_kind=gpu_bytes.peak_by_kind,
        reserved_bytes=gpu_bytes.reserved_bytes,
    )
    processes = [
        ProcessUse(
            item["pid"], item["name"], item["used_bytes"], rank=0 if item["pid"] == os.getpid() else None
        )
        for item in row["processes"]
    ]
    segments = break_down(row["used_bytes"], memory, processes, total_bytes=row["total_bytes"])
    used = row["used_bytes"]
    # Counted without NVML's sum: others by process, our context as it was before the model, torch by kind.
    others = sum(item.used_bytes or 0 for item in processes if item.rank is None)
    assert others + context + gpu_bytes.reserved_bytes == pytest.approx(used, rel=TOLERANCE)
    assert segments["others"] == pytest.approx(others, abs=TOLERANCE * used)
    assert segments["context"] == pytest.approx(context, abs=TOLERANCE * used)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert (segments["parameters"], segments["gradients"]) == (weights, weights)
    assert segments["optimizer"] == pytest.approx(2 * weights, rel=0.001)
    assert segments["activations"] > 0


def test_memory_of_a_sampled_run_adds_up(tmp_path: Path) -> None:
    # Long and large enough for the sampler to see it.
    larger = ["--set", "train.steps=2000", "--set", "model.args.width=1024"]
    done = rankdeck("train", "gpt-stdlib", "--devices", "gpu:0", *larger, "--json", timeout_s=600)
    assert done.exit_code == 0, done.err
    run = RunDir(Path(done.json["path"]))
    run_events = all_events(run)
    (info,) = next(event for _, event in run_events if isinstance(event, events.RunStarted)).devices
    started = next(event for _, event in run_events if isinstance(event, events.RankStarted))
    assert started.uuids == [info.uuid]
    (device,) = rankdeck("show", run.path, "--json", exit_code=0).json["devices"]
    assert device["utilisation_mean"] is not None and device["used_peak_bytes"] > 0
    memory = [event.devices[0] for _, event in run_events if isinstance(event, events.Memory)][-1]
    assert memory.reserved_bytes is not None and memory.peak_by_kind is not None
    assert sum(memory.peak_by_kind.values()) == memory.peak_bytes <= memory.reserved_bytes
    samples = [
        row
        for writer, event in run_events
        if isinstance(event, events.Sample) and writer == "sampler"
        for row in event.devices
    ]
    assert all(row.device == 0 for row in samples)
    used = max(row.used_bytes for row in samples if row.used_bytes is not None)
    on_it = [process for row in samples for process in row.processes or []]
    if not any(process.rank == 0 and process.used_bytes for process in on_it):
        assert used >= memory.reserved_bytes
        pytest.skip("NVML does not tell the rank's process apart here")
    own_bytes = max(process.used_bytes or 0 for process in on_it if process.rank == 0)
    others = max((process.used_bytes or 0 for process in on_it if process.rank is None), default=0)
    assert own_bytes + others == pytest.approx(used, rel=TOLERANCE)
    assert own_bytes > memory.reserved_bytes
