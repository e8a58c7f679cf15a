"""A plan as a person reads it: a line per strategy as it comes, then the marks and what they mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.formatting import KIND_LABELS, empty_table, sizes_text
from rankdeck.run import plan_lines, plan_marks
from rankdeck.run.movement import build_timeline
from rankdeck.run.plan_lines import PlanLine, PlannedDevice

if TYPE_CHECKING:
    from rankdeck.planner.accuracy import DeviceAccuracy, ErrorSpread

_STYLES = {"fits": "green", "tight": "yellow", "does-not-fit": "bold red", "cannot": "dim"}
_LABEL_WIDTH = 40
_MAX_SIZES = 8


class PlanOutput:
    """Prints lines as they are added; `close` says which are marked."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lines: list[PlanLine] = []
        self._console = console.out()

    def add(self, line: PlanLine) -> None:
        self._lines.append(line)
        if self._as_json:
            sys.stdout.buffer.write(plan_lines.encode(line))
            sys.stdout.buffer.flush()
            return
        if len(self._lines) == 1:
            self._console.print(f"predicted for {line.target}", style="dim")
        words = (
            _plan_row(line) if line.advice is None else Text(f"{_advice_label(line).ljust(13)}{line.advice}")
        )
        self._console.print(words, soft_wrap=True)

    def close(self) -> None:
        """The marks, and what the recommended strategy's fullest device would hold."""
        if self._as_json or not self._lines:
            return
        marks = plan_marks.mark_lines(self._lines)
        for words, place in (("least memory", marks.cheapest), ("recommended", marks.recommended)):
            if place is not None:
                label = self._lines[place].label
                self._console.print(Text(f"{words}: ", style="dim").append(label, style="bold not dim"))
        if marks.recommended is not None:
            self._console.print(Text(marks.reason, style="dim"), soft_wrap=True)
            fullest = self._lines[marks.recommended].fullest_device
            if fullest is not None:
                self._console.print(_memory_text(fullest), style="dim", soft_wrap=True)


def _advice_label(line: PlanLine) -> str:
    """What stands before advice; the last word where nothing fits is none."""
    return "nothing fits" if plan_lines.is_no_fit_advice(line) else "try"


def _plan_row(line: PlanLine) -> Text:
    words = Text(f"{plan_lines.plan_verdict_text(line):<12} ", style=_STYLES[line.verdict])
    label = line.label + (" *  " if line.configured else "  ")
    words.append(label.ljust(_LABEL_WIDTH), style="bold not dim" if line.configured else "default not bold")
    if line.devices:
        bound = f"at {line.bound or plan_lines.AT_LEAST} " if line.is_bound else ""
        sizes = sizes_text((device.total_bytes for device in line.devices), _MAX_SIZES)
        words.append(bound + sizes, style="default not bold")
    if line.largest_batch is not None:
        words.append(f"  up to global_batch {line.largest_batch}", style="default not bold not dim")
    if line.step is not None:
        words.append(f"  {plan_lines.step_time_text(line.step)} a step", style="default not bold not dim")
    for note in (*_movement_notes(line), line.reason, line.verified, *line.notes):
        if note:
            words.append(f"\n{' ' * 13}{note}", style="default dim not bold")
    return words


def _movement_notes(line: PlanLine) -> list[str]:
    """In a sentence, where it was asked for."""
    if line.movement is None:
        return []
    laid_out = build_timeline(line.movement.by_device())
    if laid_out is None:
        return ["What moves in a step is too much to be laid out."]
    return [f"moves {laid_out.text()} a step"]


def _memory_text(device: PlannedDevice) -> str:
    """What a device would hold, the largest first."""
    largest = sorted(device.by_kind.items(), key=lambda item: -item[1])
    parts = [f"{KIND_LABELS[kind]} {format_bytes(size)}" for kind, size in largest if size >= 2**10]
    if device.reserved_bytes is not None:
        unused_bytes = device.reserved_bytes - device.active_bytes
        parts.append(f"reserved and unused {format_bytes(unused_bytes)}")
    if device.constants_bytes:
        parts.append(f"driver and NCCL {format_bytes(device.constants_bytes)}")
    return f"device {device.device}: {', '.join(parts)}"


def accuracy_table(rows: Sequence[DeviceAccuracy]) -> Table:
    """Predicted beside measured, one row per device of a run."""
    table = empty_table()
    for heading in ("run", "strategy", "device"):
        table.add_column(heading, no_wrap=heading == "run")
    for heading in ("predicted", "measured", "error"):
        table.add_column(heading, justify="right")
    for row in rows:
        predicted, measured = format_bytes(row.predicted_bytes), format_bytes(row.measured_bytes)
        error = f"{row.error * 100:+.2f} %"
        table.add_row(row.run, row.strategy, f"{row.device} {row.kind}".strip(), predicted, measured, error)
    return table


def spread_text(spread: ErrorSpread | None, count: int) -> str:
    """'median error 0.00 %, 95 % of 24 below 0.03 %, worst 0.05 %'."""
    assert spread is not None
    median, p95, worst = (f"{share * 100:.2f} %" for share in (spread.median, spread.p95, spread.worst))
    return f"median error {median}, 95th percentile {p95}, worst {worst}, of {count} devices"
