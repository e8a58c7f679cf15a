"""What a run of a person's own script tells, over all of its attempts; `Fold.script` is one of these.

A configured run reports itself: `is_observed` is False and everything but its metrics is empty or None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.merged_attempts import step_curve
from rankdeck.run.metrics import LoggedMetric, MetricKey
from rankdeck.run.script_steps import CollectiveTotals, RankSteps
from rankdeck.run.series import Curve, Floats, Series


@dataclass(frozen=True)
class ScriptMetric:
    """One name that the script has logged. `step` is that of `last`, in the script's own count, or where it
    gave none (or began to count anew) in the steps that were seen; the curve is over the same."""

    name: str
    through: str
    rank: int
    last: float | None
    step: int | None
    count: int
    curve: Curve
    attempts: Sequence[LoggedMetric] = field(repr=False, default=())

    def points(self) -> tuple[Floats, Floats, Floats]:
        """(steps, Unix times, values) as they were logged, of those that are held one by one."""
        steps, times, values = zip(*(metric.points() for metric in self.attempts), strict=True)
        return np.concatenate(steps), np.concatenate(times), np.concatenate(values)


class ScriptState:
    """Of the attempts of a fold."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._get_attempts = attempts
        self.step_rates = self._curve("step_rates")
        self.step_rate_ema = self._curve("step_rate_ema")
        self.waits = self._curve("waits")
        """All over steps; the waits are shares of a step that went by in the loader."""

    def _curve(self, name: str) -> Curve:
        return step_curve(self._get_attempts, name)

    @property
    def _script_attempts(self) -> list[Attempt]:
        return [one for one in self._get_attempts() if one.script_joiner is not None]

    @property
    def is_observed(self) -> bool:
        """Whether what is known of its steps was observed from outside, losses now and then; a loop of ours
        reports each."""
        return bool(self._script_attempts)

    @property
    def _latest_attempt(self) -> Attempt | None:
        """The newest attempt of which a rank was seen, else the newest."""
        attempts = self._script_attempts
        return next(
            (one for one in reversed(attempts) if one.script.observations), attempts[-1] if attempts else None
        )

    @property
    def observations(self) -> Mapping[int, events.Observed]:
        """What was seen of each rank, as it said last."""
        return self._latest_attempt.script.observations if self._latest_attempt is not None else {}

    @property
    def lead_observation(self) -> events.Observed | None:
        """What was seen of the lowest rank that told anything."""
        return self.observations[min(self.observations)] if self.observations else None

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first sampled step at which a rank's loss was not finite."""
        steps = (one.not_finite for one in self.observations.values())
        return min((step for step in steps if step is not None), default=None)

    @property
    def ranks(self) -> Mapping[int, events.RankStarted]:
        """The ranks that have stepped an optimizer."""
        return self._latest_attempt.script.ranks if self._latest_attempt is not None else {}

    @property
    def steps_by_rank(self) -> dict[int, RankSteps]:
        observed = self._latest_attempt and self._latest_attempt.script_joiner
        return dict(sorted(observed.ranks.items())) if observed else {}

    @property
    def standalone_ranks(self) -> list[int]:
        """Processes that trained by themselves beside the run's ranks."""
        observed = self._latest_attempt and self._latest_attempt.script_joiner
        return sorted(observed.standalone) if observed else []

    @property
    def first_step_time(self) -> float | None:
        """When any rank of any attempt had taken its first step (Unix seconds), replaced or not."""
        observed = (one.script_joiner for one in self._script_attempts)
        ends = [rank.first_ended for joiner in observed if joiner for rank in joiner.ranks.values()]
        return min((ended for ended in ends if ended is not None), default=None)

    @property
    def collectives(self) -> dict[int, CollectiveTotals]:
        """Those that the script called itself, by rank."""
        return (
            dict(sorted(self._latest_attempt.script.collectives.items()))
            if self._latest_attempt is not None
            else {}
        )

    @property
    def has_loader(self) -> bool:
        """Whether a loader was seen to feed its steps."""
        seen = any(one.dataset is not None for one in self.observations.values())
        return seen or any(rank.wait_s for rank in self.steps_by_rank.values())

    @property
    def wait_share(self) -> float | None:
        """The share of its steps that a rank waited for its loader, of the rank that waited most; None where
        no loader was seen."""
        shares = [rank.wait_s / rank.timed_s for rank in self.steps_by_rank.values() if rank.timed_s > 0]
        return max(shares, default=None) if self.has_loader else None

    @property
    def script_status(self) -> int | None:
        """What the script exited with, as a shell tells it; None while it runs."""
        ended = self._script_attempts[-1].ended if self._script_attempts else None
        return None if ended is None else ended.script_status

    @property
    def num_cut_names(self) -> int:
        """Names that were logged and are not kept."""
        return max((one.script.metrics.num_cut_names for one in self._get_attempts()), default=0)

    @property
    def metrics(self) -> dict[str, ScriptMetric]:
        """By name; with the library behind it where several logged under the same one. A configured run's
        own model logs as well."""
        keys = list(dict.fromkeys(key for one in self._get_attempts() for key in one.script.metrics.by_key))
        times_used = Counter(key.name for key in keys)
        labels = [key.name if times_used[key.name] == 1 else f"{key.name} ({key.through})" for key in keys]
        return {label: self._make_metric(label, key) for label, key in zip(labels, keys, strict=True)}

    def _make_metric(self, label: str, key: MetricKey) -> ScriptMetric:
        told = self._metric_attempts(key)
        newest = next((metric for metric in reversed(told) if len(metric)), None)

        def parts() -> list[Series]:
            return [metric.series for metric in self._metric_attempts(key)]

        return ScriptMetric(
            name=label,
            through=key.through,
            rank=told[-1].rank,
            last=None if newest is None else newest.last,
            step=None if newest is None else newest.last_step,
            count=sum(map(len, told)),
            curve=Curve(parts),
            attempts=told,
        )

    def _metric_attempts(self, key: MetricKey) -> list[LoggedMetric]:
        return [
            one.script.metrics.by_key[key] for one in self._get_attempts() if key in one.script.metrics.by_key
        ]

    def cut_metrics(self) -> None:
        """What a later attempt logs again replaces what earlier ones logged there."""
        least: dict[MetricKey, float] = {}
        for one in reversed(self._get_attempts()):
            for key, metric in one.script.metrics.by_key.items():
                if key in least:
                    metric.cut_before(least[key])
                if metric.first_x is not None:
                    least[key] = min(metric.first_x, least.get(key, np.inf))
