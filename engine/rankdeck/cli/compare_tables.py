"""A comparison in the terminal: who is who, figures side by side, losses along the way, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdeck.base.units import format_clock, format_count, format_loss
from rankdeck.cli import console
from rankdeck.cli.summary import outcome_style
from rankdeck.cli.words import empty_table, one_line
from rankdeck.compare.curves import LossLine
from rankdeck.compare.differences import Difference, of_two_kinds
from rankdeck.compare.table import Comparison, FigureRow
from rankdeck.compare.words import TEXT, UNKNOWN, devices_in_words, shortened, strategy_in_words

_NUM_PLACES = 5
_LONGEST_VALUE = 200
_LONGEST_BEHIND = 28
_BEST = "*"
_AT = {"step": "step {}", "time": "after {}", "samples": "{} samples"}


def print_comparison(comparison: Comparison, by: str, lines: Sequence[LossLine]) -> None:
    """Everything but the curves themselves."""
    out = console.out()
    out.print(_runs_table(comparison))
    for group in comparison.groups:
        _print_group(out, comparison, group)
    _print_losses(out, comparison, by, lines)
    _print_differences(out, comparison, "configuration", comparison.configuration)
    _print_differences(out, comparison, "not configuration", comparison.rest)
    if any(row.best for row in comparison.rows):
        out.print(f"\n{_BEST} the best, or not told apart from it", style="dim", soft_wrap=True)


def _runs_table(comparison: Comparison) -> Table:
    table = empty_table()
    for heading in ("", "run", "outcome", "strategy", "devices", ""):
        table.add_column(heading)
    for place, run in enumerate(comparison.runs):
        is_base = place == comparison.baseline
        table.add_row(
            Text(comparison.letter(place), style="bold"),
            Text(one_line(run.name)),
            Text(run.outcome, style=outcome_style(run.outcome)),
            one_line(strategy_in_words(run)),
            one_line(devices_in_words(run)) or UNKNOWN,
            Text("baseline" if is_base else "", style="dim"),
        )
    return table


def _table_of(comparison: Comparison, heading: str) -> Table:
    table = empty_table()
    table.add_column(heading, overflow="fold")
    for place in range(len(comparison.runs)):
        table.add_column(comparison.letter(place), justify="right")
    return table


def _print_group(out: Console, comparison: Comparison, group: str) -> None:
    rows = comparison.rows_of(group)
    table = _table_of(comparison, group.lower())
    for row in rows:
        table.add_row(row.label, *(_cell(row, place) for place in range(len(comparison.runs))))
    out.print()
    out.print(table)
    for note in (*comparison.notes_of(group), *_long_words(comparison, rows)):
        out.print(note, style="dim", soft_wrap=True, markup=False)


def _long_words(comparison: Comparison, rows: Sequence[FigureRow]) -> Iterator[str]:
    """What has no room behind the words of a cell."""
    for row in rows:
        for place in range(len(comparison.runs)):
            if row.unit == TEXT and len(row.more(place)) > _LONGEST_BEHIND:
                yield f"{comparison.letter(place)}: {one_line(row.more(place), _LONGEST_VALUE)}"


def _cell(row: FigureRow, place: int) -> Text:
    is_best = place in row.best
    words = Text(row.cell(place), style="bold green" if is_best else "")
    words.append(f" {_BEST}" if is_best else "")
    behind = row.more(place) if row.unit == TEXT else row.differences[place]
    if behind and len(behind) <= _LONGEST_BEHIND:
        words.append(f"  {behind}", style="dim not bold")
    return words


def _print_losses(out: Console, comparison: Comparison, by: str, lines: Sequence[LossLine]) -> None:
    """The smoothed losses at places that all of them have reached."""
    reached = [float(line.average_x[-1]) for line in lines if not line.is_empty]
    end = min(reached, default=0.0)
    if len(reached) < 2 or end <= 0:
        return
    table = _table_of(comparison, "smoothed loss")
    places = [end * share / _NUM_PLACES for share in range(1, _NUM_PLACES + 1)]
    if by != "time":
        places = sorted({max(1.0, float(np.floor(place))) for place in places})
    for place in places:
        shown = format_clock(place) if by == "time" and end >= _NUM_PLACES else format_count(place)
        shown = f"{place:.2f} s" if by == "time" and end < _NUM_PLACES else shown
        table.add_row(_AT[by].format(shown), *(_loss_at(line, place) for line in lines))
    out.print()
    out.print(table)


def _loss_at(line: LossLine, place: float) -> str:
    if line.is_empty or place < line.average_x[0]:
        return UNKNOWN
    return format_loss(float(np.interp(place, line.average_x, line.average)))


def _print_differences(
    out: Console, comparison: Comparison, heading: str, rows: Sequence[Difference]
) -> None:
    if not rows:
        if heading == "configuration" and not of_two_kinds(comparison.runs):
            out.print("\nThe configurations are the same.", style="dim", soft_wrap=True)
        return
    table = empty_table()
    table.add_column(heading)
    for place in range(len(comparison.runs)):
        table.add_column(comparison.letter(place), overflow="fold")
    for row in rows:
        table.add_row(one_line(row.key), *(_value(value) for value in row.values))
    out.print()
    out.print(table)


def _value(value: str | None) -> Text:
    return Text(UNKNOWN if value is None else one_line(shortened(value), _LONGEST_VALUE))
