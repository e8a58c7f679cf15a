"""Split a GPU's memory into torch's memory, other memory of the ranks, memory of other processes, and free
memory.

    others | context | unattributed | reserved_unused | parameters ... temporary | driver | free

NVML reports the used memory, also per process; torch's allocator reports how much it has reserved and for
what. `context` is the ranks' memory that torch has not reserved (the CUDA context, cuBLAS, NCCL). If the
driver does not distinguish processes (as in many containers), `unattributed` is others and context
together; for a user script it also includes the allocator's memory for tensors without a known owner. The
kinds of torch's memory (parameters to temporary) are those of the device's peak in the last reported step:
the allocator keeps the memory that the peak needed, so NVML counts that memory as used. NVML and torch are
read at different times. If torch reports more than NVML, its number is reduced, so that all segments except
driver and free always add up to NVML's used memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankdeck.base.phrases import Phrase, phrase, plural_phrase, tr_noop
from rankdeck.events import MEMORY_KINDS, UNATTRIBUTED, DeviceMemory, ProcessUse

SEGMENTS = ("others", "context", "unattributed", "reserved_unused", *MEMORY_KINDS, "driver", "free")


def break_down(
    used_bytes: int,
    memory: DeviceMemory | None,
    processes: Sequence[ProcessUse] | None,
    *,
    total_bytes: int | None = None,
    driver_bytes: int | None = None,
) -> dict[str, int]:
    """Return bytes by segment, in the order of SEGMENTS.

    `used_bytes` and `processes` come from NVML, `memory` from torch. `free` is omitted if `total_bytes`, the
    capacity, is unknown; `driver` is omitted if `driver_bytes`, the driver's reserve, is unknown.
    """
    own_bytes = _rank_bytes(processes)
    reserved_bytes = 0 if memory is None else (memory.reserved_bytes or memory.peak_bytes)
    bytes_by_segment = dict.fromkeys(SEGMENTS, 0)
    if own_bytes is None:
        reserved_bytes = min(reserved_bytes, used_bytes)
        bytes_by_segment["unattributed"] = used_bytes - reserved_bytes
    else:
        # The ranks hold at least what torch has reserved, and at most what is used, whatever the two readings
        # say.
        own_bytes = min(max(own_bytes, min(reserved_bytes, used_bytes)), used_bytes)
        reserved_bytes = min(reserved_bytes, own_bytes)
        bytes_by_segment["others"] = used_bytes - own_bytes
        bytes_by_segment["context"] = own_bytes - reserved_bytes
    kinds = _bytes_by_kind(memory, reserved_bytes)
    bytes_by_segment["unattributed"] += kinds.pop(UNATTRIBUTED)
    bytes_by_segment |= kinds
    if driver_bytes is not None:
        bytes_by_segment["driver"] = driver_bytes
    if total_bytes is not None:
        bytes_by_segment["free"] = max(0, total_bytes - used_bytes - (driver_bytes or 0))
    unknown = {"driver"} if driver_bytes is None else set()
    unknown |= {"free"} if total_bytes is None else set()
    if own_bytes is None:
        unknown |= {"others", "context"}
    elif not bytes_by_segment["unattributed"]:
        unknown.add("unattributed")
    return {name: size for name, size in bytes_by_segment.items() if name not in unknown}


def _rank_bytes(processes: Sequence[ProcessUse] | None) -> int | None:
    """Return the memory of all ranks of the run; None without ranks or if a rank's bytes are not known."""
    if processes is None:
        return None
    rank_sizes = [process.used_bytes for process in processes if process.rank is not None]
    known_sizes = [size for size in rank_sizes if size is not None]
    return sum(known_sizes) if rank_sizes and len(known_sizes) == len(rank_sizes) else None


def _bytes_by_kind(memory: DeviceMemory | None, reserved_bytes: int) -> dict[str, int]:
    """Split `reserved_bytes` by kind of memory, including UNATTRIBUTED; the remainder is
    "reserved_unused"."""
    left_bytes = reserved_bytes
    sizes: dict[str, int] = {}
    by_kind = {} if memory is None else memory.peak_by_kind or {}
    for kind in (*MEMORY_KINDS, UNATTRIBUTED):
        sizes[kind] = min(by_kind.get(kind, 0), left_bytes)
        left_bytes -= sizes[kind]
    return sizes | {"reserved_unused": left_bytes}


def peak_coverage_text(num_sampled: int, num_steps: int) -> Phrase:
    """Describe which steps the highest measured peak covers.

    A step may be reported later than its memory, so `num_steps` may be too small.
    """
    num_steps = max(num_sampled, num_steps)
    if num_sampled == num_steps:
        return plural_phrase(tr_noop("of 1 step"), tr_noop("highest of all {n} steps"), num_steps)
    return phrase(
        "highest of {num_sampled} of {num_steps} steps", num_sampled=num_sampled, num_steps=num_steps
    )
