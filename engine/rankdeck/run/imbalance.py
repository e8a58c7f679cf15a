"""How far the fullest device stands above the median of the others: the one figure that a DataParallel run is
opened for.

The command line, the app and reports all say this one. run_state.py feeds it peaks, the app what is held now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rankdeck.base.phrases import tr_noop

BALANCED = tr_noop("balanced")
NOTABLE_RATIO = 1.1
"""Below this a difference is noise of the allocator or of an uneven last shard, and no device stands out."""


@dataclass(frozen=True)
class Imbalance:
    """The lead device against the others. `excess_bytes` is never negative; `ratio` is None when the others
    hold nothing. `num_others`: how many it is compared with; of others nothing is known, or they are idle.
    """

    device: int
    median_bytes: float
    excess_bytes: float
    ratio: float | None
    num_others: int = 1

    @property
    def is_notable(self) -> bool:
        return is_notable(self.excess_bytes, self.ratio)


def is_notable(excess_bytes: float, ratio: float | None) -> bool:
    """Whether a device stands out; where none does the devices are BALANCED."""
    return excess_bytes > 0 and (ratio is None or ratio > NOTABLE_RATIO)


def lead_device(imbalance: Imbalance | None) -> int | None:
    """The device that stands out, or None where none does."""
    return imbalance.device if imbalance is not None and imbalance.is_notable else None


def find_imbalance(bytes_by_device: Mapping[int, int | None]) -> Imbalance | None:
    """The imbalance of one figure per device, None below two known ones. Among equals the first one leads."""
    known = {device: size for device, size in bytes_by_device.items() if size is not None}
    if len(known) < 2:
        return None
    lead = max(known, key=lambda device: (known[device], -device))
    middle = float(median(size for device, size in known.items() if device != lead))
    ratio = known[lead] / middle if middle > 0 else None
    return Imbalance(lead, middle, known[lead] - middle, ratio, len(known) - 1)
