"""Print a comparison in the terminal: the runs, their metrics side by side, losses, and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdeck.base.units import format_clock, format_count, format_loss
from rankdeck.cli import console
from rankdeck.cli.formatting import empty_table, one_line
from rankdeck.cli.summary import outcome_style
from rankdeck.compare.curves import LossCurve
from rankdeck.compare.differences import Difference, kind_mismatch
from rankdeck.compare.formatting import TEXT, UNKNOWN, format_devices, format_strategy, shorten_home
from rankdeck.compare.table import Comparison, ComparisonRow

_NUM_POINTS = 5
_MAX_VALUE_LENGTH = 200
_MAX_DETAIL_LENGTH = 28
_BEST_MARK = "*"
_AXIS_TEMPLATES = {"step": "step {}", "time": "after {}", "samples": "{} samples"}


def print_comparison(comparison: Comparison, by: str, lines: Sequence[LossCurve]) -> None:
    """Print the comparison, with each loss curve reduced to a few values."""
    out = console.out()
    out.print(_runs_table(comparison))
    for group in comparison.groups:
        _print_group(out, comparison, group)
    _print_losses(out, comparison, by, lines)
    _print_differences(out, comparison, "configuration", comparison.config_differences)
    _print_differences(out, comparison, "outside the configuration", comparison.other_differences)
    if any(row.best for row in comparison.rows):
        out.print(f"\n{_BEST_MARK} best, or indistinguishable from the best", style="dim", soft_wrap=True)


def _runs_table(comparison: Comparison) -> Table:
    table = empty_table()
    for heading in ("", "run", "outcome", "strategy", "devices", ""):
        table.add_column(heading)
    for index, run in enumerate(comparison.runs):
        is_base = index == comparison.baseline
        table.add_row(
            Text(comparison.letter(index), style="bold"),
            Text(one_line(run.name)),
            Text(run.outcome, style=outcome_style(run.outcome)),
            one_line(format_strategy(run)),
            one_line(format_devices(run)) or UNKNOWN,
            Text("baseline" if is_base else "", style="dim"),
        )
    return table


def _make_table(comparison: Comparison, heading: str) -> Table:
    table = empty_table()
    table.add_column(heading, overflow="fold")
    for index in range(len(comparison.runs)):
        table.add_column(comparison.letter(index), justify="right")
    return table


def _print_group(out: Console, comparison: Comparison, group: str) -> None:
    rows = comparison.rows_of(group)
    table = _make_table(comparison, group.lower())
    for row in rows:
        table.add_row(row.label, *(_cell(row, index) for index in range(len(comparison.runs))))
    out.print()
    out.print(table)
    for note in (*comparison.notes_of(group), *_long_details(comparison, rows)):
        out.print(note, style="dim", soft_wrap=True, markup=False)


def _long_details(comparison: Comparison, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield the details that are too long for a table cell."""
    for row in rows:
        for index in range(len(comparison.runs)):
            if row.unit == TEXT and len(row.detail(index)) > _MAX_DETAIL_LENGTH:
                yield f"{comparison.letter(index)}: {one_line(row.detail(index), _MAX_VALUE_LENGTH)}"


def _cell(row: ComparisonRow, index: int) -> Text:
    is_best = index in row.best
    text = Text(row.cell(index), style="bold green" if is_best else "")
    text.append(f" {_BEST_MARK}" if is_best else "")
    behind = row.detail(index) if row.unit == TEXT else row.differences[index]
    if behind and len(behind) <= _MAX_DETAIL_LENGTH:
        text.append(f"  {behind}", style="dim not bold")
    return text


def _print_losses(out: Console, comparison: Comparison, by: str, lines: Sequence[LossCurve]) -> None:
    """Print the smoothed losses at x values that all runs have reached."""
    reached = [float(line.average_x[-1]) for line in lines if not line.is_empty]
    end = min(reached, default=0.0)
    if len(reached) < 2 or end <= 0:
        return
    table = _make_table(comparison, "smoothed loss")
    x_values = [end * share / _NUM_POINTS for share in range(1, _NUM_POINTS + 1)]
    # Steps and samples are whole numbers, so that in a short run several of the points coincide.
    if by != "time":
        x_values = sorted({max(1.0, float(np.floor(x))) for x in x_values})
    for x in x_values:
        x_text = format_clock(x) if by == "time" and end >= _NUM_POINTS else format_count(x)
        # format_clock rounds to whole seconds, which would make points of a short range look equal.
        x_text = f"{x:.2f} s" if by == "time" and end < _NUM_POINTS else x_text
        table.add_row(_AXIS_TEMPLATES[by].format(x_text), *(_loss_at(line, x) for line in lines))
    out.print()
    out.print(table)


def _loss_at(line: LossCurve, x: float) -> str:
    # np.interp would repeat the first value for every x before the curve's start.
    if line.is_empty or x < line.average_x[0]:
        return UNKNOWN
    return format_loss(float(np.interp(x, line.average_x, line.average)))


def _print_differences(
    out: Console, comparison: Comparison, heading: str, rows: Sequence[Difference]
) -> None:
    if not rows:
        # Without rows, a script and a configuration, or an unreadable configuration, are still not the same.
        if heading == "configuration" and not kind_mismatch(comparison.runs):
            out.print("\nThe configurations are the same.", style="dim", soft_wrap=True)
        return
    table = empty_table()
    table.add_column(heading)
    for index in range(len(comparison.runs)):
        table.add_column(comparison.letter(index), overflow="fold")
    for row in rows:
        table.add_row(one_line(row.key), *(_value_text(value) for value in row.values))
    out.print()
    out.print(table)


def _value_text(value: str | None) -> Text:
    return Text(UNKNOWN if value is None else one_line(shorten_home(value), _MAX_VALUE_LENGTH))
