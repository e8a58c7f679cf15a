"""Columns of figures beside each other: rows as data, the best of each marked, differences from a baseline.

What cannot be told apart is not told apart: figures that read alike, or whose middle halves overlap, are the
best together, and where that is all of them none is. Where runs are not comparable (differences.py) no figure
is the best and none has a difference; the row says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankdeck.base.phrases import listed, phrase
from rankdeck.base.units import format_count
from rankdeck.compare import differences, words
from rankdeck.compare.differences import Difference
from rankdeck.compare.figures import SENT, ComparedRun, Figure
from rankdeck.run.plan_lines import PREDICTED
from rankdeck.run.verified import ONE_DEVICE

LESS, MORE = "less", "more"


class RowKind(NamedTuple):
    """A row of the table. `better` is LESS, MORE or "" where nothing is; `ranked` is a kind of ranking."""

    key: str
    label: str
    unit: str
    better: str = ""
    ranked: str = differences.NOTHING


TRAINING = phrase("Training")
ROWS: dict[str, tuple[RowKind, ...]] = {
    TRAINING: (
        RowKind("step", phrase("Steps done"), words.COUNT),
        RowKind("loss", phrase("Last loss"), words.LOSS, LESS, differences.LAST_LOSS),
        RowKind("lowest_loss", phrase("Lowest loss"), words.LOSS, LESS, differences.LOSS),
        RowKind("held_out", phrase("Held-out loss"), words.LOSS, LESS, differences.LAST_LOSS),
        RowKind("best_held_out", phrase("Best held-out loss"), words.LOSS, LESS, differences.LOSS),
        RowKind("accuracy", phrase("Held-out accuracy"), words.ACCURACY, MORE, differences.LAST_LOSS),
        RowKind("verified", phrase(ONE_DEVICE), words.TEXT),
    ),
    phrase("Speed"): (
        RowKind("samples_per_s", phrase("Samples/s"), words.RATE, MORE, differences.TIME),
        RowKind("steps_per_s", phrase("Steps/s"), words.RATE, MORE, differences.STEP_TIME),
        RowKind("step_s", phrase("Step time"), words.STEP_TIME, LESS, differences.STEP_TIME),
        RowKind("trained_s", phrase("Time to train"), words.DURATION, LESS, differences.TOTAL_TIME),
        RowKind("wait", phrase("Waiting for the loader"), words.SHARE, LESS, differences.TIME),
        RowKind("bubble", phrase("Bubble"), words.SHARE, LESS, differences.TIME),
        RowKind("bubble_theory", phrase("Bubble in theory"), words.SHARE),
        RowKind("busy", phrase("Devices busy (median)"), words.SHARE, MORE, differences.TIME),
    ),
    phrase("Memory"): (
        RowKind("peak", phrase("Peak, fullest device"), words.BYTES, LESS, differences.MEMORY),
        RowKind("peak_others", phrase("Peak, median of the others"), words.BYTES, LESS, differences.MEMORY),
        RowKind("imbalance", phrase("Imbalance"), words.RATIO, LESS, differences.MEMORY),
        RowKind("peak_sum", phrase("Peak, all devices"), words.BYTES, LESS, differences.MEMORY),
        RowKind("predicted_peak", phrase("Fullest device, predicted"), words.BYTES),
        RowKind("held", phrase("Held by known owners"), words.BYTES, LESS, differences.MEMORY),
    ),
    phrase("Communication"): (
        RowKind("sent", phrase("Sent per step, all ranks"), words.BYTES, LESS, differences.BYTES),
        RowKind(
            "sync_s", phrase("Gradient sync, slowest rank"), words.STEP_TIME, LESS, differences.STEP_TIME
        ),
    ),
}
"""By group, in the order in which they are shown; both are phrases."""
_PREDICTED = ("predicted_peak",)
_FROM_THEORY = ("bubble_theory",)
_MOST_AVERAGED = 50
COMMON_STEP = "loss_at_common_step"


@dataclass(frozen=True)
class FigureRow:
    """One row. `best` are places of runs, `differences` are from the baseline ("" where there is none to
    tell); `unranked` says why nothing is the best. `made_by`: who made the figure, by run."""

    key: str
    label: str
    group: str
    unit: str
    better: str
    figures: tuple[Figure | None, ...]
    best: tuple[int, ...]
    differences: tuple[str, ...]
    unranked: str
    made_by: tuple[str, ...]

    def cell(self, place: int) -> str:
        return words.in_words(self.unit, self.figures[place])

    def more(self, place: int) -> str:
        return words.more_of(self.unit, self.figures[place])


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other. `baseline` is the place of the one that differences are from."""

    runs: tuple[ComparedRun, ...]
    baseline: int
    rows: tuple[FigureRow, ...]
    configuration: tuple[Difference, ...]
    rest: tuple[Difference, ...]

    def letter(self, place: int) -> str:
        """A to H: what a run is called in a chart."""
        return letter_of(place)

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    def rows_of(self, group: str) -> list[FigureRow]:
        return [row for row in self.rows if row.group == group]

    def makers_of(self, group: str) -> list[str]:
        """Who made the figures of a group."""
        return list(_makers(self.rows_of(group)))

    def reasons_of(self, group: str) -> list[str]:
        """Why nothing is the best in some rows of a group."""
        return list(_reasons(self.rows_of(group)))

    def notes_of(self, group: str) -> list[str]:
        return [*self.makers_of(group), *self.reasons_of(group)]


def _makers(rows: Sequence[FigureRow]) -> Iterator[str]:
    """'A, B: measured in rehearsal'; without letters where it is so for all that know such a figure."""
    runs_by_maker: dict[str, dict[int, None]] = {}
    knowing: set[int] = set()
    for row in rows:
        for place, (made, figure) in enumerate(zip(row.made_by, row.figures, strict=True)):
            if figure is not None and made:
                runs_by_maker.setdefault(made, {})[place] = None
                knowing.add(place)
    for made, places in runs_by_maker.items():
        letters = ", ".join(map(letter_of, sorted(places)))
        is_all = places.keys() == knowing
        yield made if is_all else phrase("{letters}: {maker}", letters=letters, maker=made)


def _reasons(rows: Sequence[FigureRow]) -> Iterator[str]:
    labels: dict[str, list[str]] = {}
    for row in rows:
        if row.unranked:
            labels.setdefault(row.unranked, []).append(row.label)
    for reason, of in labels.items():
        if len(of) == len(rows):
            yield phrase("not ranked: {reason}", reason=reason)
        else:
            yield phrase("not ranked ({figures}): {reason}", figures=listed(of), reason=reason)


def letter_of(place: int) -> str:
    return chr(ord("A") + place)


def compare(runs: Sequence[ComparedRun], baseline: int = 0) -> Comparison:
    """Rows of which some run knows the figure, and what differs. Cheap: figures are made before."""
    assert 0 <= baseline < len(runs), baseline
    return Comparison(
        tuple(runs),
        baseline,
        tuple(_rows(runs, baseline)),
        tuple(differences.of_configurations(runs)),
        tuple(differences.of_the_rest(runs)),
    )


def _rows(runs: Sequence[ComparedRun], baseline: int) -> Iterator[FigureRow]:
    for group, kinds in ROWS.items():
        for kind in kinds:
            if kind.key == "steps_per_s" and any("samples_per_s" in run.figures for run in runs):
                continue  # the same said twice
            figures = tuple(run.figures.get(kind.key) for run in runs)
            if any(figure is not None for figure in figures):
                yield _row(group, kind, runs, figures, baseline)
            if kind.key == "loss" and (common := _common_loss(runs)) is not None:
                first, step, losses = common
                label = _common_label(format_count(first), format_count(step))
                at_step = RowKind(COMMON_STEP, label, words.LOSS, LESS, differences.LOSS)
                yield _row(group, at_step, runs, losses, baseline)
            if kind.key == "sent":
                yield from _by_algorithm(group, runs, baseline)


def _by_algorithm(group: str, runs: Sequence[ComparedRun], baseline: int) -> Iterator[FigureRow]:
    """What each algorithm sends, where a run has several or runs have different ones."""
    names = sorted({key for run in runs for key in run.figures if key.startswith(SENT)})
    for key in names if len(names) > 1 else ():
        kind = RowKind(key, phrase("by {algorithm}", algorithm=key.removeprefix(SENT)), words.BYTES)
        yield _row(group, kind, runs, tuple(run.figures.get(key) for run in runs), baseline)


def _common_label(first: str, last: str) -> str:
    if first == last:
        return phrase("Loss at step {step}", step=last)
    return phrase("Mean loss, steps {first} to {last}", first=first, last=last)


def _common_loss(runs: Sequence[ComparedRun]) -> tuple[int, int, tuple[Figure | None, ...]] | None:
    """The last steps that every run has reached, from one to another, and the mean losses of them; None where
    all runs stand there."""
    steps = [run.value("step") for run in runs]
    reached = [step for step in steps if step is not None]
    if len(reached) < 2 or len(set(reached)) == 1:
        return None
    step = int(min(reached))
    first = step - max(1, min(_MOST_AVERAGED, step // 5)) + 1
    losses = [run.mean_loss(first, step) if own else None for run, own in zip(runs, steps, strict=True)]
    if sum(loss is not None for loss in losses) < 2:
        return None
    return first, step, tuple(None if loss is None else Figure(loss) for loss in losses)


def _row(
    group: str,
    kind: RowKind,
    runs: Sequence[ComparedRun],
    figures: tuple[Figure | None, ...],
    baseline: int,
) -> FigureRow:
    knowing = [run for run, figure in zip(runs, figures, strict=True) if figure is not None]
    unranked = differences.why_not(kind.ranked, knowing) if kind.better else ""
    best = _best(kind, figures) if kind.better and not unranked else ()
    base = figures[baseline]
    from_base = [
        words.difference_in_words(kind.unit, figure, base)
        if kind.better and not unranked and place != baseline and figure is not None and base is not None
        else ""
        for place, figure in enumerate(figures)
    ]
    return FigureRow(
        kind.key,
        kind.label,
        group,
        kind.unit,
        kind.better,
        figures,
        best,
        tuple(from_base),
        unranked,
        tuple(_made_by(kind, run) for run in runs),
    )


def _made_by(kind: RowKind, run: ComparedRun) -> str:
    if kind.key in _PREDICTED:
        return phrase(PREDICTED)
    if kind.key in _FROM_THEORY:
        return phrase("from the schedule")
    if (kind.unit == words.BYTES and kind.ranked == differences.MEMORY) or kind.key == "imbalance":
        return run.memory_words
    if kind.ranked in (differences.TIME, differences.STEP_TIME, differences.TOTAL_TIME):
        return words.kind_in_words(run)
    return phrase("measured")


def _best(kind: RowKind, figures: Sequence[Figure | None]) -> tuple[int, ...]:
    """The places that are not told apart from the best; none where that is every one that is known."""
    known = {place: figure for place, figure in enumerate(figures) if figure is not None}
    if len(known) < 2:
        return ()
    choose = min if kind.better == LESS else max
    first = choose(known.values(), key=lambda figure: figure.value)
    best = tuple(place for place, figure in known.items() if _is_alike(kind.unit, figure, first))
    return best if len(best) < len(known) else ()


def _is_alike(unit: str, figure: Figure, best: Figure) -> bool:
    if words.are_alike(unit, figure, best):
        return True
    halves = (figure.low, figure.high, best.low, best.high)
    if None in halves:
        return False
    low, high, best_low, best_high = (half or 0.0 for half in halves)
    return low <= best_high and best_low <= high
