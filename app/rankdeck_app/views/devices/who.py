"""Who holds the memory of a device, and how unevenly those do who hold several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdeck.imbalance import Imbalance, imbalance_of
from rankdeck.telemetry.readings import Device
from rankdeck.units import format_bytes
from rankdeck_app.state.gpus import Gpu, Gpus
from rankdeck_app.views.devices.words import UNKNOWN, clock_time
from rankdeck_app.widgets.holder_list import Holder, HoldersFigure

OUTSIDE = "other, outside this namespace"


def holders(gpus: Gpus, gpu: Gpu) -> HoldersFigure:
    """Who holds its memory, adding up to its capacity; what the driver attributes to nobody says so."""
    device = gpus.board.device(gpu.uuid)
    if gpu.lost_at is not None or device is None:
        facts = [("lost at", clock_time(gpu.lost_at or 0.0)), ("UUID", gpu.uuid)]
        return HoldersFigure((), None, facts)
    found = [
        Holder(
            "run" if gpu.run is not None else "others",
            item.name or "?",
            item.used_bytes,
            _note(item.pid, item.type),
        )
        for item in gpu.processes or ()
        if not item.foreign
    ]
    foreign = [item.used_bytes for item in gpu.processes or () if item.foreign]
    if foreign:
        told = [num_bytes for num_bytes in foreign if num_bytes is not None]
        count = f"{len(foreign)} processes" if len(foreign) > 1 else "1 process"
        found.append(Holder("outside", OUTSIDE, sum(told) if told else None, count))
    found.sort(key=lambda holder: -(holder.num_bytes or 0))
    found += _rest(gpu, device, sum(holder.num_bytes or 0 for holder in found))
    return HoldersFigure(tuple(found), gpu.total_bytes, _facts(gpus, gpu))


def _note(pid: int, kind: str) -> str:
    return f"pid {pid}" + ("" if kind == "compute" else f", {kind}")


def _rest(gpu: Gpu, device: Device, attributed_bytes: int) -> list[Holder]:
    """What is in use and nobody's, what the driver keeps, and what is free."""
    if gpu.used_bytes is None:
        return []
    rest = []
    if gpu.used_bytes > attributed_bytes:
        name = "in use, not told by whom" if gpu.processes is not None else "in use; processes are not told"
        rest.append(Holder("unclaimed", name, gpu.used_bytes - attributed_bytes))
    if device.driver_bytes:
        rest.append(Holder("driver", "the driver's own", device.driver_bytes))
    if gpu.total_bytes is not None:
        used = max(gpu.used_bytes, attributed_bytes) + (device.driver_bytes or 0)
        rest.append(Holder("free", "free", max(0, gpu.total_bytes - used)))
    return rest


def _facts(gpus: Gpus, gpu: Gpu) -> Sequence[tuple[str, str]]:
    facts = [("peak since the start", peak_words(gpus, gpu))]
    if gpu.run is not None:
        facts.append(("run", gpu.run_name()))
    parts = [other.label for other in gpus.devices if other.parent == gpu.uuid]
    if parts:
        facts.append(("split into", ", ".join(parts)))
    elif gpu.is_split:
        facts.append(("split into", "no instance yet"))
    facts.append(("UUID", gpu.uuid))
    if gpus.driver:
        facts.append(("driver", gpus.driver))
    return facts


def peak_words(gpus: Gpus, gpu: Gpu) -> str:
    peak = gpus.board.peak_bytes.get(gpu.uuid)
    return UNKNOWN if peak is None else format_bytes(peak)


def imbalance(gpus: Gpus) -> Imbalance | None:
    """Of the devices that one run, or one process, holds together; by the place among `gpus.whole`.

    Devices that have nothing to do with each other are not out of balance.
    """
    together: dict[object, set[int]] = {}
    for place, gpu in enumerate(gpus.whole):
        if gpu.lost_at is not None or gpu.is_stale or gpu.used_bytes is None:
            continue
        keys: list[object] = (
            [gpu.run] if gpu.run is not None else [item.pid for item in gpu.others if not item.foreign]
        )
        for key in keys:
            together.setdefault(key, set()).add(place)
    largest = max(together.values(), key=len, default=set())
    return imbalance_of({place: gpus.whole[place].used_bytes for place in sorted(largest)})


def holder_rows(gpus: Gpus, gpu: Gpu | None) -> Iterator[Sequence[object]]:
    yield ("holder", "note", "bytes")
    for holder in holders(gpus, gpu).holders if gpu is not None else ():
        yield (holder.name, holder.note, holder.num_bytes)
