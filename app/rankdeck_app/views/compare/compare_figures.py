"""From a comparison to what its page shows: plain functions, no widgets made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_count
from rankdeck.compare import bars, words
from rankdeck.compare.bars import BarGroup
from rankdeck.compare.curves import BY
from rankdeck.compare.differences import Difference
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.table import TRAINING, Comparison, FigureRow, letter_of
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.comparing import Comparing, FollowedRun
from rankdeck_app.views.compare.chips import ChipFigure
from rankdeck_app.widgets.paired_bars import PairedFigure
from rankdeck_app.widgets.side_by_side import SideCell, SideFigure, SideLine

BY_WORDS = {
    "step": (marked("Step"), marked("Losses by step")),
    "time": (marked("Time"), marked("Losses by time")),
    "samples": (marked("Samples"), marked("Losses by samples")),
}
assert tuple(BY_WORDS) == BY


def chips(comparing: Comparing) -> list[ChipFigure]:
    return [_chip(comparing, place, run) for place, run in enumerate(comparing.runs)]


def _chip(comparing: Comparing, place: int, run: FollowedRun) -> ChipFigure:
    figures = run.figures
    others = [
        attempt for attempt in run.other_attempts if run.at._replace(attempt=attempt) not in comparing.ats
    ]
    return ChipFigure(
        run.at,
        place,
        figures.name if figures is not None else run.title,
        figures.outcome if figures is not None else "",
        _facts(figures) if figures is not None else tr("being read…"),
        place == comparing.baseline,
        tuple(others),
    )


def _facts(run: ComparedRun) -> str:
    """'DDP · 4 virtual · 120 / 500 steps'"""
    known = (words.strategy_in_words(run), words.devices_in_words(run), _steps(run))
    return " · ".join(spoken(fact) for fact in known if fact)


def _steps(run: ComparedRun) -> str:
    step, planned = run.value("step"), run.steps_planned
    if step is None:
        return tr("no step yet")
    if not planned or planned == step:
        return tr("{step} steps", step=format_count(step))
    return tr("{step} / {planned} steps", step=format_count(step), planned=format_count(planned))


def figures(comparison: Comparison) -> SideFigure:
    """The table of figures with who made them."""
    lines: list[SideLine] = []
    for group in comparison.groups:
        lines.append(SideLine(spoken(group), is_group=True, source=_made_by(comparison, group)))
        lines += [_line(row) for row in comparison.rows_of(group)]
        lines += [SideLine(_sentence(spoken(note))) for note in comparison.reasons_of(group)]
    return SideFigure(len(comparison.runs), comparison.baseline, tuple(lines))


def _made_by(comparison: Comparison, group: str) -> str:
    return "; ".join(map(spoken, comparison.makers_of(group)))


def loss_source(comparison: Comparison) -> str:
    return _made_by(comparison, TRAINING)


def _line(row: FigureRow) -> SideLine:
    cells = [
        SideCell(
            spoken(row.cell(place)),
            spoken(row.more(place) if row.unit == words.TEXT else row.differences[place]),
            place in row.best,
            row.figures[place] is None,
            _tooltip(row, place),
        )
        for place in range(len(row.figures))
    ]
    return SideLine(spoken(row.label), tuple(cells))


def _tooltip(row: FigureRow, place: int) -> str:
    difference, reason = spoken(row.differences[place]), spoken(row.unranked)
    parts = (
        f"{spoken(row.label)}: {spoken(row.cell(place))}",
        spoken(row.more(place)),
        difference and tr("{difference} against the baseline", difference=difference),
        spoken(row.made_by[place]) if row.figures[place] is not None else tr("not known"),
        reason and tr("not ranked: {reason}", reason=reason),
    )
    return "\n".join(part for part in parts if part)


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:]


def differences(comparison: Comparison) -> SideFigure:
    """Keys of the configurations, then what is none."""
    lines: list[SideLine] = []
    for heading, rows in (
        (tr("Configuration"), comparison.configuration),
        (tr("Not configuration"), comparison.rest),
    ):
        if rows:
            lines += [SideLine(heading, is_group=True), *map(_difference, rows)]
    if not lines:
        lines.append(SideLine(tr("Nothing differs: the same configuration, devices and versions.")))
    return SideFigure(len(comparison.runs), comparison.baseline, tuple(lines), is_text=True)


def _difference(row: Difference) -> SideLine:
    cells = (
        SideCell(words.UNKNOWN if one is None else " ".join(spoken(one).split()), is_dim=one is None)
        for one in row.values
    )
    return SideLine(spoken(row.key), tuple(cells))


def memory(comparison: Comparison) -> PairedFigure:
    return _spoken_bars(bars.memory_bars(comparison))


def memory_subtitle(comparison: Comparison, figure: PairedFigure) -> str:
    held = any(not device.is_peak for run in comparison.runs for device in run.devices)
    parts = [tr("at each device's peak")]
    if held:
        parts.append(tr("of some what known owners hold"))
    if figure.has_prediction:
        parts.append(tr("tick: predicted"))
    return ", ".join(parts)


def memory_source(comparison: Comparison) -> str:
    told = {run.memory_source for run in comparison.runs if run.memory_source}
    return tr(told.pop()) if len(told) == 1 else ""


def speed(comparison: Comparison) -> PairedFigure:
    return _spoken_bars(bars.bar_charts(comparison))


def _spoken_bars(groups: Sequence[BarGroup]) -> PairedFigure:
    return PairedFigure(
        tuple(
            BarGroup(
                spoken(group.label),
                [bar._replace(words=spoken(bar.words), note=spoken(bar.note)) for bar in group.bars],
            )
            for group in groups
        )
    )


def speed_source(comparison: Comparison) -> str:
    told = {words.kind_in_words(run) for run in comparison.runs} - {""}
    return spoken(told.pop()) if len(told) == 1 else ""


def figures_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    """CSV of the table: the numbers themselves."""
    return _csv(comparison, comparison.rows if comparison is not None else ())


def speed_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    rows = comparison.rows if comparison is not None else ()
    return _csv(comparison, [row for row in rows if row.key in bars.BARS])


def _csv(comparison: Comparison | None, rows: Sequence[FigureRow]) -> Iterator[Sequence[object]]:
    runs = comparison.runs if comparison is not None else ()
    names = (f"{letter_of(place)} {run.name}" for place, run in enumerate(runs))
    yield ("group", "figure", "unit", *names)
    for row in rows:
        values = ("" if figure is None else figure.text or figure.value for figure in row.figures)
        yield (row.group, row.label, row.unit, *values)


def memory_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    yield ("run", "device", "bytes", "predicted_bytes")
    for place, run in enumerate(comparison.runs if comparison is not None else ()):
        for device in run.devices:
            yield (letter_of(place), device.label, device.num_bytes, device.predicted_bytes)


def difference_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    if comparison is None:
        return
    yield ("key", *map(letter_of, range(len(comparison.runs))))
    for row in (*comparison.configuration, *comparison.rest):
        yield (row.key, *row.values)
