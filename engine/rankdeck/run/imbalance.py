"""Compare the memory of the fullest device with the median of the other devices.

This comparison is the key result of a DataParallel run, and the command line, the app and reports all show
it. run_state.py computes it from peaks; the app computes it from current memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rankdeck.base.phrases import tr_noop

BALANCED = tr_noop("balanced")
NOTABLE_RATIO = 1.1
"""Ratio of lead to median up to which the allocator or an uneven last shard alone may explain the
difference."""


@dataclass(frozen=True)
class Imbalance:
    """Comparison of the lead (fullest) device with the others.

    `excess_bytes` (lead minus median) is never negative; `ratio` (lead to median) is None if the median is 0.
    `num_others` is the number of devices that the lead is compared with; it excludes devices that are idle or
    whose memory is unknown.
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
    """Check whether an imbalance is large enough to report; otherwise, devices are described as BALANCED.

    The arguments are the fields of `Imbalance` with the same names.
    """
    return excess_bytes > 0 and (ratio is None or ratio > NOTABLE_RATIO)


def lead_device(imbalance: Imbalance | None) -> int | None:
    """Return the lead device if the imbalance is notable, else None."""
    return imbalance.device if imbalance is not None and imbalance.is_notable else None


def find_imbalance(bytes_by_device: Mapping[int, int | None]) -> Imbalance | None:
    """Return the imbalance of the devices' memory; None if fewer than two devices have a known value.

    If several devices have the largest value, the first one is the lead.
    """
    known_bytes = {device: size for device, size in bytes_by_device.items() if size is not None}
    if len(known_bytes) < 2:
        return None
    lead = max(known_bytes, key=lambda device: (known_bytes[device], -device))
    middle = float(median(size for device, size in known_bytes.items() if device != lead))
    ratio = known_bytes[lead] / middle if middle > 0 else None
    return Imbalance(lead, middle, known_bytes[lead] - middle, ratio, len(known_bytes) - 1)
