"""Short texts about a host: the number of its GPUs, their memory in use, and whether the host responds."""

from __future__ import annotations

from collections.abc import Sequence

from rankdeck.base.units import format_bytes
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_liveness import SILENT_AFTER_S
from rankdeck_app.widgets.chart_colors import byte_unit
from rankdeck_app.widgets.time_text import duration_text


def gpu_status_text(gpus: Sequence[GpuStatus]) -> str:
    """Return a text like '8 GPUs · 141.6 of 640 GiB'; without readings, only the number of GPUs."""
    lost = sum(gpu.lost_at is not None for gpu in gpus)
    there = [gpu for gpu in gpus if gpu.lost_at is None]
    name = (
        tr("{n} simulated GPUs", "{n} simulated GPU", len(gpus))
        if any(gpu.simulated for gpu in gpus)
        else tr("{n} GPUs", "{n} GPU", len(gpus))
    )
    if lost:
        name = f"{name}, {tr('{n} lost', '{n} lost', lost)}"
    if there and all(gpu.is_stale for gpu in there):
        return f"{name} · {tr('stale readings')}"
    used = [gpu.used_bytes for gpu in there]
    known_bytes = [num_bytes for num_bytes in used if num_bytes is not None]
    if not known_bytes:
        return name
    if len(known_bytes) < len(used):
        some = tr(
            "{size} on {n} of them",
            "{size} on {n} of them",
            len(known_bytes),
            size=format_bytes(sum(known_bytes)),
        )
        return f"{name} · {some}"
    totals = [gpu.total_bytes for gpu in there if gpu.total_bytes is not None]
    divisor, unit = byte_unit(max([*totals, *known_bytes]))
    in_use, total = sum(known_bytes) / divisor, sum(totals) / divisor
    # The sum of only some capacities would be misleading.
    if len(totals) < len(there):
        return f"{name} · {in_use:.1f} {unit}"
    return f"{name} · {tr('{used:.1f} of {total:.0f} {unit}', used=in_use, total=total, unit=unit)}"


def host_state_text(gpus: Gpus) -> str:
    """Return a text such as 'no response for 12 s' or 'not responding'; empty if the host responds."""
    if not gpus.is_known:
        return tr("looking…")
    silent_s = gpus.silence_s
    if silent_s is not None and silent_s >= SILENT_AFTER_S:
        return tr("no response for {time}", time=duration_text(silent_s))
    return tr("not responding") if gpus.refusal else ""
