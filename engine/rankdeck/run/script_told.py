"""What one attempt at a person's own script told besides steps, memory and readings: what was seen of each
rank, what the script logged, which collectives it called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from rankdeck import events
from rankdeck.run.metrics import Metrics

_MOST_COLLECTIVES = 100
_TOO_MANY = 1 << 62
Number = TypeVar("Number", int, float)


@dataclass
class CollectiveTotals:
    """Of one rank, by the name of the collective: calls, bytes that it passed, seconds that they took."""

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, event: events.Collectives) -> None:
        _add(self.calls, event.calls)
        _add(self.num_bytes, event.num_bytes)
        _add(self.seconds, event.seconds)


def _add(totals: dict[str, Number], told: Mapping[str, Number]) -> None:
    for name, value in told.items():
        if not 0 <= value < _TOO_MANY:
            continue
        if name in totals:
            totals[name] += value
        elif len(totals) < _MOST_COLLECTIVES:
            totals[name] = value


@dataclass
class ScriptTold:
    """All by rank, the newest that each said."""

    ranks: dict[int, events.RankStarted] = field(default_factory=dict)
    seen: dict[int, events.Observed] = field(default_factory=dict)
    collectives: dict[int, CollectiveTotals] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    def add_collectives(self, event: events.Collectives) -> None:
        self.collectives.setdefault(event.rank, CollectiveTotals()).add(event)
