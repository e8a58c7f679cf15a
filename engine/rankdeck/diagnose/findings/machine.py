"""Rules about what the machine has: cores, memory. Read seen.py before."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import counted, listed, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.findings.seen import FindingRule, SeenRun, finding, percent
from rankdeck.diagnose.fixes import EVENLY, STRATEGY
from rankdeck.run.imbalance import Imbalance

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


# The finding of a run whose fullest device stands far above the others: how far, of what, and what to do.
#
# The dashboard shows every difference; a finding is for one that costs something. While a run is followed
# it comes once the difference is large, goes once it is clearly gone, and its figures follow only larger
# changes, so that it can be read.

CODE = "imbalance"
ALERT_RATIO, CALM_RATIO = 1.5, 1.3
LEAST_BYTES = 1 << 20
"""Below this nobody minds."""
_MOST_CAUSES = 3
_NEWS_SHARE = 0.05
_LEAST_SHARE = 0.01
"""A cause of less is none."""

_ADVICE = {
    "dp": marked(
        "DataParallel keeps optimizer, gradients and gathered outputs on its first device. "
        "With DDP every device holds the same."
    ),
    "model": marked("The layers are cut unevenly: set strategy.balance to what is short."),
    "pipeline": marked(
        "The stages differ in what they hold: set strategy.balance or strategy.cuts. 1f1b keeps "
        "fewer microbatches in flight than gpipe."
    ),
}
_WORDS = {"gathered": marked("gathered outputs")}
_OTHERWISE = marked("Look at the bars by kind: what the lead device holds above the others is the cause.")


def causes(kinds: Mapping[int, Mapping[str, int]], lead: int) -> list[tuple[str, int]]:
    """(kind, bytes that the lead device holds above the median of the others), the largest first."""
    others = [held for device, held in kinds.items() if device != lead]
    if lead not in kinds or not others:
        return []
    excesses = []
    for kind in kinds[lead]:
        usual = median(held.get(kind, 0) for held in others)
        excesses.append((kind, int(kinds[lead][kind] - usual)))
    return sorted((item for item in excesses if item[1] > 0), key=lambda item: -item[1])


class ImbalanceAlert:
    """Of one run. `look` gives the problem as it stands now, or None."""

    def __init__(self) -> None:
        self._shown: Problem | None = None
        self._excess_bytes = 0.0
        self._device = -1

    def look(
        self,
        imbalance: Imbalance | None,
        labels: Mapping[int, str],
        kinds: Mapping[int, Mapping[str, int]],
        strategy: str | None,
        *,
        can_change: bool = False,
    ) -> Problem | None:
        """`labels` and `kinds` (bytes by kind, where known) are by device; `can_change`: the strategy is a
        configuration's, not a script's."""
        if imbalance is None or not self._is_worth_it(imbalance):
            self._shown = None
            return None
        is_news = abs(imbalance.excess_bytes - self._excess_bytes) > _NEWS_SHARE * self._excess_bytes
        if self._shown is None or is_news or imbalance.device != self._device:
            self._excess_bytes, self._device = imbalance.excess_bytes, imbalance.device
            better = EVENLY.get(strategy or "") if can_change else None
            cure = {} if better is None else {STRATEGY: better}
            self._shown = _problem(imbalance, labels, kinds, strategy).but(cure=cure)
        return self._shown

    def look_at(self, seen: SeenRun) -> Problem | None:
        """At the peaks of a run's devices."""
        devices = seen.fold.devices
        return self.look(
            seen.fold.imbalance(),
            {place: device.label for place, device in devices.items()},
            {place: by_kind for place, one in devices.items() if (by_kind := one.peak_by_kind) is not None},
            _strategy_of(seen),
            can_change=seen.config is not None,
        )

    def _is_worth_it(self, imbalance: Imbalance) -> bool:
        least = ALERT_RATIO if self._shown is None else CALM_RATIO
        is_far = imbalance.ratio is None or imbalance.ratio >= least
        return is_far and imbalance.excess_bytes >= LEAST_BYTES


def _strategy_of(seen: SeenRun) -> str | None:
    """The strategy, or of a script the one that its parallel wrapper is."""
    lead, started = seen.fold.script.lead, seen.fold.started
    if lead is not None and lead.wrapper == "DataParallel":
        return "dp"
    return started.strategy if started is not None else None


def _problem(
    imbalance: Imbalance,
    labels: Mapping[int, str],
    kinds: Mapping[int, Mapping[str, int]],
    strategy: str | None,
) -> Problem:
    least_bytes = _LEAST_SHARE * imbalance.excess_bytes
    excesses = [item for item in causes(kinds, imbalance.device) if item[1] >= least_bytes][:_MOST_CAUSES]
    parts = [
        phrase("{kind} +{size}", kind=phrase(_WORDS.get(kind, kind)), size=format_bytes(num_bytes))
        for kind, num_bytes in excesses
    ]
    rest = round(imbalance.excess_bytes) - sum(num_bytes for _, num_bytes in excesses)
    if parts and abs(rest) >= least_bytes:
        size = f"{'+' if rest > 0 else '−'}{format_bytes(abs(rest))}"
        parts.append(phrase("other kinds {size}", size=size))
    device = labels.get(imbalance.device) or phrase("device {number}", number=imbalance.device)
    words = phrase(
        "{held} on {device}, {usual} on the median of the others",
        held=format_bytes(imbalance.median_bytes + imbalance.excess_bytes),
        device=device,
        usual=format_bytes(imbalance.median_bytes),
    )
    message = _message(imbalance, device, listed(parts))
    return finding(CODE, message, Evidence(words), advice=phrase(_ADVICE.get(strategy or "", _OTHERWISE)))


def _message(imbalance: Imbalance, device: str, causes: str) -> str:
    size, ratio = format_bytes(imbalance.excess_bytes), imbalance.ratio
    if ratio is None and not causes:
        return phrase("{device} holds {size} more than the median of the others.", device=device, size=size)
    if ratio is None:
        return phrase(
            "{device} holds {size} more than the median of the others: {causes}.",
            device=device,
            size=size,
            causes=causes,
        )
    if not causes:
        return phrase(
            "{device} holds {size} more than the median of the others ({ratio:.1f}×).",
            device=device,
            size=size,
            ratio=ratio,
        )
    return phrase(
        "{device} holds {size} more than the median of the others ({ratio:.1f}×): {causes}.",
        device=device,
        size=size,
        ratio=ratio,
        causes=causes,
    )
