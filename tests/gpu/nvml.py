"""What the product says of a card beside what the driver says: readings, and the breakdown by kind.

Tensors of known sizes are held, and what NVML, the sampler and the CUDA runtime see of them is told. Then a
model trains, and its weights, gradients and optimizer state, which are known to the byte, are looked for in
the breakdown of what the card has in use.
"""

from __future__ import annotations

import os
import time

import torch

from rankdeck.base.units import format_bytes
from rankdeck.events import DeviceMemory, ProcessUse
from rankdeck.memory.torch_memory import OwnerBytes
from rankdeck.run.breakdown import break_down
from rankdeck.telemetry.gpu_status import GpuStatus
from tests.gpu.device import MIB, AnyDevice, Gpu
from tests.gpu.driver import Driver
from tests.gpu.part import Part

BAR = 0.03
_HELD_MIB = {True: (512, 2048), False: (8, 32)}
_WIDTH = {True: 4096, False: 64}


def measure(part: Part, device: AnyDevice, rows: int | None) -> None:
    """The part `nvml`."""
    part.header = ["what", "NVML or known", "Rankdeck", "error"]
    torch.zeros(1, device=device.torch_device)
    driver = Driver(device)
    _readings(part, device, driver)
    _under_load(part, device, driver)
    _breakdown(part, device, driver)


def _readings(part: Part, device: AnyDevice, driver: Driver) -> None:
    """Used bytes beside NVML's own, and by how much they rise when a tensor of a known size is made."""
    before, sampled = driver.read(), driver.sampled()
    _compare(part, "used, at the beginning", before.used_bytes, sampled.used_bytes)
    for held_mib in _HELD_MIB[device.is_real]:
        tensor = torch.empty(held_mib * MIB, dtype=torch.uint8, device=device.torch_device)
        device.synchronize()
        driver.put(tensor.nbytes)
        now, later_sample = driver.read(), driver.sampled()
        _compare(part, f"used, with a tensor of {held_mib} MiB", now.used_bytes, later_sample.used_bytes)
        rise = None if None in (later_sample.used_bytes, sampled.used_bytes) else _rise(later_sample, sampled)
        _compare(part, f"rise by a tensor of {held_mib} MiB", tensor.nbytes, rise)
        if isinstance(device, Gpu):
            _compare(part, "used, by the CUDA runtime", device.used_bytes(), now.used_bytes, is_bar=False)
        del tensor
        device.empty_cache()
        driver.put(0)


def _rise(now: GpuStatus, before: GpuStatus) -> int:
    assert now.used_bytes is not None and before.used_bytes is not None
    return now.used_bytes - before.used_bytes


def _under_load(part: Part, device: AnyDevice, driver: Driver) -> None:
    """Temperature, power and utilisation while products are computed: moments, so no bar."""
    width = _WIDTH[device.is_real]
    factor = torch.randn(width, width, device=device.torch_device)
    until_s = time.monotonic() + (2.0 if device.is_real else 0.0)
    while time.monotonic() < until_s:
        for _ in range(20):
            torch.mm(factor, factor)
        device.synchronize()
    for _ in range(200 if device.is_real else 1):  # still at work while it is read
        torch.mm(factor, factor)
    direct, sampled = driver.read(), driver.sampled()
    part.row("temperature", f"{direct.temperature_c:.0f} C", _format_reading(sampled.temperature_c, "C"), "")
    part.row("power", f"{direct.power_w:.0f} W", _format_reading(sampled.power_w, "W"), "")
    part.row(
        "utilisation", "", "unknown" if sampled.utilisation is None else f"{sampled.utilisation:.0%}", ""
    )
    device.synchronize()


def _format_reading(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


def _breakdown(part: Part, device: AnyDevice, driver: Driver) -> None:
    """Segments of the used bytes beside what is known without them."""
    width = _WIDTH[device.is_real]
    with device.watching() as watched:
        own_before = _own_bytes(driver.sampled())
        reserved_before = device.reserved_bytes()
        layers = [torch.nn.Linear(width, width) for _ in range(16)]
        model = torch.nn.Sequential(*layers).to(device.torch_device)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(width, width, device=device.torch_device)).sum().backward()
        optimizer.step()
        device.synchronize()
        reading = device.bytes_by_kind(watched, OwnerBytes(model, optimizer))
        assert reading.reserved_bytes is not None
        driver.put(reading.reserved_bytes)
        status = driver.sampled()
    memory = DeviceMemory(
        device=0,
        live_bytes=reading.live_bytes,
        peak_bytes=reading.peak_bytes,
        peak_by_kind=reading.peak_by_kind,
        reserved_bytes=reading.reserved_bytes,
    )
    processes = [
        ProcessUse(
            process.pid, process.name, process.used_bytes, rank=0 if process.pid == os.getpid() else None
        )
        for process in status.processes or ()
    ]
    assert status.used_bytes is not None
    segments = break_down(status.used_bytes, memory, processes, total_bytes=status.total_bytes)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    _compare(part, "breakdown: parameters", weights, segments["parameters"])
    _compare(part, "breakdown: gradients", weights, segments["gradients"])
    _compare(part, "breakdown: optimizer", 2 * weights, segments["optimizer"])
    _compare(
        part, "breakdown: live tensors, by the allocator", watched.sections[-1].live_bytes, reading.live_bytes
    )
    named = sum(size for name, size in segments.items() if name not in ("free", "driver"))
    _compare(part, "breakdown: all segments in use", driver.read().used_bytes, named)
    if own_before is None:
        part.leave_out(
            "breakdown: context and others apart: the driver does not tell this process apart here."
        )
        return
    others = sum(process.used_bytes or 0 for process in processes if process.rank is None)
    context = own_before - reserved_before
    counted = others + context + reading.reserved_bytes
    _compare(part, "breakdown: others, context and torch, counted", counted, status.used_bytes)
    _compare(part, "breakdown: context", context, segments["context"], of_bytes=status.used_bytes)


def _own_bytes(status: GpuStatus) -> int | None:
    return next(
        (process.used_bytes for process in status.processes or () if process.pid == os.getpid()), None
    )


def _compare(
    part: Part,
    what: str,
    expected: int,
    actual: int | None,
    *,
    of_bytes: int | None = None,
    is_bar: bool = True,
) -> None:
    """A row; beyond the bar, of `of_bytes` or of what is known, it is a miss."""
    if actual is None:
        part.fail(f"{what}: not told.")
        return
    error = (actual - expected) / (of_bytes or expected)
    part.row(what, format_bytes(expected), format_bytes(actual), f"{error * 100:+.2f} %")
    if is_bar and abs(error) > BAR:
        part.miss(f"{what}: {error * 100:+.2f} % (bar {BAR:.0%}).")
