"""Build the rows of a comparison from columns of metrics, with the best values and differences from a
baseline.

Values that cannot be distinguished share a rank: values that are formatted alike, or whose interquartile
ranges overlap. If all values share the best rank, none is marked as best. If runs are not comparable
(differences.py), no value is best and no differences are shown; the row gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankdeck.base.phrases import join_phrases, phrase
from rankdeck.base.units import format_count
from rankdeck.compare import differences, formatting
from rankdeck.compare.differences import Difference
from rankdeck.compare.run_metrics import SENT_PREFIX, ComparedRun, MetricValue
from rankdeck.run.plan_lines import PREDICTED
from rankdeck.run.verified import ONE_DEVICE

LESS, MORE = "less", "more"


class RowSpec(NamedTuple):
    """Definition of a row. `better` is LESS, MORE or "" (not ranked); `ranking` is the kind of metric, a
    constant of differences.py."""

    key: str
    label: str
    unit: str
    better: str = ""
    ranking: str = differences.NOT_RANKED


TRAINING = phrase("Training")
ROW_SPECS: dict[str, tuple[RowSpec, ...]] = {
    TRAINING: (
        RowSpec("step", phrase("Steps done"), formatting.COUNT),
        RowSpec("loss", phrase("Last loss"), formatting.LOSS, LESS, differences.LAST_LOSS),
        RowSpec("lowest_loss", phrase("Lowest loss"), formatting.LOSS, LESS, differences.LOSS),
        RowSpec("held_out", phrase("Held-out loss"), formatting.LOSS, LESS, differences.LAST_LOSS),
        RowSpec("best_held_out", phrase("Best held-out loss"), formatting.LOSS, LESS, differences.LOSS),
        RowSpec("accuracy", phrase("Held-out accuracy"), formatting.ACCURACY, MORE, differences.LAST_LOSS),
        RowSpec("verified", phrase(ONE_DEVICE), formatting.TEXT),
    ),
    phrase("Speed"): (
        RowSpec("samples_per_s", phrase("Samples/s"), formatting.RATE, MORE, differences.TIME),
        RowSpec("steps_per_s", phrase("Steps/s"), formatting.RATE, MORE, differences.STEP_TIME),
        RowSpec("step_s", phrase("Step time"), formatting.STEP_TIME, LESS, differences.STEP_TIME),
        RowSpec("trained_s", phrase("Time to train"), formatting.DURATION, LESS, differences.TOTAL_TIME),
        RowSpec("wait", phrase("Waiting for the loader"), formatting.SHARE, LESS, differences.TIME),
        RowSpec("bubble", phrase("Bubble"), formatting.SHARE, LESS, differences.TIME),
        RowSpec("bubble_theory", phrase("Theoretical bubble"), formatting.SHARE),
        RowSpec("busy", phrase("Devices busy (median)"), formatting.SHARE, MORE, differences.TIME),
    ),
    phrase("Memory"): (
        RowSpec("peak", phrase("Peak, fullest device"), formatting.BYTES, LESS, differences.MEMORY),
        RowSpec(
            "peak_others", phrase("Peak, median of other devices"), formatting.BYTES, LESS, differences.MEMORY
        ),
        RowSpec("imbalance", phrase("Imbalance"), formatting.RATIO, LESS, differences.MEMORY),
        RowSpec("peak_sum", phrase("Peak, all devices"), formatting.BYTES, LESS, differences.MEMORY),
        RowSpec("predicted_peak", phrase("Fullest device, predicted"), formatting.BYTES),
        RowSpec("held", phrase("Attributed memory"), formatting.BYTES, LESS, differences.MEMORY),
    ),
    phrase("Communication"): (
        RowSpec("sent", phrase("Sent per step, all ranks"), formatting.BYTES, LESS, differences.BYTES),
        RowSpec(
            "sync_s", phrase("Gradient sync, slowest rank"), formatting.STEP_TIME, LESS, differences.STEP_TIME
        ),
    ),
}
"""Rows by group, in display order; groups and labels are phrases."""
_PREDICTED_KEYS = ("predicted_peak",)
_THEORETICAL_KEYS = ("bubble_theory",)
_MAX_AVERAGED_STEPS = 50
COMMON_STEP_KEY = "loss_at_common_step"


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison. `best` has the indices of the best runs, and `differences` has each run's
    difference from the baseline ("" if there is none to show).

    `not_ranked` is the reason why no value is best. `sources` are the sources of the values, by run.
    """

    key: str
    label: str
    group: str
    unit: str
    better: str
    metric_values: tuple[MetricValue | None, ...]
    best: tuple[int, ...]
    differences: tuple[str, ...]
    not_ranked: str
    sources: tuple[str, ...]

    def cell(self, index: int) -> str:
        return formatting.format_value(self.unit, self.metric_values[index])

    def detail(self, index: int) -> str:
        return formatting.format_detail(self.unit, self.metric_values[index])


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `baseline` is the index of the run that differences refer to."""

    runs: tuple[ComparedRun, ...]
    baseline: int
    rows: tuple[ComparisonRow, ...]
    config_differences: tuple[Difference, ...]
    other_differences: tuple[Difference, ...]

    def letter(self, index: int) -> str:
        """Return the letter (A to H) that stands for a run in charts."""
        return run_letter(index)

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    def rows_of(self, group: str) -> list[ComparisonRow]:
        return [row for row in self.rows if row.group == group]

    def sources_of(self, group: str) -> list[str]:
        """Return notes on the sources of a group's values."""
        return list(_sources(self.rows_of(group)))

    def not_ranked_notes_of(self, group: str) -> list[str]:
        """Return the reasons why some rows of a group have no best value."""
        return list(_not_ranked_notes(self.rows_of(group)))

    def notes_of(self, group: str) -> list[str]:
        return [*self.sources_of(group), *self.not_ranked_notes_of(group)]


def _sources(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield notes such as 'A, B: measured in rehearsal'; without letters if all runs share the source."""
    runs_by_maker: dict[str, dict[int, None]] = {}
    knowing: set[int] = set()
    for row in rows:
        for index, (source, metric_value) in enumerate(zip(row.sources, row.metric_values, strict=True)):
            if metric_value is not None and source:
                runs_by_maker.setdefault(source, {})[index] = None
                knowing.add(index)
    for source, indices in runs_by_maker.items():
        letters = ", ".join(map(run_letter, sorted(indices)))
        is_all = indices.keys() == knowing
        yield source if is_all else phrase("{letters}: {maker}", letters=letters, maker=source)


def _not_ranked_notes(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    labels: dict[str, list[str]] = {}
    for row in rows:
        if row.not_ranked:
            labels.setdefault(row.not_ranked, []).append(row.label)
    for reason, of in labels.items():
        if len(of) == len(rows):
            yield phrase("not ranked: {reason}", reason=reason)
        else:
            yield phrase("not ranked ({figures}): {reason}", figures=join_phrases(of), reason=reason)


def run_letter(index: int) -> str:
    return chr(ord("A") + index)


def compare_runs(runs: Sequence[ComparedRun], baseline: int = 0) -> Comparison:
    """Build a row for each metric that at least one run has, and list the differences between the runs.

    This is fast, because the metrics have already been computed.
    """
    assert 0 <= baseline < len(runs), baseline
    return Comparison(
        tuple(runs),
        baseline,
        tuple(_build_rows(runs, baseline)),
        tuple(differences.config_differences(runs)),
        tuple(differences.other_differences(runs)),
    )


def _build_rows(runs: Sequence[ComparedRun], baseline: int) -> Iterator[ComparisonRow]:
    for group, kinds in ROW_SPECS.items():
        for kind in kinds:
            if kind.key == "steps_per_s" and any("samples_per_s" in run.metrics for run in runs):
                continue  # repeats samples_per_s
            values = tuple(run.metrics.get(kind.key) for run in runs)
            if any(value is not None for value in values):
                yield _build_row(group, kind, runs, values, baseline)
            # The last losses of runs of different lengths are not ranked, so a row that can be ranked
            # follows.
            if kind.key == "loss" and (common := _common_loss(runs)) is not None:
                first, step, losses = common
                label = _common_label(format_count(first), format_count(step))
                at_step = RowSpec(COMMON_STEP_KEY, label, formatting.LOSS, LESS, differences.LOSS)
                yield _build_row(group, at_step, runs, losses, baseline)
            if kind.key == "sent":
                yield from _algorithm_rows(group, runs, baseline)


def _algorithm_rows(group: str, runs: Sequence[ComparedRun], baseline: int) -> Iterator[ComparisonRow]:
    """Yield rows for the bytes sent by each algorithm, if there is more than one algorithm."""
    names = sorted({key for run in runs for key in run.metrics if key.startswith(SENT_PREFIX)})
    for key in names if len(names) > 1 else ():
        kind = RowSpec(
            key, phrase("by {algorithm}", algorithm=key.removeprefix(SENT_PREFIX)), formatting.BYTES
        )
        yield _build_row(group, kind, runs, tuple(run.metrics.get(key) for run in runs), baseline)


def _common_label(first: str, last: str) -> str:
    if first == last:
        return phrase("Loss at step {step}", step=last)
    return phrase("Mean loss, steps {first} to {last}", first=first, last=last)


def _common_loss(runs: Sequence[ComparedRun]) -> tuple[int, int, tuple[MetricValue | None, ...]] | None:
    """Return (first step, last step, each run's mean loss) for the last few steps completed by every run.

    Return None if all runs have completed the same number of steps, or if fewer than two runs have losses in
    those last few steps.
    """
    steps = [run.value("step") for run in runs]
    reached = [step for step in steps if step is not None]
    if len(reached) < 2 or len(set(reached)) == 1:
        return None
    step = int(min(reached))
    # A mean over several steps, because single losses are noisy.
    first = step - max(1, min(_MAX_AVERAGED_STEPS, step // 5)) + 1
    losses = [
        run.mean_loss(first, step) if run_step else None for run, run_step in zip(runs, steps, strict=True)
    ]
    if sum(loss is not None for loss in losses) < 2:
        return None
    return first, step, tuple(None if loss is None else MetricValue(loss) for loss in losses)


def _build_row(
    group: str,
    kind: RowSpec,
    runs: Sequence[ComparedRun],
    values: tuple[MetricValue | None, ...],
    baseline: int,
) -> ComparisonRow:
    knowing = [run for run, value in zip(runs, values, strict=True) if value is not None]
    # Only runs that have this metric decide whether it can be ranked.
    unranked = differences.not_ranked_reason(kind.ranking, knowing) if kind.better else ""
    best = _best_indices(kind, values) if kind.better and not unranked else ()
    base = values[baseline]
    from_base = [
        formatting.format_difference(kind.unit, value, base)
        if kind.better and not unranked and index != baseline and value is not None and base is not None
        else ""
        for index, value in enumerate(values)
    ]
    return ComparisonRow(
        kind.key,
        kind.label,
        group,
        kind.unit,
        kind.better,
        values,
        best,
        tuple(from_base),
        unranked,
        tuple(_value_source(kind, run) for run in runs),
    )


def _value_source(kind: RowSpec, run: ComparedRun) -> str:
    if kind.key in _PREDICTED_KEYS:
        return phrase(PREDICTED)
    if kind.key in _THEORETICAL_KEYS:
        return phrase("from the schedule")
    if (kind.unit == formatting.BYTES and kind.ranking == differences.MEMORY) or kind.key == "imbalance":
        return run.memory_source_text
    if kind.ranking in (differences.TIME, differences.STEP_TIME, differences.TOTAL_TIME):
        return formatting.format_time_source(run)
    return phrase("measured")


def _best_indices(kind: RowSpec, values: Sequence[MetricValue | None]) -> tuple[int, ...]:
    """Return the indices of the best value and of the values that cannot be distinguished from it; empty if
    these are all of the known values."""
    known_values = {index: value for index, value in enumerate(values) if value is not None}
    if len(known_values) < 2:
        return ()
    choose = min if kind.better == LESS else max
    first = choose(known_values.values(), key=lambda metric: metric.value)
    best = tuple(index for index, value in known_values.items() if _is_tied(kind.unit, value, first))
    return best if len(best) < len(known_values) else ()


def _is_tied(unit: str, value: MetricValue, best: MetricValue) -> bool:
    if formatting.is_same_value(unit, value, best):
        return True
    halves = (value.low, value.high, best.low, best.high)
    # Without a spread, only equal values are tied.
    if None in halves:
        return False
    low, high, best_low, best_high = (half or 0.0 for half in halves)
    return low <= best_high and best_low <= high
