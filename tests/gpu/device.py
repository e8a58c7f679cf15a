"""A GPU as the measurements see it, and a CPU in its place for a dry run: the same calls, the same code.

    watching()      the highest and the last bytes of live tensors, section by section
    limited(n)      only n bytes for torch's allocator, as on a smaller card
    used_bytes()    what the driver says is used of the whole card

On a GPU the figures are those of torch's allocator and of the driver. On a CPU torch's profiler tells every
allocation; the driver is the simulated NVML. Nothing here may make a CUDA context before it is asked to:
processes are forked from the one that imports this.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rankdeck.config.gpu_models import gpu_model
from rankdeck.memory.entries import DeviceBytes
from rankdeck.memory.torch_memory import OwnerBytes, read_gpu_bytes, with_activations
from rankdeck.planner.candidates import Target, TargetDevice

MIB = 2**20
_SECTION = "rankdeck: a new section"


@dataclass(frozen=True)
class Section:
    """Bytes between two marks; `reserved_bytes` is the most that torch's allocator held so far, None on a
    CPU."""

    peak_bytes: int
    live_bytes: int
    reserved_bytes: int | None


@dataclass
class Watched:
    """The sections, once watching is over: `next_section` ends one and begins the next."""

    sections: list[Section] = field(default_factory=list)

    def next_section(self) -> None:
        raise NotImplementedError


class Gpu:
    """torch's first CUDA device."""

    is_real = True
    use = "gpu:0"
    torch_device = torch.device("cuda", 0)

    def target(self, facts: dict[str, Any], num_devices: int = 1, total_bytes: int | None = None) -> Target:
        """So many of this GPU, empty, as the planner sees them; or smaller ones, of `total_bytes`."""
        gpu = gpu_model(facts["name"], facts["total_bytes"])
        device = TargetDevice(gpu.name, total_bytes or facts["total_bytes"], 0, gpu)
        return Target(f"{num_devices} x {facts['name']}", (device,) * num_devices, like_cuda=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watched]:
        self.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        watched = _OfAllocator(self)
        yield watched
        watched.next_section()

    @contextlib.contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Raises torch.OutOfMemoryError inside where the allocator cannot do with so much."""
        total_bytes = torch.cuda.get_device_properties(self.torch_device).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), self.torch_device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.torch_device)

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self.torch_device)

    def used_bytes(self) -> int:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.torch_device)
        return total_bytes - free_bytes

    def bytes_by_kind(self, watched: Watched, owned: OwnerBytes) -> DeviceBytes:
        """What the product says of this process's memory; call it before watching is over."""
        return read_gpu_bytes(self.torch_device, owned)

    def uuid(self) -> str:
        return str(torch.cuda.get_device_properties(self.torch_device).uuid)


class _OfAllocator(Watched):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def next_section(self) -> None:
        self._gpu.synchronize()
        device = self._gpu.torch_device
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        highest = max([reserved["peak"], *(section.reserved_bytes or 0 for section in self.sections)])
        self.sections.append(Section(allocated["peak"], allocated["current"], highest))
        torch.cuda.reset_peak_memory_stats(device)


class Cpu:
    """This machine's CPU where a GPU would be: for a dry run, whose figures say nothing of a GPU."""

    is_real = False
    use = "cpu:1"
    torch_device = torch.device("cpu")

    def target(self, facts: dict[str, Any], num_devices: int = 1, total_bytes: int | None = None) -> Target:
        """Virtual devices: without the kernels, the allocator and the constants of a GPU."""
        device = TargetDevice(None, total_bytes)
        return Target(f"{num_devices} virtual devices", (device,) * num_devices, like_cuda=False)

    def synchronize(self) -> None:
        """A CPU has computed when a call returns."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watched]:
        """Source: torch.profiler with profile_memory, as tests/helpers/tiny_training.py reads it."""
        watched = _OfProfiler()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
            yield watched
        watched.read(recorded)

    @contextlib.contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Nothing limits a CPU's tensors."""
        yield

    def reserved_bytes(self) -> int:
        """No allocator that keeps anything."""
        return 0

    def empty_cache(self) -> None:
        """Nothing is kept."""

    def bytes_by_kind(self, watched: Watched, owned: OwnerBytes) -> DeviceBytes:
        by_owner = owned.read(self.torch_device)
        num_bytes = sum(by_owner.values())
        by_kind = with_activations(by_owner, num_bytes)
        return DeviceBytes(
            device=0,
            live_bytes=num_bytes,
            peak_bytes=num_bytes,
            live_by_kind=by_kind,
            peak_by_kind=by_kind,
            reserved_bytes=num_bytes,
            peak_reserved_bytes=num_bytes,
        )


class _OfProfiler(Watched):
    def next_section(self) -> None:
        with record_function(_SECTION):
            pass

    def read(self, recorded: profile) -> None:
        """Sections from the profiler's own log of allocations."""
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(trace))
            trace_events = json.loads(trace.read_text())["traceEvents"]
        changes = [(e["ts"], e["args"]["Bytes"]) for e in trace_events if e.get("name") == "[memory]"]
        marks = [(e["ts"], None) for e in trace_events if e.get("name") == _SECTION and e.get("ph") == "X"]
        now = highest = 0
        for _, num_bytes in [*sorted([*changes, *marks], key=lambda change: change[0]), (None, None)]:
            if num_bytes is None:
                self.sections.append(Section(highest, now, None))
                highest = now
            else:
                now += num_bytes
                highest = max(highest, now)


AnyDevice = Gpu | Cpu


def device_of(*, dry_run: bool) -> AnyDevice:
    return Cpu() if dry_run else Gpu()
