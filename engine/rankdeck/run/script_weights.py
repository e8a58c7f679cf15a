"""Compare the weights of a user script's ranks, by the digests that each rank reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck import events

_MAX_WAITING = 64
"""Maximum number of steps whose digests are stored while some ranks have not reported theirs."""
_MAX_TRAININGS = 16
_MIN_EQUAL_STEP = 4
"""First step after which it is checked whether only some of the parameters differ."""


@dataclass(frozen=True)
class WeightDifference:
    """The parameters that differed between ranks after `step` (0: before the first step).

    `names` are their names; `num_parameters` were compared in total. `ranks` are the ranks that differed from
    the lowest rank, `rates` the learning rates by rank. `last_equal_step` is the last step after which all
    ranks were found equal; None if there was none.
    """

    step: int
    names: Sequence[str]
    num_parameters: int
    ranks: Sequence[int]
    last_equal_step: int | None
    rates: Mapping[int, float] = field(default_factory=dict)


@dataclass
class WeightComparison:
    """Comparison of the ranks' weights in one training run: pending digests, and the results so far."""

    difference: WeightDifference | None = None
    """The first difference; None if the ranks are equal, or became equal after they had differed, as they do
    if a script averages its weights now and then (local SGD)."""
    num_bytes: int | None = None
    """Size of the parameters."""
    left_out_names: Sequence[str] = ()
    """Parameters that differ although at least as many others have changed and are equal on all ranks."""
    equal_bytes: int = 0
    """Size of the parameters that are equal on all ranks."""
    is_averaged_late: bool = False
    """Whether ranks differed although they passed as many bytes to collectives between two steps as the
    weights have: the script averaged gradients that it had already applied."""
    _last_equal_step: int | None = None
    _has_become_equal: bool = False
    _described: dict[int, events.WeightDigests] = field(default_factory=dict)
    _waiting: dict[int, dict[int, events.WeightDigests]] = field(default_factory=dict)
    _first_digests: Sequence[int] = ()

    def add(self, event: events.WeightDigests, num_ranks: int) -> None:
        """Add one rank's report; compare the step once all `num_ranks` ranks have reported it."""
        if event.names is not None:
            self._described[event.rank] = event
            self.num_bytes = event.num_bytes
            return
        by_rank = self._waiting.setdefault(event.step, {})
        by_rank[event.rank] = event
        if num_ranks > 1 and len(by_rank) >= num_ranks:
            del self._waiting[event.step]
            self._compare(event.step, by_rank)
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[min(self._waiting)]

    def _compare(self, step: int, by_rank: dict[int, events.WeightDigests]) -> None:
        described = [self._described.get(rank) for rank in by_rank]
        first = described[0]
        # Ranks that hold other parameters (stages of a pipeline, one model each) cannot be compared.
        if first is None or any(
            other is None or other.names != first.names or other.sizes != first.sizes for other in described
        ):
            return
        lowest, names = by_rank[min(by_rank)].digests, first.names or []
        if any(len(event.digests) != len(names) for event in by_rank.values()):
            return
        different = [
            number
            for number in range(len(names))
            if len({event.digests[number] for event in by_rank.values()}) > 1
        ]
        self._first_digests = self._first_digests or lowest
        if not different:
            self._has_become_equal |= self.difference is not None
            self.difference, self._last_equal_step = None, step
            return
        if self._has_become_equal:
            return
        synced_bytes = min(event.synced_bytes for event in by_rank.values())
        self.is_averaged_late |= bool(self.num_bytes) and synced_bytes >= (self.num_bytes or 0)
        self._find_averaged(step, different, lowest, first)
        if self.difference is None:
            self.difference = WeightDifference(
                step,
                [names[number] for number in different],
                len(names),
                sorted(rank for rank, event in by_rank.items() if event.digests != lowest),
                self._last_equal_step,
                {rank: event.rate for rank, event in by_rank.items() if event.rate is not None},
            )

    def _find_averaged(
        self, step: int, different: Sequence[int], lowest: Sequence[int], described: events.WeightDigests
    ) -> None:
        """Find the parameters that the script does not average, although it averages others.

        Store their names in `left_out_names`, and the size of the equal parameters in `equal_bytes`.

        `different` lists the indices of the parameters that differ, `lowest` the digests of the lowest rank;
        `described` is the report with the parameters' names and sizes.
        """
        names, sizes = described.names or [], described.sizes or []
        equal = set(range(len(names))) - set(different)
        averaged = [
            number
            for number in sorted(equal)
            # The digests of two steps cover the same part only of a small parameter.
            if lowest[number] != self._first_digests[number]
            and described.max_elements is not None
            and sizes[number] <= described.max_elements
        ]
        if step >= _MIN_EQUAL_STEP:
            is_some = len(averaged) >= len(different)
            self.left_out_names = [names[number] for number in different] if is_some else []
            equal_share = sum(sizes[number] for number in equal) / max(1, sum(sizes))
            self.equal_bytes = round(equal_share * (self.num_bytes or 0))


@dataclass
class ScriptWeights:
    """Comparisons of the ranks' weights in each of a script's training runs."""

    trainings: dict[int, WeightComparison] = field(default_factory=dict)

    def add(self, event: events.WeightDigests, num_ranks: int) -> None:
        """Add one rank's report about one of the script's training runs."""
        if event.training in self.trainings or len(self.trainings) < _MAX_TRAININGS:
            self.trainings.setdefault(event.training, WeightComparison()).add(event, num_ranks)

    @property
    def differing(self) -> WeightComparison | None:
        """The comparison of the first training run in which ranks differ; None if there is none."""
        return next((found for found in self.trainings.values() if found.difference is not None), None)
