"""How far the lead device stands above the median of the others: the one figure that a DataParallel run is
opened for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rankdeck.report import NOTABLE_RATIO


@dataclass(frozen=True)
class Imbalance:
    """The lead device against the others. `ratio` is None when the others hold nothing."""

    device: int
    median_bytes: float
    excess_bytes: float
    ratio: float | None

    @property
    def is_notable(self) -> bool:
        """Whether it deserves the hot colour."""
        return self.excess_bytes > 0 and (self.ratio is None or self.ratio > NOTABLE_RATIO)


def imbalance_of(totals_bytes: Sequence[int | None]) -> Imbalance | None:
    """The imbalance of one total per device, or None below two known totals. The lead is the fullest device;
    where none stands out it is the first, so that the label does not wander among equals.
    """
    known = [(index, total) for index, total in enumerate(totals_bytes) if total is not None]
    if len(known) < 2:
        return None
    fullest = max(known, key=lambda item: item[1])[0]
    against = _against(known, fullest)
    return against if against.is_notable else _against(known, known[0][0])


def _against(known: Sequence[tuple[int, int]], device: int) -> Imbalance:
    own = next(total for index, total in known if index == device)
    middle = float(median(total for index, total in known if index != device))
    return Imbalance(device, middle, own - middle, own / middle if middle > 0 else None)
