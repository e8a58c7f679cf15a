"""Columns of figures beside each other: rows as data, the best of each marked, differences from a baseline.

What cannot be told apart is not told apart: figures that read alike, or whose middle halves overlap, are the
best together, and where that is all of them none is. Where runs are not comparable (differences.py) no figure
is the best and none has a difference; the row says why.
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
    """A row of the table. `better` is LESS, MORE or "" where nothing is; `ranking` is a kind of ranking."""

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
        RowSpec("bubble_theory", phrase("Bubble in theory"), formatting.SHARE),
        RowSpec("busy", phrase("Devices busy (median)"), formatting.SHARE, MORE, differences.TIME),
    ),
    phrase("Memory"): (
        RowSpec("peak", phrase("Peak, fullest device"), formatting.BYTES, LESS, differences.MEMORY),
        RowSpec(
            "peak_others", phrase("Peak, median of the others"), formatting.BYTES, LESS, differences.MEMORY
        ),
        RowSpec("imbalance", phrase("Imbalance"), formatting.RATIO, LESS, differences.MEMORY),
        RowSpec("peak_sum", phrase("Peak, all devices"), formatting.BYTES, LESS, differences.MEMORY),
        RowSpec("predicted_peak", phrase("Fullest device, predicted"), formatting.BYTES),
        RowSpec("held", phrase("Held by known owners"), formatting.BYTES, LESS, differences.MEMORY),
    ),
    phrase("Communication"): (
        RowSpec("sent", phrase("Sent per step, all ranks"), formatting.BYTES, LESS, differences.BYTES),
        RowSpec(
            "sync_s", phrase("Gradient sync, slowest rank"), formatting.STEP_TIME, LESS, differences.STEP_TIME
        ),
    ),
}
"""By group, in the order in which they are shown; both are phrases."""
_PREDICTED_KEYS = ("predicted_peak",)
_THEORETICAL_KEYS = ("bubble_theory",)
_MAX_AVERAGED_STEPS = 50
COMMON_STEP_KEY = "loss_at_common_step"


@dataclass(frozen=True)
class ComparisonRow:
    """One row. `best` are places of runs, `differences` are from the baseline ("" where there is none to
    tell); `not_ranked` says why nothing is the best. `sources`: who made the figure, by run."""

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

    def cell(self, place: int) -> str:
        return formatting.format_value(self.unit, self.metric_values[place])

    def detail(self, place: int) -> str:
        return formatting.format_detail(self.unit, self.metric_values[place])


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other. `baseline` is the place of the one that differences are from."""

    runs: tuple[ComparedRun, ...]
    baseline: int
    rows: tuple[ComparisonRow, ...]
    config_differences: tuple[Difference, ...]
    other_differences: tuple[Difference, ...]

    def letter(self, place: int) -> str:
        """A to H: what a run is called in a chart."""
        return run_letter(place)

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    def rows_of(self, group: str) -> list[ComparisonRow]:
        return [row for row in self.rows if row.group == group]

    def sources_of(self, group: str) -> list[str]:
        """Who made the figures of a group."""
        return list(_sources(self.rows_of(group)))

    def not_ranked_notes_of(self, group: str) -> list[str]:
        """Why nothing is the best in some rows of a group."""
        return list(_not_ranked_notes(self.rows_of(group)))

    def notes_of(self, group: str) -> list[str]:
        return [*self.sources_of(group), *self.not_ranked_notes_of(group)]


def _sources(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """'A, B: measured in rehearsal'; without letters where it is so for all that know such a figure."""
    runs_by_maker: dict[str, dict[int, None]] = {}
    knowing: set[int] = set()
    for row in rows:
        for place, (made, figure) in enumerate(zip(row.sources, row.metric_values, strict=True)):
            if figure is not None and made:
                runs_by_maker.setdefault(made, {})[place] = None
                knowing.add(place)
    for made, places in runs_by_maker.items():
        letters = ", ".join(map(run_letter, sorted(places)))
        is_all = places.keys() == knowing
        yield made if is_all else phrase("{letters}: {maker}", letters=letters, maker=made)


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


def run_letter(place: int) -> str:
    return chr(ord("A") + place)


def compare_runs(runs: Sequence[ComparedRun], baseline: int = 0) -> Comparison:
    """Rows of which some run knows the figure, and what differs. Cheap: figures are made before."""
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
                continue  # the same said twice
            figures = tuple(run.metrics.get(kind.key) for run in runs)
            if any(figure is not None for figure in figures):
                yield _build_row(group, kind, runs, figures, baseline)
            if kind.key == "loss" and (common := _common_loss(runs)) is not None:
                first, step, losses = common
                label = _common_label(format_count(first), format_count(step))
                at_step = RowSpec(COMMON_STEP_KEY, label, formatting.LOSS, LESS, differences.LOSS)
                yield _build_row(group, at_step, runs, losses, baseline)
            if kind.key == "sent":
                yield from _algorithm_rows(group, runs, baseline)


def _algorithm_rows(group: str, runs: Sequence[ComparedRun], baseline: int) -> Iterator[ComparisonRow]:
    """What each algorithm sends, where a run has several or runs have different ones."""
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
    """The last steps that every run has reached, from one to another, and the mean losses of them; None where
    all runs stand there."""
    steps = [run.value("step") for run in runs]
    reached = [step for step in steps if step is not None]
    if len(reached) < 2 or len(set(reached)) == 1:
        return None
    step = int(min(reached))
    first = step - max(1, min(_MAX_AVERAGED_STEPS, step // 5)) + 1
    losses = [run.mean_loss(first, step) if own else None for run, own in zip(runs, steps, strict=True)]
    if sum(loss is not None for loss in losses) < 2:
        return None
    return first, step, tuple(None if loss is None else MetricValue(loss) for loss in losses)


def _build_row(
    group: str,
    kind: RowSpec,
    runs: Sequence[ComparedRun],
    figures: tuple[MetricValue | None, ...],
    baseline: int,
) -> ComparisonRow:
    knowing = [run for run, figure in zip(runs, figures, strict=True) if figure is not None]
    unranked = differences.not_ranked_reason(kind.ranking, knowing) if kind.better else ""
    best = _best_indices(kind, figures) if kind.better and not unranked else ()
    base = figures[baseline]
    from_base = [
        formatting.format_difference(kind.unit, figure, base)
        if kind.better and not unranked and place != baseline and figure is not None and base is not None
        else ""
        for place, figure in enumerate(figures)
    ]
    return ComparisonRow(
        kind.key,
        kind.label,
        group,
        kind.unit,
        kind.better,
        figures,
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


def _best_indices(kind: RowSpec, figures: Sequence[MetricValue | None]) -> tuple[int, ...]:
    """The places that are not told apart from the best; none where that is every one that is known."""
    known = {place: figure for place, figure in enumerate(figures) if figure is not None}
    if len(known) < 2:
        return ()
    choose = min if kind.better == LESS else max
    first = choose(known.values(), key=lambda figure: figure.value)
    best = tuple(place for place, figure in known.items() if _is_tied(kind.unit, figure, first))
    return best if len(best) < len(known) else ()


def _is_tied(unit: str, figure: MetricValue, best: MetricValue) -> bool:
    if formatting.is_same_value(unit, figure, best):
        return True
    halves = (figure.low, figure.high, best.low, best.high)
    if None in halves:
        return False
    low, high, best_low, best_high = (half or 0.0 for half in halves)
    return low <= best_high and best_low <= high
