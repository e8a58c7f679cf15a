"""Builds the data of a comparison's page: plain functions, no widgets."""

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
    return [_make_chip(comparing, index, run) for index, run in enumerate(comparing.runs)]


def _make_chip(comparing: RunComparison, index: int, run: ComparisonRun) -> ChipData:
    compared = run.compared_run
    others = [
        attempt for attempt in run.other_attempts if run.ref._replace(attempt=attempt) not in comparing.refs
    ]
    return ChipData(
        run.ref,
        index,
        compared.name if compared is not None else run.title,
        compared.outcome if compared is not None else "",
        _facts(compared) if compared is not None else tr("loading…"),
        index == comparing.baseline,
        tuple(others),
    )


def _facts(run: ComparedRun) -> str:
    """Return a text such as 'DDP · 4 virtual · 120 / 500 steps'."""
    facts = (formatting.format_strategy(run), formatting.format_devices(run), _steps(run))
    return " · ".join(translate(fact) for fact in facts if fact)


def _steps(run: ComparedRun) -> str:
    step, planned = run.value("step"), run.steps_planned
    if step is None:
        return tr("no step yet")
    if not planned or planned == step:
        return tr("{step} steps", step=format_count(step))
    return tr("{step} / {planned} steps", step=format_count(step), planned=format_count(planned))


def metric_table(comparison: Comparison) -> ComparisonTableData:
    """Return the table of metrics with their sources."""
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
            translate(row.cell(index)),
            translate(row.detail(index) if row.unit == formatting.TEXT else row.differences[index]),
            index in row.best,
            row.metric_values[index] is None,
            _tooltip(row, index),
        )
        for index in range(len(row.metric_values))
    ]
    return ComparisonLine(translate(row.label), tuple(cells))


def _tooltip(row: ComparisonRow, index: int) -> str:
    difference, reason = translate(row.differences[index]), translate(row.not_ranked)
    texts = (
        f"{translate(row.label)}: {translate(row.cell(index))}",
        translate(row.detail(index)),
        difference and tr("{difference} relative to the baseline", difference=difference),
        translate(row.sources[index]) if row.metric_values[index] is not None else tr("not known"),
        reason and tr("not ranked: {reason}", reason=reason),
    )
    return "\n".join(text for text in texts if text)


def _capitalize(note: str) -> str:
    return note[:1].upper() + note[1:]


def difference_table(comparison: Comparison) -> ComparisonTableData:
    """Return a table of the configuration keys that differ, followed by the runs' other differences."""
    lines: list[ComparisonLine] = []
    for heading, rows in (
        (tr("Configuration"), comparison.config_differences),
        (tr("Other differences"), comparison.other_differences),
    ):
        if rows:
            lines += [ComparisonLine(heading, is_group=True), *map(_difference_line, rows)]
    if not lines:
        lines.append(ComparisonLine(tr("No differences: configuration, devices and versions are the same.")))
    return ComparisonTableData(len(comparison.runs), comparison.baseline, tuple(lines), is_text=True)


def _difference_line(row: Difference) -> ComparisonLine:
    cells = (
        ComparisonCell(
            formatting.UNKNOWN if value is None else " ".join(translate(value).split()), is_dim=value is None
        )
        for value in row.values
    )
    return ComparisonLine(translate(row.key), tuple(cells))


def memory_bars(comparison: Comparison) -> PairedBarsData:
    return _translate_bars(bar_charts.memory_bars(comparison))


def memory_subtitle(comparison: Comparison, data: PairedBarsData) -> str:
    has_owner_memory = any(not device.is_peak for run in comparison.runs for device in run.devices)
    texts = [tr("at each device's peak")]
    if has_owner_memory:
        texts.append(tr("for some devices, only memory with known owners"))
    if data.has_prediction:
        texts.append(tr("tick: predicted"))
    return ", ".join(texts)


def memory_source(comparison: Comparison) -> str:
    sources = {run.memory_source for run in comparison.runs if run.memory_source}
    # Runs with different sources have no common one to show.
    return tr(sources.pop()) if len(sources) == 1 else ""


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
    sources = {formatting.format_time_source(run) for run in comparison.runs} - {""}
    return translate(sources.pop()) if len(sources) == 1 else ""


def metric_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    """Yield the table of metrics as CSV rows, with unformatted numbers."""
    return _csv_rows(comparison, comparison.rows if comparison is not None else ())


def speed_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    rows = comparison.rows if comparison is not None else ()
    return _csv_rows(comparison, [row for row in rows if row.key in bar_charts.BAR_KEYS])


def _csv_rows(comparison: Comparison | None, rows: Sequence[ComparisonRow]) -> Iterator[Sequence[object]]:
    runs = comparison.runs if comparison is not None else ()
    names = (f"{run_letter(index)} {run.name}" for index, run in enumerate(runs))
    # CSV headers are the same in every language.
    yield ("group", "figure", "unit", *names)
    for row in rows:
        values = ("" if metric is None else metric.text or metric.value for metric in row.metric_values)
        yield (row.group, row.label, row.unit, *values)


def memory_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    yield ("run", "device", "bytes", "predicted_bytes")
    for index, run in enumerate(comparison.runs if comparison is not None else ()):
        for device in run.devices:
            yield (run_letter(index), device.label, device.num_bytes, device.predicted_bytes)


def difference_rows(comparison: Comparison | None) -> Iterator[Sequence[object]]:
    if comparison is None:
        return
    yield ("key", *map(run_letter, range(len(comparison.runs))))
    for row in (*comparison.config_differences, *comparison.other_differences):
        yield (row.key, *row.values)
