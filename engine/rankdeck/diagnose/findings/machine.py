"""Rules about the machine's cores and memory. Read rule_context.py first."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import join_phrases, phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, format_percent, make_finding
from rankdeck.diagnose.fixes import EVEN_STRATEGY, STRATEGY_KEY
from rankdeck.run.imbalance import Imbalance

if TYPE_CHECKING:
    from rankdeck.run.devices import DeviceState


THREADS_RATIO = 1.5
"""Minimum number of threads per core for a run to be reported; with fewer (such as three ranks with three
threads each on eight cores) little speed is lost."""
WORKERS_RATIO = 2.0
"""Maximum number of worker processes per core; a few more than one per core help if reading waits for a
disk."""
MEMORY_TIGHT_SHARE = 0.95
"""Minimum share of a device's memory in use for the device to count as nearly full: a larger batch or another
process could use up the rest."""


def find_thread_oversubscription(context: RuleContext) -> Problem | None:
    """Find a CPU run with too many threads for its cores. Runs on GPUs are skipped, because torch's threads
    mostly sleep in them."""
    if context.attempt is None or context.cores is None or context.is_on_gpus:
        return None
    reported = {rank: context.attempt.script.ranks[rank].threads for rank in context.ranks}
    threads = {rank: count for rank, count in reported.items() if count is not None}
    total, max_threads = sum(threads.values()), max(threads.values(), default=0)
    if len(threads) < 2 or max_threads < 2 or total < THREADS_RATIO * context.cores:
        return None
    each = max(1, context.cores // len(threads))
    rank = max(threads, key=lambda key: threads[key])
    return make_finding(
        "thread-oversubscription",
        plural_phrase(
            tr_noop("{ranks} ranks compute with {total} threads on 1 core: the threads compete for it."),
            tr_noop("{ranks} ranks compute with {total} threads on {n} cores: the threads compete for them."),
            context.cores,
            ranks=len(threads),
            total=total,
        ),
        context.rank_evidence(
            rank, phrase("torch uses {n} threads in rank {rank}", n=max_threads, rank=rank)
        ),
        advice=phrase(
            "Set OMP_NUM_THREADS={each} for the run, or call torch.set_num_threads({each}).", each=each
        ),
    )


def find_too_many_workers(context: RuleContext) -> Problem | None:
    """Find too many worker processes, summed over all ranks' training loaders."""
    if context.cores is None:
        return None
    if context.config is not None:
        workers, num_ranks = context.config.data.workers, len(context.ranks)
        evidence = Evidence(
            phrase("data.workers = {workers}, for each of {ranks} ranks", workers=workers, ranks=num_ranks),
            context.config_file(),
        )
        total = workers * num_ranks
    else:
        workers_by_rank = {
            rank: observation.loader_workers or 0
            for rank, observation in context.state.script.observations.items()
        }
        total, workers = sum(workers_by_rank.values()), max(workers_by_rank.values(), default=0)
        num_ranks = max(1, len(workers_by_rank))
        rank = max(workers_by_rank, key=lambda key: workers_by_rank[key], default=0)
        evidence = context.rank_evidence(
            rank, phrase("num_workers={workers} in its DataLoader", workers=workers)
        )
    if total <= WORKERS_RATIO * context.cores:
        return None
    each = max(1, context.cores // num_ranks)
    return make_finding(
        "workers-too-many",
        plural_phrase(
            tr_noop(
                "{total} worker processes read data on 1 core: they compete with each other "
                "and with the ranks."
            ),
            tr_noop(
                "{total} worker processes read data on {n} cores: they compete with each other "
                "and with the ranks."
            ),
            context.cores,
            total=total,
        ),
        evidence,
        advice=phrase("Set data.workers = {each}.", each=each)
        if context.config is not None
        else phrase("Set num_workers={each} in the DataLoader.", each=each),
        changes={} if context.config is None else {"data.workers": each},
    )


class _MemoryUse(NamedTuple):
    share: float
    needed_bytes: float
    capacity_bytes: int


def find_tight_memory(context: RuleContext) -> Problem | None:
    """Find a device that was nearly full, counting the peak memory of its tensors and the memory outside
    torch's allocator.

    Memory that the allocator merely caches counts as free.
    """
    capacity_bytes = None if context.config is None else context.config.capacity_bytes
    memory_uses = {
        device.device: full
        for device in context.state.devices.values()
        if (full := _memory_use(device, capacity_bytes)) is not None
    }
    fullest = max(memory_uses, key=lambda index: memory_uses[index].share, default=None)
    if fullest is None or not MEMORY_TIGHT_SHARE <= memory_uses[fullest].share <= 1.0:
        return None
    full, device = memory_uses[fullest], context.state.devices[fullest]
    accumulate = 1 if context.config is None else context.config.train.accumulate
    return make_finding(
        "memory-tight",
        phrase(
            "{device}'s memory is {share} full at its peak: a single longer batch could exhaust it.",
            device=device.label,
            share=format_percent(full.share),
        ),
        Evidence(
            phrase(
                "{needed} of {capacity}, in step {step}",
                needed=format_bytes(full.needed_bytes),
                capacity=format_bytes(full.capacity_bytes),
                step=device.peak.step if device.peak is not None else 0,
            )
        ),
        advice=phrase(
            "Split the batch into more micro-batches: train.accumulate = {parts}.", parts=2 * accumulate
        )
        if context.config is not None
        else phrase("Use a smaller batch per rank and accumulate gradients, or checkpoint activations."),
        changes={} if context.config is None else {"train.accumulate": 2 * accumulate},
    )


def _memory_use(device: DeviceState, pretended_bytes: int | None) -> _MemoryUse | None:
    if device.peak_bytes is None:
        return None
    if device.kind == "virtual":
        if not pretended_bytes:
            return None
        return _MemoryUse(device.peak_bytes / pretended_bytes, device.peak_bytes, pretended_bytes)
    memory, info = device.memory, device.info
    if info is None or not info.total_bytes or memory is None or memory.reserved_bytes is None:
        return None
    # Used on the device but not reserved by torch: the CUDA context, NCCL, and other processes.
    beside_bytes = max(0, (device.used_bytes or 0) - memory.reserved_bytes)
    capacity_bytes = info.total_bytes - (info.driver_bytes or 0)
    needed_bytes = device.peak_bytes + beside_bytes
    return _MemoryUse(needed_bytes / capacity_bytes, needed_bytes, capacity_bytes)


RULES = (
    FindingRule("thread-oversubscription", find_thread_oversubscription),
    FindingRule("workers-too-many", find_too_many_workers),
    FindingRule("memory-tight", find_tight_memory),
)


# The imbalance finding: how much more the fullest device holds than the others, of what, and what to do.
#
# The dashboard shows every difference; a finding is for one that costs something. While a run is followed,
# hysteresis keeps the finding from flickering, and its numbers follow only larger changes, so that it can be
# read.

IMBALANCE_CODE = "imbalance"
# Hysteresis: the finding appears at the first ratio and disappears below the second.
ALERT_RATIO, CLEAR_RATIO = 1.5, 1.3
MIN_EXCESS_BYTES = 1 << 20
"""Minimum excess of a device's memory over that of the other devices for an alert; a smaller excess does not
matter."""
_MAX_CAUSES = 3
_UPDATE_SHARE = 0.05
_MIN_CAUSE_SHARE = 0.01
"""Minimum share of the excess for a memory kind to be listed as a cause."""

_ADVICE = {
    "dp": tr_noop(
        "DataParallel keeps the optimizer state, gradients and gathered outputs on its first "
        "device. With DDP all devices hold the same amount."
    ),
    "model": tr_noop(
        "The layers are split unevenly: set strategy.balance to the kind that takes the most memory "
        "(parameters or activations)."
    ),
    "pipeline": tr_noop(
        "The stages differ in memory: set strategy.balance or strategy.cuts. 1f1b keeps fewer "
        "microbatches in flight than gpipe."
    ),
}
_KIND_TEXTS = {"gathered": tr_noop("gathered outputs")}
_DEFAULT_ADVICE = tr_noop(
    "Compare the devices' memory by kind to see which kinds take more memory on this device."
)


def excess_by_kind(kinds: Mapping[int, Mapping[str, int]], lead: int) -> list[tuple[str, int]]:
    """Return (kind, bytes of that kind by which device `lead` exceeds the median of the other devices), the
    largest excess first."""
    others = [by_kind for device, by_kind in kinds.items() if device != lead]
    if lead not in kinds or not others:
        return []
    excesses = []
    for kind in kinds[lead]:
        median_bytes = median(by_kind.get(kind, 0) for by_kind in others)
        excesses.append((kind, int(kinds[lead][kind] - median_bytes)))
    return sorted((item for item in excesses if item[1] > 0), key=lambda item: -item[1])


class ImbalanceAlert:
    """The imbalance finding of one run; `update` returns the current problem, or None."""

    def __init__(self) -> None:
        self._current: Problem | None = None
        self._excess_bytes = 0.0
        self._device = -1

    def update(
        self,
        imbalance: Imbalance | None,
        labels: Mapping[int, str],
        kinds: Mapping[int, Mapping[str, int]],
        strategy: str | None,
        *,
        can_change: bool = False,
    ) -> Problem | None:
        """Return the problem to show for `imbalance`; None if `imbalance` is None or too small.

        `labels` and `kinds` (bytes by kind, where known) are keyed by device. `can_change`: the strategy is
        set in a configuration, not in a script.
        """
        if imbalance is None or not self._is_significant(imbalance):
            self._current = None
            return None
        is_news = abs(imbalance.excess_bytes - self._excess_bytes) > _UPDATE_SHARE * self._excess_bytes
        if self._current is None or is_news or imbalance.device != self._device:
            self._excess_bytes, self._device = imbalance.excess_bytes, imbalance.device
            better = EVEN_STRATEGY.get(strategy or "") if can_change else None
            changes = {} if better is None else {STRATEGY_KEY: better}
            self._current = _build_problem(imbalance, labels, kinds, strategy).replace_fields(cure=changes)
        return self._current

    def check(self, context: RuleContext) -> Problem | None:
        """Update the alert from the peaks of a run's devices; return the current problem, or None."""
        devices = context.state.devices
        return self.update(
            context.state.imbalance(),
            {device_index: device.label for device_index, device in devices.items()},
            {
                device_index: by_kind
                for device_index, device_state in devices.items()
                if (by_kind := device_state.peak_by_kind) is not None
            },
            _strategy_of(context),
            can_change=context.config is not None,
        )

    def _is_significant(self, imbalance: Imbalance) -> bool:
        min_ratio = ALERT_RATIO if self._current is None else CLEAR_RATIO
        is_far = imbalance.ratio is None or imbalance.ratio >= min_ratio
        return is_far and imbalance.excess_bytes >= MIN_EXCESS_BYTES


def _strategy_of(context: RuleContext) -> str | None:
    """Return the run's strategy; for a script, the one that its parallel wrapper corresponds to."""
    lead, started = context.state.script.lead_observation, context.state.started
    if lead is not None and lead.wrapper == "DataParallel":
        return "dp"
    return started.strategy if started is not None else None


def _build_problem(
    imbalance: Imbalance,
    labels: Mapping[int, str],
    kinds: Mapping[int, Mapping[str, int]],
    strategy: str | None,
) -> Problem:
    least_bytes = _MIN_CAUSE_SHARE * imbalance.excess_bytes
    excesses = [item for item in excess_by_kind(kinds, imbalance.device) if item[1] >= least_bytes][
        :_MAX_CAUSES
    ]
    causes = [
        phrase("{kind} +{size}", kind=phrase(_KIND_TEXTS.get(kind, kind)), size=format_bytes(num_bytes))
        for kind, num_bytes in excesses
    ]
    rest = round(imbalance.excess_bytes) - sum(num_bytes for _, num_bytes in excesses)
    if causes and abs(rest) >= least_bytes:
        size = f"{'+' if rest > 0 else '−'}{format_bytes(abs(rest))}"
        causes.append(phrase("other kinds {size}", size=size))
    device = labels.get(imbalance.device) or phrase("device {number}", number=imbalance.device)
    text = phrase(
        "{held} on {device}, median of {usual} on the other devices",
        held=format_bytes(imbalance.median_bytes + imbalance.excess_bytes),
        device=device,
        usual=format_bytes(imbalance.median_bytes),
    )
    message = _message(imbalance, device, join_phrases(causes))
    return make_finding(
        IMBALANCE_CODE, message, Evidence(text), advice=phrase(_ADVICE.get(strategy or "", _DEFAULT_ADVICE))
    )


def _message(imbalance: Imbalance, device: str, causes: str) -> str:
    size, ratio = format_bytes(imbalance.excess_bytes), imbalance.ratio
    if ratio is None and not causes:
        return phrase(
            "{device} holds {size} more than the median of the other devices.", device=device, size=size
        )
    if ratio is None:
        return phrase(
            "{device} holds {size} more than the median of the other devices: {causes}.",
            device=device,
            size=size,
            causes=causes,
        )
    if not causes:
        return phrase(
            "{device} holds {size} more than the median of the other devices ({ratio:.1f}×).",
            device=device,
            size=size,
            ratio=ratio,
        )
    return phrase(
        "{device} holds {size} more than the median of the other devices ({ratio:.1f}×): {causes}.",
        device=device,
        size=size,
        ratio=ratio,
        causes=causes,
    )
