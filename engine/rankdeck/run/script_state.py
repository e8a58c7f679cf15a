"""Collect the observations of a user script across all attempts of its run; `RunState.script` is a
`ScriptState`.

A configured run is not observed: `is_observed` is False and everything except its metrics is empty or None.
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
from rankdeck.run.script_weights import ScriptWeights
from rankdeck.run.series import Curve, Floats, Series


@dataclass(frozen=True)
class ScriptMetric:
    """One metric that the script has logged. `last` is the newest value, logged at `step`; the x axis of
    `curve` uses the same step numbers.

    Steps are numbered by the script; if it passed no numbers or restarted its count, observed steps are used.
    """

    name: str
    through: str
    rank: int
    last: float | None
    step: int | None
    count: int
    curve: Curve
    attempts: Sequence[LoggedMetric] = field(repr=False, default=())

    def points(self) -> tuple[Floats, Floats, Floats]:
        """Return (steps, Unix times, values) of the logged points that are still stored individually."""
        steps, times, values = zip(*(metric.points() for metric in self.attempts), strict=True)
        return np.concatenate(steps), np.concatenate(times), np.concatenate(values)


class ScriptState:
    """Observations of a user script across a run's attempts."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._get_attempts = attempts
        self.step_rates = self._curve("step_rates")
        self.step_rate_ema = self._curve("step_rate_ema")
        self.waits = self._curve("waits")
        """Share of each step spent waiting for the data loader. The x of this curve is the step, as in
        `step_rates` and `step_rate_ema`."""

    def _curve(self, name: str) -> Curve:
        return step_curve(self._get_attempts, name)

    @property
    def _script_attempts(self) -> list[Attempt]:
        return [attempt for attempt in self._get_attempts() if attempt.script_joiner is not None]

    @property
    def is_observed(self) -> bool:
        """Whether the steps were observed from outside, with sampled losses; a configured run reports every
        loss itself."""
        return bool(self._script_attempts)

    @property
    def _latest_attempt(self) -> Attempt | None:
        """The newest attempt with an observed rank, or the newest attempt if none has one."""
        attempts = self._script_attempts
        return next(
            (attempt for attempt in reversed(attempts) if attempt.script.observations),
            attempts[-1] if attempts else None,
        )

    @property
    def observations(self) -> Mapping[int, events.Observed]:
        """The newest observation of each rank."""
        return self._latest_attempt.script.observations if self._latest_attempt is not None else {}

    @property
    def lead_observation(self) -> events.Observed | None:
        """The observation of the lowest rank that reported one."""
        return self.observations[min(self.observations)] if self.observations else None

    @property
    def anomalies(self) -> Mapping[str, Mapping[int, Sequence[events.Anomaly]]]:
        """Anomalies that were reported in the newest observed attempt, by code and rank."""
        return self._latest_attempt.script.anomalies if self._latest_attempt is not None else {}

    @property
    def weights(self) -> ScriptWeights:
        """Comparisons of the ranks' weights in the newest observed attempt."""
        attempt = self._latest_attempt
        return ScriptWeights() if attempt is None else attempt.script.weights

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first sampled step in which any rank's loss was NaN or infinite."""
        steps = (observation.not_finite for observation in self.observations.values())
        return min((step for step in steps if step is not None), default=None)

    @property
    def ranks(self) -> Mapping[int, events.RankStarted]:
        """Start events of the ranks that have stepped an optimizer."""
        return self._latest_attempt.script.ranks if self._latest_attempt is not None else {}

    @property
    def steps_by_rank(self) -> dict[int, RankSteps]:
        observed = self._latest_attempt and self._latest_attempt.script_joiner
        return dict(sorted(observed.ranks.items())) if observed else {}

    @property
    def standalone_ranks(self) -> list[int]:
        """Rank numbers of processes that train on their own, alongside the run's ranks."""
        observed = self._latest_attempt and self._latest_attempt.script_joiner
        return sorted(observed.standalone) if observed else []

    @property
    def first_step_time(self) -> float | None:
        """The earliest time (Unix seconds) at which any rank finished a step in any attempt, even if a later
        attempt repeated that step."""
        observed = (attempt.script_joiner for attempt in self._script_attempts)
        ends = [rank.first_ended for joiner in observed if joiner for rank in joiner.ranks.values()]
        return min((ended for ended in ends if ended is not None), default=None)

    @property
    def collectives(self) -> dict[int, CollectiveTotals]:
        """Collectives that the script itself called, by rank."""
        return (
            dict(sorted(self._latest_attempt.script.collectives.items()))
            if self._latest_attempt is not None
            else {}
        )

    @property
    def has_loader(self) -> bool:
        """Whether a data loader was observed to feed the steps."""
        has_dataset = any(observation.dataset is not None for observation in self.observations.values())
        return has_dataset or any(rank.wait_s for rank in self.steps_by_rank.values())

    @property
    def wait_share(self) -> float | None:
        """Largest share of step time that any rank spent waiting for its data loader; None without a
        loader."""
        shares = [rank.wait_s / rank.timed_s for rank in self.steps_by_rank.values() if rank.timed_s > 0]
        return max(shares, default=None) if self.has_loader else None

    @property
    def script_status(self) -> int | None:
        """The script's exit status as a shell reports it; None while the script is running."""
        ended = self._script_attempts[-1].ended if self._script_attempts else None
        return None if ended is None else ended.script_status

    @property
    def num_cut_names(self) -> int:
        """Number of metric names whose logged values are not stored."""
        return max((attempt.script.metrics.num_cut_names for attempt in self._get_attempts()), default=0)

    @property
    def metrics(self) -> dict[str, ScriptMetric]:
        """Metrics by name; if several libraries logged a name, the library's name is appended to it.

        In a configured run, the user's own model can log metrics.
        """
        keys = list(
            dict.fromkeys(key for attempt in self._get_attempts() for key in attempt.script.metrics.by_key)
        )
        times_used = Counter(key.name for key in keys)
        labels = [key.name if times_used[key.name] == 1 else f"{key.name} ({key.through})" for key in keys]
        return {label: self._make_metric(label, key) for label, key in zip(labels, keys, strict=True)}

    def _make_metric(self, label: str, key: MetricKey) -> ScriptMetric:
        metrics = self._metric_attempts(key)
        newest = next((metric for metric in reversed(metrics) if len(metric)), None)

        def list_series() -> list[Series]:
            return [metric.series for metric in self._metric_attempts(key)]

        return ScriptMetric(
            name=label,
            through=key.through,
            rank=metrics[-1].rank,
            last=None if newest is None else newest.last,
            step=None if newest is None else newest.last_step,
            count=sum(map(len, metrics)),
            curve=Curve(list_series),
            attempts=metrics,
        )

    def _metric_attempts(self, key: MetricKey) -> list[LoggedMetric]:
        return [
            attempt.script.metrics.by_key[key]
            for attempt in self._get_attempts()
            if key in attempt.script.metrics.by_key
        ]

    def cut_metrics(self) -> None:
        """Discard values of earlier attempts that a later attempt logs again."""
        first_x: dict[MetricKey, float] = {}
        for attempt in reversed(self._get_attempts()):
            for key, metric in attempt.script.metrics.by_key.items():
                if key in first_x:
                    metric.cut_before(first_x[key])
                if metric.first_x is not None:
                    first_x[key] = min(metric.first_x, first_x.get(key, np.inf))
