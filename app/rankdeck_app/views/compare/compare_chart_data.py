"""From a comparison to what its page shows: plain functions, no widgets made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_count
from rankdeck.compare import bar_charts, formatting
from rankdeck.compare.bar_charts import BarGroup
from rankdeck.compare.curves import AXES
from rankdeck.compare.differences import Difference
from rankdeck.compare.run_metrics import ComparedRun
from rankdeck.compare.table import TRAINING, Comparison, ComparisonRow, run_letter
from rankdeck_app.language import tr, translate
from rankdeck_app.state.run_comparison import ComparisonRun, RunComparison
from rankdeck_app.views.compare.chips import ChipData
from rankdeck_app.widgets.comparison_table import ComparisonCell, ComparisonLine, ComparisonTableData
from rankdeck_app.widgets.paired_bars import PairedBarsData

AXIS_LABELS = {
    "step": (tr_noop("Step"), tr_noop("Losses by step")),
    "time": (tr_noop("Time"), tr_noop("Losses by time")),
    "samples": (tr_noop("Samples"), tr_noop("Losses by samples")),
}
assert tuple(AXIS_LABELS) == AXES


def chip_data(comparing: RunComparison) -> list[ChipData]:
    return [_make_chip(comparing, place, run) for place, run in enumerate(comparing.runs)]


def _make_chip(comparing: RunComparison, place: int, run: ComparisonRun) -> ChipData:
    figures = run.compared_run
    others = [
        attempt for attempt in run.other_attempts if run.ref._replace(attempt=attempt) not in comparing.refs
    ]
    return ChipData(
        run.ref,
        place,
        figures.name if figures is not None else run.title,
        figures.outcome if figures is not None else "",
        _facts(figures) if figures is not None else tr("being read…"),
        place == comparing.baseline,
        tuple(others),
    )


def _facts(run: ComparedRun) -> str:
    """'DDP · 4 virtual · 120 / 500 steps'"""
    known = (formatting.format_strategy(run), formatting.format_devices(run), _steps(run))
    return " · ".join(translate(fact) for fact in known if fact)


def _steps(run: ComparedRun) -> str:
    step, planned = run.value("step"), run.steps_planned
    if step is None:
        return tr("no step yet")
    if not planned or planned == step:
        return tr("{step} steps", step=format_count(step))
    return tr("{step} / {planned} steps", step=format_count(step), planned=format_count(planned))


def metric_table(comparison: Comparison) -> ComparisonTableData:
    """The table of figures with who made them."""
    lines: list[ComparisonLine] = []
    for group in comparison.groups:
        lines.append(ComparisonLine(translate(group), is_group=True, source=_sources_text(comparison, group)))
        lines += [_metric_line(row) for row in comparison.rows_of(group)]
        lines += [
            ComparisonLine(_capitalize(translate(note))) for note in comparison.not_ranked_notes_of(group)
        ]
    return ComparisonTableData(len(comparison.runs), comparison.baseline, tuple(lines))


def _sources_text(comparison: Comparison, group: str) -> str:
    return "; ".join(map(translate, comparison.sources_of(group)))


def loss_source(comparison: Comparison) -> str:
    return _sources_text(comparison, TRAINING)


def _metric_line(row: ComparisonRow) -> ComparisonLine:
    cells = [
        ComparisonCell(
            translate(row.cell(place)),
            translate(row.detail(place) if row.unit == formatting.TEXT else row.differences[place]),
            place in row.best,
            row.metric_values[place] is None,
            _tooltip(row, place),
        )
        for place in range(len(row.metric_values))
    ]
    return ComparisonLine(translate(row.label), tuple(cells))


def _tooltip(row: ComparisonRow, place: int) -> str:
    difference, reason = translate(row.differences[place]), translate(row.not_ranked)
    parts = (
        f"{translate(row.label)}: {translate(row.cell(place))}",
        translate(row.detail(place)),
        difference and tr("{difference} against the baseline", difference=difference),
        translate(row.sources[place]) if row.metric_values[place] is not None else tr("not known"),
        reason and tr("not ranked: {reason}", reason=reason),
    )
    return "\n".join(part for part in parts if part)


def _capitalize(note: str) -> str:
    return note[:1].upper() + note[1:]


def difference_table(comparison: Comparison) -> ComparisonTableData:
    """Keys of the configurations, then what is none."""
    lines: list[ComparisonLine] = []
    for heading, rows in (
        (tr("Configuration"), comparison.config_differences),
        (tr("Not configuration"), comparison.other_differences),
    ):
        if rows:
            lines += [ComparisonLine(heading, is_group=True), *map(_difference_line, rows)]
    if not lines:
        lines.append(ComparisonLine(tr("Nothing differs: the same configuration, devices and versions.")))
    return ComparisonTableData(len(comparison.runs), comparison.baseline, tuple(lines), is_text=True)


def _difference_line(row: Difference) -> ComparisonLine:
    cells = (
        ComparisonCell(
            formatting.UNKNOWN if one is None else " ".join(translate(one).split()), is_dim=one is None
        )
        for one in row.values
    )
    return ComparisonLine(translate(row.key), tuple(cells))


def memory_bars(comparison: Comparison) -> PairedBarsData:
    return _translate_bars(bar_charts.memory_bars(comparison))


def memory_subtitle(comparison: Comparison, figure: PairedBarsData) -> str:
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


def speed_bars(comparison: Comparison) -> PairedBarsData:
    return _translate_bars(bar_charts.bar_charts(comparison))


def _translate_bars(groups: Sequence[BarGroup]) -> PairedBarsData:
    return PairedBarsData(
        tuple(
            BarGroup(
                translate(group.label),
                [bar._replace(text=translate(bar.text), note=translate(bar.note)) for bar in group.bars],
            )
            for group in groups
        )
    )


def speed_source(comparison: Comparison) -> str:
    told = {formatting.format_time_source(run) for run in comparison.runs} - {""}
    return translate(told.pop()) if len(told) == 1 else ""


def metric_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    """CSV of the table: the numbers themselves."""
    return _csv_rows(comparison, comparison.rows if comparison is not None else ())


def speed_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    rows = comparison.rows if comparison is not None else ()
    return _csv_rows(comparison, [row for row in rows if row.key in bar_charts.BAR_KEYS])


def _csv_rows(comparison: Comparison | None, rows: Sequence[ComparisonRow]) -> Iterator[Sequence[object]]:
    runs = comparison.runs if comparison is not None else ()
    names = (f"{run_letter(place)} {run.name}" for place, run in enumerate(runs))
    yield ("group", "figure", "unit", *names)
    for row in rows:
        values = ("" if figure is None else figure.text or figure.value for figure in row.metric_values)
        yield (row.group, row.label, row.unit, *values)


def memory_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    yield ("run", "device", "bytes", "predicted_bytes")
    for place, run in enumerate(comparison.runs if comparison is not None else ()):
        for device in run.devices:
            yield (run_letter(place), device.label, device.num_bytes, device.predicted_bytes)


def difference_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    if comparison is None:
        return
    yield ("key", *map(run_letter, range(len(comparison.runs))))
    for row in (*comparison.config_differences, *comparison.other_differences):
        yield (row.key, *row.values)
