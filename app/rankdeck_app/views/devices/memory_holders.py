"""Splits a device's memory by holder: processes, a run's tensors by kind, the driver, and unattributed
memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

import msgspec

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.events import DeviceMemory, ProcessUse
from rankdeck.run.breakdown import break_down
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus, clock_time
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.chart_colors import KIND_LABELS
from rankdeck_app.widgets.holder_list import Holder, HolderListData

OUTSIDE = tr_noop("processes outside this PID namespace")
MemoryOf = Callable[[GpuStatus], DeviceMemory | None]
"""Function that returns the memory that an open run reports for a GPU, or None."""
_SEGMENT_KINDS = {"unattributed": "unclaimed", "reserved_unused": "reserved"}
_SEGMENT_LABELS = {
    "others": tr_noop("other processes"),
    "context": tr_noop("context and libraries"),
    "unattributed": tr_noop("in use, owner unknown"),
    "reserved_unused": tr_noop("reserved but unused"),
    "driver": tr_noop("reserved by the driver"),
}


def holders(gpus: Gpus, gpu: GpuStatus, memory: DeviceMemory | None = None) -> HolderListData:
    """Return the holders of a device's memory; their sizes add up to the device's capacity. Memory that the
    driver does not attribute to a process is listed as unattributed.

    `memory` is what torch reports about the memory of a run on the device; if it is not None, the run's
    memory is split by kind.
    """
    if gpu.lost_at is not None:
        facts = [(tr("lost at"), clock_time(gpu.lost_at)), ("UUID", gpu.uuid)]
        return HolderListData((), None, facts)
    if memory is not None and gpu.last_used_bytes is not None:
        return HolderListData(tuple(_run_holders(gpu, memory)), gpu.total_bytes, _facts(gpus, gpu))
    kind = "run" if gpu.run is not None else "others"
    listed = [
        Holder(kind, item.name or "?", item.used_bytes, _process_note(item))
        for item in gpu.processes or ()
        if not item.foreign
    ]
    foreign = [item.used_bytes for item in gpu.processes or () if item.foreign]
    if foreign:
        known_sizes = [num_bytes for num_bytes in foreign if num_bytes is not None]
        count = tr("{n} processes", "{n} process", len(foreign))
        listed.append(Holder("outside", tr(OUTSIDE), sum(known_sizes) if known_sizes else None, count))
    listed.sort(key=lambda holder: -(holder.num_bytes or 0))
    listed += _remaining_holders(gpu, sum(holder.num_bytes or 0 for holder in listed))
    return HolderListData(tuple(listed), gpu.total_bytes, _facts(gpus, gpu))


def _run_holders(gpu: GpuStatus, memory: DeviceMemory) -> Iterator[Holder]:
    """Yield the holders of memory on a run's GPU, such as each kind of tensor, reserved but unused memory,
    and the CUDA context."""
    assert gpu.last_used_bytes is not None
    processes = None
    if "processes" not in gpu.states:
        # `break_down` counts processes with a rank as the run's own. NVML knows no ranks, and the run has
        # leased this GPU.
        processes = [
            item if item.foreign or item.type != "compute" else msgspec.structs.replace(item, rank=0)
            for item in gpu.processes or ()
        ]
    segments = break_down(
        gpu.last_used_bytes, memory, processes, total_bytes=gpu.total_bytes, driver_bytes=gpu.driver_bytes
    )
    labels = KIND_LABELS | _SEGMENT_LABELS
    # Kinds of tensors come first, in the same order as in the charts.
    for name in dict.fromkeys([*KIND_LABELS, *segments]):
        if segments.get(name):
            yield Holder(_SEGMENT_KINDS.get(name, name), tr(labels.get(name, name)), segments[name])


def _process_note(item: ProcessUse) -> str:
    """Return a note on a process: its pid, user, command (without the program if the holder's name shows it
    already), and host memory."""
    pid = tr("pid {pid}", pid=item.pid)
    pid = pid if item.type == "compute" else tr("pid {pid}, graphics", pid=item.pid)
    host = item.host_bytes
    on_host = None if host is None else tr("{size} on the host", size=format_bytes(host))
    program, _, arguments = (item.command or "").partition(" ")
    # The holder's name shows the program already.
    runs = arguments if PurePath(program).name == item.name else item.command
    return ", ".join(filter(None, (pid, item.user, runs, on_host)))


def _remaining_holders(gpu: GpuStatus, attributed_bytes: int) -> list[Holder]:
    """Return unattributed memory, the driver's memory, and free memory."""
    if gpu.last_used_bytes is None:
        return []
    rest = []
    if gpu.last_used_bytes > attributed_bytes:
        untold, by_nobody = tr("in use, owner unknown"), tr("in use; the driver reports no processes")
        name = by_nobody if "processes" in gpu.states else untold
        rest.append(Holder("unclaimed", name, gpu.last_used_bytes - attributed_bytes))
    if gpu.driver_bytes:
        rest.append(Holder("driver", tr(_SEGMENT_LABELS["driver"]), gpu.driver_bytes))
    if gpu.total_bytes is not None:
        # The processes' sum can exceed the driver's reading.
        used = max(gpu.last_used_bytes, attributed_bytes) + (gpu.driver_bytes or 0)
        rest.append(Holder("free", tr("free"), max(0, gpu.total_bytes - used)))
    return rest


def _facts(gpus: Gpus, gpu: GpuStatus) -> Sequence[tuple[str, str]]:
    facts = [(tr("peak since monitoring started"), peak_text(gpus, gpu))]
    if gpu.run is not None:
        facts.append((tr("run"), gpu.run_name))
    instances = [other.label for other in gpus.devices if other.parent == gpu.uuid]
    if instances:
        facts.append((tr("split into"), ", ".join(instances)))
    elif gpu.mig:
        facts.append((tr("split into"), tr("no instance yet")))
    facts.append(("UUID", gpu.uuid))
    if gpus.driver:
        facts.append((tr("driver"), gpus.driver))
    return facts


def peak_text(gpus: Gpus, gpu: GpuStatus) -> str:
    peak = gpus.registry.peak_bytes.get(gpu.uuid)
    return UNKNOWN if peak is None else format_bytes(peak)


def holder_rows(gpus: Gpus, gpu: GpuStatus | None, memory_of: MemoryOf) -> Iterator[Sequence[object]]:
    yield ("holder", "note", "bytes")
    for holder in holders(gpus, gpu, memory_of(gpu)).holders if gpu is not None else ():
        yield (holder.name, holder.note, holder.num_bytes)
