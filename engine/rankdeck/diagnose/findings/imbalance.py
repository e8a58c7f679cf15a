"""The finding of a run whose fullest device stands far above the others: how far, of what, and what to do.

The dashboard shows every difference; a finding is for one that costs something. While a run is followed it
comes once the difference is large, goes once it is clearly gone, and its figures follow only larger changes,
so that it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import listed, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.config.cures import EVENLY, STRATEGY
from rankdeck.diagnose.findings.seen import SeenRun, finding
from rankdeck.run.imbalance import Imbalance

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
