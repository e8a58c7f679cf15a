"""From a comparison to what its page shows: plain functions, no widgets made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdeck.base.units import format_count
from rankdeck.compare import bars, words
from rankdeck.compare.curves import BY
from rankdeck.compare.differences import Difference
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.table import Comparison, FigureRow, letter_of
from rankdeck_app.state.compared_run import FollowedRun
from rankdeck_app.state.comparing import Comparing
from rankdeck_app.views.compare.chips import ChipFigure
from rankdeck_app.widgets.paired_bars import PairedFigure
from rankdeck_app.widgets.side_by_side import SideCell, SideFigure, SideLine

BY_WORDS = {"step": "Step", "time": "Time", "samples": "Samples"}
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
        _facts(figures) if figures is not None else "being read…",
        place == comparing.baseline,
        tuple(others),
    )


def _facts(run: ComparedRun) -> str:
    """'DDP · 4 virtual · 120 / 500 steps'"""
    step, planned = run.value("step"), run.steps_planned
    of = f" / {format_count(planned)}" if planned and planned != step else ""
    at = f"{format_count(step)}{of} steps" if step is not None else "no step yet"
    known = (words.strategy_in_words(run), words.devices_in_words(run), at)
    return " · ".join(fact for fact in known if fact)


def figures(comparison: Comparison) -> SideFigure:
    """The table of figures with who made them."""
    lines: list[SideLine] = []
    for group in comparison.groups:
        lines.append(SideLine(group, is_group=True))
        lines += [_line(row) for row in comparison.rows_of(group)]
        lines += [SideLine(_sentence(note)) for note in comparison.notes_of(group)]
    return SideFigure(len(comparison.runs), comparison.baseline, tuple(lines))


def _line(row: FigureRow) -> SideLine:
    cells = [
        SideCell(
            row.cell(place),
            row.differences[place],
            place in row.best,
            row.figures[place] is None,
            _tooltip(row, place),
        )
        for place in range(len(row.figures))
    ]
    return SideLine(row.label, tuple(cells))


def _tooltip(row: FigureRow, place: int) -> str:
    parts = (
        f"{row.label}: {row.cell(place)}",
        row.more(place),
        row.differences[place] and f"{row.differences[place]} against the baseline",
        row.made_by[place] if row.figures[place] is not None else "not known",
        row.unranked and f"not ranked: {row.unranked}",
    )
    return "\n".join(part for part in parts if part)


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:]


def differences(comparison: Comparison) -> SideFigure:
    """Keys of the configurations, then what is none."""
    lines: list[SideLine] = []
    for heading, rows in (
        ("Configuration", comparison.configuration),
        ("Not configuration", comparison.rest),
    ):
        if rows:
            lines += [SideLine(heading, is_group=True), *map(_difference, rows)]
    if not lines:
        lines.append(SideLine("Nothing differs: the same configuration, devices and versions."))
    return SideFigure(len(comparison.runs), comparison.baseline, tuple(lines), is_text=True)


def _difference(row: Difference) -> SideLine:
    cells = (
        SideCell(words.UNKNOWN if one is None else " ".join(one.split()), is_dim=one is None)
        for one in row.values
    )
    return SideLine(row.key, tuple(cells))


def memory(comparison: Comparison) -> PairedFigure:
    return PairedFigure(tuple(bars.memory_bars(comparison)))


def memory_subtitle(comparison: Comparison, figure: PairedFigure) -> str:
    held = any(not device.is_peak for run in comparison.runs for device in run.devices)
    parts = ["at each device's peak"]
    if held:
        parts.append("of some what known owners hold")
    if figure.has_prediction:
        parts.append("tick: predicted")
    return ", ".join(parts)


def memory_source(comparison: Comparison) -> str:
    told = {(run.memory_source or "").partition(",")[0] for run in comparison.runs if run.memory_source}
    return told.pop() if len(told) == 1 else ""


def speed(comparison: Comparison) -> PairedFigure:
    return PairedFigure(tuple(bars.bar_charts(comparison)))


def speed_source(comparison: Comparison) -> str:
    told = {words.kind_in_words(run) for run in comparison.runs} - {""}
    return told.pop() if len(told) == 1 else ""


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
        values = ("" if figure is None else figure.value for figure in row.figures)
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
