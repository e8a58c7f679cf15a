"""Where a GPU's memory is: what torch holds, what our processes hold besides, what others hold, what is free.

    others | context | unattributed | reserved_unused | parameters ... temporary | driver | free

NVML says what is used and by which process, torch's allocator what it has reserved and for what. `context` is
what our processes hold and torch has not reserved (the CUDA context, cuBLAS, NCCL). Where the driver does not
tell processes apart (in many containers) `unattributed` stands for others and context together; of a person's
own script it also holds what torch's allocator holds for tensors whose owner was not found. The kinds are
those of the device's peak in the last step that was told: the allocator keeps what the peak needed, so that
is what fills the memory that NVML sees. The two are read at different moments; what does not fit is cut, so
that all segments but driver and free always add up to what NVML says is used.
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
    """Bytes by segment, in the order of SEGMENTS. `used_bytes` and `processes` are NVML's, `memory` torch's.

    `free` is left out where the capacity is not known, `driver` where its reserve is not.
    """
    own_bytes = _rank_bytes(processes)
    reserved_bytes = 0 if memory is None else (memory.reserved_bytes or memory.peak_bytes)
    found = dict.fromkeys(SEGMENTS, 0)
    if own_bytes is None:
        reserved_bytes = min(reserved_bytes, used_bytes)
        found["unattributed"] = used_bytes - reserved_bytes
    else:
        own_bytes = min(max(own_bytes, min(reserved_bytes, used_bytes)), used_bytes)
        reserved_bytes = min(reserved_bytes, own_bytes)
        found["others"] = used_bytes - own_bytes
        found["context"] = own_bytes - reserved_bytes
    kinds = _bytes_by_kind(memory, reserved_bytes)
    found["unattributed"] += kinds.pop(UNATTRIBUTED)
    found |= kinds
    if driver_bytes is not None:
        found["driver"] = driver_bytes
    if total_bytes is not None:
        found["free"] = max(0, total_bytes - used_bytes - (driver_bytes or 0))
    unknown = {"driver"} if driver_bytes is None else set()
    unknown |= {"free"} if total_bytes is None else set()
    if own_bytes is None:
        unknown |= {"others", "context"}
    elif not found["unattributed"]:
        unknown.add("unattributed")
    return {name: size for name, size in found.items() if name not in unknown}


def _rank_bytes(processes: Sequence[ProcessUse] | None) -> int | None:
    """What the run's ranks hold together; None where a rank's bytes are not told, or none is known at all."""
    if processes is None:
        return None
    own = [process.used_bytes for process in processes if process.rank is not None]
    known = [size for size in own if size is not None]
    return sum(known) if own and len(known) == len(own) else None


def _bytes_by_kind(memory: DeviceMemory | None, reserved_bytes: int) -> dict[str, int]:
    """`reserved_bytes` by kind, the unattributed one too, with what no tensor needed as reserved_unused."""
    left_bytes = reserved_bytes
    found: dict[str, int] = {}
    by_kind = {} if memory is None else memory.peak_by_kind or {}
    for kind in (*MEMORY_KINDS, UNATTRIBUTED):
        found[kind] = min(by_kind.get(kind, 0), left_bytes)
        left_bytes -= found[kind]
    return found | {"reserved_unused": left_bytes}


def peak_coverage_text(num_sampled: int, num_steps: int) -> Phrase:
    """Of which steps a peak that the ledger measured is the highest; steps may be told later than their
    memory."""
    num_steps = max(num_sampled, num_steps)
    if num_sampled == num_steps:
        return plural_phrase(tr_noop("of 1 step"), tr_noop("highest of all {n} steps"), num_steps)
    return phrase(
        "highest of {num_sampled} of {num_steps} steps", num_sampled=num_sampled, num_steps=num_steps
    )
