"""Rules about what the machine has: cores, memory. Read seen.py before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import counted, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.findings.seen import FindingRule, SeenRun, finding, percent

if TYPE_CHECKING:
    from rankdeck.run.devices import DeviceFigures

THREADS_RATIO = 1.5
"""Threads for each core: below that (three ranks of three threads on eight cores) little is lost."""
WORKERS_RATIO = 2.0
"""Worker processes for each core: a few more than cores help where reading waits for a disk."""
TIGHT_SHARE = 0.95
"""Of a device: a longer batch or another process takes the rest."""


def thread_oversubscription(seen: SeenRun) -> Problem | None:
    """Of runs that compute on CPUs: where GPUs compute, torch's threads mostly sleep."""
    if seen.attempt is None or seen.cores is None or seen.on_gpus:
        return None
    told = {rank: seen.attempt.told.ranks[rank].threads for rank in seen.ranks}
    threads = {rank: count for rank, count in told.items() if count is not None}
    total, most = sum(threads.values()), max(threads.values(), default=0)
    if len(threads) < 2 or most < 2 or total < THREADS_RATIO * seen.cores:
        return None
    each = max(1, seen.cores // len(threads))
    rank = max(threads, key=lambda one: threads[one])
    return finding(
        "thread-oversubscription",
        counted(
            marked("{ranks} ranks compute with {total} threads on 1 core: they take turns."),
            marked("{ranks} ranks compute with {total} threads on {n} cores: they take turns."),
            seen.cores,
            ranks=len(threads),
            total=total,
        ),
        seen.said_by(rank, phrase("torch computes with {n} threads in rank {rank}", n=most, rank=rank)),
        advice=phrase("Set OMP_NUM_THREADS={each} for the run, or torch.set_num_threads({each}).", each=each),
    )


def workers_too_many(seen: SeenRun) -> Problem | None:
    """Worker processes of all ranks' training loaders."""
    if seen.cores is None:
        return None
    if seen.config is not None:
        workers, num_ranks = seen.config.data.workers, len(seen.ranks)
        evidence = Evidence(
            phrase("data.workers = {workers}, for each of {ranks} ranks", workers=workers, ranks=num_ranks),
            seen.file_of_config(),
        )
        total = workers * num_ranks
    else:
        told = {rank: one.loader_workers or 0 for rank, one in seen.fold.script.seen.items()}
        total, workers = sum(told.values()), max(told.values(), default=0)
        num_ranks = max(1, len(told))
        rank = max(told, key=lambda one: told[one], default=0)
        evidence = seen.said_by(rank, phrase("num_workers={workers} in its DataLoader", workers=workers))
    if total <= WORKERS_RATIO * seen.cores:
        return None
    each = max(1, seen.cores // num_ranks)
    return finding(
        "workers-too-many",
        counted(
            marked(
                "{total} worker processes read data on 1 core: they take turns with each other and the ranks."
            ),
            marked(
                "{total} worker processes read data on {n} cores: they take turns with each other and the "
                "ranks."
            ),
            seen.cores,
            total=total,
        ),
        evidence,
        advice=phrase("Set data.workers = {each}.", each=each)
        if seen.config is not None
        else phrase("Set num_workers={each} in the DataLoader.", each=each),
        cure={} if seen.config is None else {"data.workers": each},
    )


class _Full(NamedTuple):
    share: float
    needed_bytes: float
    capacity_bytes: int


def memory_tight(seen: SeenRun) -> Problem | None:
    """What tensors needed at most and what lies beside them, on the fullest device. What torch's allocator
    keeps for later is room."""
    capacity_bytes = None if seen.config is None else seen.config.capacity_bytes
    known = {
        device.device: full
        for device in seen.fold.devices.values()
        if (full := _fullness(device, capacity_bytes)) is not None
    }
    fullest = max(known, key=lambda index: known[index].share, default=None)
    if fullest is None or not TIGHT_SHARE <= known[fullest].share <= 1.0:
        return None
    full, device = known[fullest], seen.fold.devices[fullest]
    accumulate = 1 if seen.config is None else seen.config.train.accumulate
    return finding(
        "memory-tight",
        phrase(
            "{device} is {share} full at its peak: one longer batch, and it runs out of memory.",
            device=device.label,
            share=percent(full.share),
        ),
        Evidence(
            phrase(
                "{needed} of {capacity}, in step {step}",
                needed=format_bytes(full.needed_bytes),
                capacity=format_bytes(full.capacity_bytes),
                step=device.peak.step if device.peak is not None else 0,
            )
        ),
        advice=phrase("Cut the batch into more parts: train.accumulate = {parts}.", parts=2 * accumulate)
        if seen.config is not None
        else phrase("Use a smaller batch per rank and accumulate gradients, or checkpoint activations."),
        cure={} if seen.config is None else {"train.accumulate": 2 * accumulate},
    )


def _fullness(device: DeviceFigures, pretended_bytes: int | None) -> _Full | None:
    if device.peak_bytes is None:
        return None
    if device.kind == "virtual":
        if not pretended_bytes:
            return None
        return _Full(device.peak_bytes / pretended_bytes, device.peak_bytes, pretended_bytes)
    memory, info = device.memory, device.info
    if info is None or not info.total_bytes or memory is None or memory.reserved_bytes is None:
        return None
    beside_bytes = max(0, (device.used_bytes or 0) - memory.reserved_bytes)
    capacity_bytes = info.total_bytes - (info.driver_bytes or 0)
    needed_bytes = device.peak_bytes + beside_bytes
    return _Full(needed_bytes / capacity_bytes, needed_bytes, capacity_bytes)


RULES = (
    FindingRule("thread-oversubscription", thread_oversubscription),
    FindingRule("workers-too-many", workers_too_many),
    FindingRule("memory-tight", memory_tight),
)
