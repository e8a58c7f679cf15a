"""Compare the weights of a user script's ranks, by the digests that each rank reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankdeck import events

_MAX_WAITING = 64
"""Maximum number of steps for which digests of some ranks are kept until those of the others arrive."""
_MAX_TRAININGS = 16


@dataclass(frozen=True)
class WeightDifference:
    """The parameters that differed between ranks after `step` (0: before the first step).

    `names` are those that differed, of `num_parameters` that were compared. `ranks` are the ranks that
    differed from the lowest rank. `last_equal_step` is the last compared step before it; None if there was
    none.
    """

    step: int
    names: Sequence[str]
    num_parameters: int
    ranks: Sequence[int]
    last_equal_step: int | None


@dataclass
class WeightComparison:
    """Comparison of the ranks in one training: digests that are not compared yet, and what was found."""

    difference: WeightDifference | None = None
    """The first difference; None if the ranks are equal, or became equal after they had differed, as they do
    if a script averages its weights now and then (local SGD)."""
    num_bytes: int | None = None
    """Size of the parameters."""
    _last_equal_step: int | None = None
    _has_become_equal: bool = False
    _described: dict[int, events.WeightDigests] = field(default_factory=dict)
    _waiting: dict[int, dict[int, list[int]]] = field(default_factory=dict)

    def add(self, event: events.WeightDigests, num_ranks: int) -> None:
        """Add one rank's report; compare the step once all `num_ranks` ranks have reported it."""
        if event.names is not None:
            self._described[event.rank] = event
            self.num_bytes = event.num_bytes
            return
        by_rank = self._waiting.setdefault(event.step, {})
        by_rank[event.rank] = event.digests
        if num_ranks > 1 and len(by_rank) >= num_ranks:
            del self._waiting[event.step]
            self._compare(event.step, by_rank)
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[min(self._waiting)]

    def _compare(self, step: int, by_rank: dict[int, list[int]]) -> None:
        described = [self._described.get(rank) for rank in by_rank]
        first = described[0]
        # Ranks that hold other parameters (stages of a pipeline, one model each) cannot be compared.
        if first is None or any(
            other is None or other.names != first.names or other.sizes != first.sizes for other in described
        ):
            return
        lowest, names = by_rank[min(by_rank)], first.names or []
        different = [
            name
            for number, name in enumerate(names)
            if len({digests[number] if number < len(digests) else None for digests in by_rank.values()}) > 1
        ]
        if not different:
            self._has_become_equal |= self.difference is not None
            self.difference, self._last_equal_step = None, step
        elif self.difference is None and not self._has_become_equal:
            differing_ranks = sorted(rank for rank, digests in by_rank.items() if digests != lowest)
            self.difference = WeightDifference(
                step, different, len(names), differing_ranks, self._last_equal_step
            )


@dataclass
class ScriptWeights:
    """Comparisons of all trainings that a script ran one after the other."""

    trainings: dict[int, WeightComparison] = field(default_factory=dict)

    def add(self, event: events.WeightDigests, num_ranks: int) -> None:
        """Add one rank's report about one of the trainings."""
        if event.training in self.trainings or len(self.trainings) < _MAX_TRAININGS:
            self.trainings.setdefault(event.training, WeightComparison()).add(event, num_ranks)

    @property
    def differing(self) -> WeightComparison | None:
        """The first training whose ranks differ."""
        return next((found for found in self.trainings.values() if found.difference is not None), None)
