"""Print a plan in the terminal: a line per strategy as soon as it is planned, then the recommendation."""

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
    """Printer of a plan: `add` prints a line, and `close` prints the recommendation."""

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
        text = (
            _plan_row(line) if line.advice is None else Text(f"{_advice_label(line).ljust(13)}{line.advice}")
        )
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Print the strategy that needs the least memory, then the recommended strategy and the memory of
        that strategy's fullest device."""
        if self._as_json or not self._lines:
            return
        marks = plan_marks.mark_lines(self._lines)
        for mark, index in (("least memory", marks.cheapest), ("recommended", marks.recommended)):
            if index is not None:
                label = self._lines[index].label
                self._console.print(Text(f"{mark}: ", style="dim").append(label, style="bold not dim"))
        if marks.recommended is not None:
            self._console.print(Text(marks.reason, style="dim"), soft_wrap=True)
            fullest = self._lines[marks.recommended].fullest_device
            if fullest is not None:
                self._console.print(_memory_text(fullest), style="dim", soft_wrap=True)


def _advice_label(line: PlanLine) -> str:
    """Return the label before an advice line: "nothing fits" or "try"."""
    return "nothing fits" if plan_lines.is_no_fit_advice(line) else "try"


def _plan_row(line: PlanLine) -> Text:
    text = Text(f"{plan_lines.plan_verdict_text(line):<12} ", style=_STYLES[line.verdict])
    label = line.label + (" *  " if line.configured else "  ")
    text.append(label.ljust(_LABEL_WIDTH), style="bold not dim" if line.configured else "default not bold")
    if line.devices:
        bound = f"at {line.bound or plan_lines.AT_LEAST} " if line.is_bound else ""
        sizes = sizes_text((device.total_bytes for device in line.devices), _MAX_SIZES)
        text.append(bound + sizes, style="default not bold")
    if line.largest_batch is not None:
        text.append(f"  up to global_batch {line.largest_batch}", style="default not bold not dim")
    if line.step is not None:
        text.append(f"  {plan_lines.step_time_text(line.step)} a step", style="default not bold not dim")
    for note in (*_movement_notes(line), line.reason, line.verified, *line.notes):
        if note:
            text.append(f"\n{' ' * 13}{note}", style="default dim not bold")
    return text


def _movement_notes(line: PlanLine) -> list[str]:
    """Return a sentence on the data moved between devices per step; empty if the plan omits movement."""
    if line.movement is None:
        return []
    laid_out = build_timeline(line.movement.by_device())
    if laid_out is None:
        return ["A step moves data in too many operations to list."]
    return [f"moves {laid_out.text()} per step"]


def _memory_text(device: PlannedDevice) -> str:
    """Return a device's predicted memory by kind, largest first."""
    largest = sorted(device.by_kind.items(), key=lambda item: -item[1])
    # Kinds below 1 KiB, such as a few scalars, would only make the line longer.
    sizes = [f"{KIND_LABELS[kind]} {format_bytes(size)}" for kind, size in largest if size >= 2**10]
    if device.reserved_bytes is not None:
        unused_bytes = device.reserved_bytes - device.active_bytes
        sizes.append(f"reserved but unused {format_bytes(unused_bytes)}")
    if device.constants_bytes:
        sizes.append(f"driver and NCCL {format_bytes(device.constants_bytes)}")
    return f"device {device.device}: {', '.join(sizes)}"


def accuracy_table(rows: Sequence[DeviceAccuracy]) -> Table:
    """Return a table of predicted and measured memory, one row per device of a run."""
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
    """Return text such as 'median error 0.00 %, 95th percentile 0.03 %, worst 0.05 %, of 24 devices'."""
    assert spread is not None
    median, p95, worst = (f"{share * 100:.2f} %" for share in (spread.median, spread.p95, spread.worst))
    return f"median error {median}, 95th percentile {p95}, worst {worst}, of {count} devices"
