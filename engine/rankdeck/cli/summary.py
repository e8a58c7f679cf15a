"""Print results: the summary at the end of `train`, the report of `show`, and the table of `runs`.

The text is made from the same summary that `--json` prints, so text and JSON agree.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdeck.base.errors import Problem
from rankdeck.base.units import format_bytes, format_duration, format_setting
from rankdeck.cli import console, script_report
from rankdeck.cli.formatting import (
    KIND_LABELS,
    UNKNOWN,
    empty_table,
    imbalance_text,
    kinds_text,
    loss_range_text,
    loss_text,
    non_finite_loss_text,
    one_line,
    size_text,
)
from rankdeck.config.catalog import STRATEGIES
from rankdeck.events import MEMORY_KINDS, UNATTRIBUTED
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.breakdown import peak_coverage_text
from rankdeck.run.row import EVENTS_LOST_TEXT, RunInfo, outcome_label
from rankdeck.run.summary import CommSummary, DeviceSummary, RunSummary, SampledStep, StepSeconds

_MIN_TITLE_WIDTH = 12
_STYLES = {
    "completed": "green",
    EVENTS_LOST_TEXT: "yellow",
    "running": "cyan",
    "failed": "bold red",
    "lost": "bold red",
    "stopped": "yellow",
}


def print_summary(summary: RunSummary, *, shown_problems: Collection[Problem]) -> None:
    """Print a run's outcome, loss, speed, path and memory per device, then its problems.

    `shown_problems` are left out, because they have been printed already.
    """
    out = console.out()
    out.print(_outcome_line(summary))
    pairs = list(_metric_rows(summary))
    for device in summary.devices:
        if device.peak_bytes is not None:
            kinds = kinds_text(device.peak_by_kind or {})
            peak = f"peak {format_bytes(device.peak_bytes)}" + (f" ({kinds})" if kinds else "")
            pairs.append((f"device {device.device}", peak))
        elif device.live_bytes is not None:
            kinds = kinds_text(device.live_by_kind or {})
            live_text = f"{format_bytes(device.live_bytes)} {device.memory_source}"
            pairs.append((f"device {device.device}", live_text + (f" ({kinds})" if kinds else "")))
    pairs.extend(_peak_rows(summary))
    if summary.imbalance:
        pairs.append(("imbalance", imbalance_text(summary.imbalance)))
    if summary.verified:
        pairs.append(("one device", summary.verified.text))
    pairs.extend(script_report.note_rows(summary))
    pairs.append(("run", summary.path))
    _print_pairs(out, pairs)
    _print_problems(problem for problem in summary.problems if problem not in shown_problems)


def print_report(summary: RunSummary) -> None:
    """Print everything that `show --json` contains, as tables."""
    out = console.out()
    out.print(Text(one_line(summary.title), style="bold"))
    out.print(_outcome_line(summary))
    pairs = [
        *script_report.launch_rows(summary),
        *_metric_rows(summary),
        *script_report.observed_rows(summary),
    ]
    if summary.imbalance:
        pairs.append(("imbalance", imbalance_text(summary.imbalance)))
    if summary.verified:
        pairs.append(("one device", summary.verified.text))
    if summary.comm:
        sent = ", ".join(map(size_text, summary.comm.sent_bytes_per_step))
        pairs.append(("sent per step", f"{summary.comm.algorithm}: {sent}"))
        pairs.extend(_sync_rows(summary.comm))
    pairs.extend(_pipeline_rows(summary))
    pairs.extend(_peak_rows(summary))
    pairs.extend(_anatomy_rows(summary.anatomy))
    pairs.extend(script_report.note_rows(summary))
    pairs.append(("run", summary.path))
    if summary.weights:
        pairs.append(("weights", summary.weights))
    _print_pairs(out, pairs)
    source = f", {summary.source}" if summary.source else ""
    if any(device.peak_bytes is not None for device in summary.devices):
        out.print(f"\nmemory at each device's peak{source}", style="dim", soft_wrap=True)
        out.print(_devices_table(summary.devices, at_peak=True))
    elif any(device.live_bytes is not None for device in summary.devices):
        out.print(f"\nmemory{source}", style="dim", soft_wrap=True)
        out.print(_devices_table(summary.devices, at_peak=False))
    script_report.print_metrics(out, summary.metrics)
    _print_problems([*summary.problems, *(summary.findings or [])])


def _print_problems(problems: Iterable[Problem]) -> None:
    for problem in problems:
        console.print_problem(problem)


def _outcome_line(summary: RunSummary) -> Text:
    outcome = summary.outcome
    planned = summary.steps_planned
    lost = non_finite_loss_text(summary)
    state = outcome_label(outcome, summary.reason)
    line = Text(state, style="yellow" if lost and outcome == "completed" else _STYLES.get(state, ""))
    line.append(f", {lost}" if lost else "")
    line.append(f"  {summary.steps}{f'/{planned}' if planned else ''} steps", style="default not bold")
    if summary.strategy:
        line.append(f"  {_strategy_text(summary)}", style="default not bold")
    elif summary.script or summary.observed:
        line.append(f"  {script_report.script_heading(summary)}", style="default not bold")
    if summary.source:
        line.append(f"  {summary.source}", style="dim not bold")
    if summary.pace == "simulated":
        line.append(f"  {SIMULATED_TIME}", style="dim not bold")
    return line


def outcome_style(outcome: str) -> str:
    """Return the style in which an outcome is printed."""
    return _STYLES.get(outcome, "")


def _strategy_text(summary: RunSummary) -> str:
    """Return text such as 'dp (parallel_loss = true) on 4 devices', with the non-default options."""
    card = STRATEGIES.get(summary.strategy or "")
    changed = card.non_default_options(summary.options) if card else summary.options
    options = f" ({', '.join(itertools.starmap(format_setting, changed.items()))})" if changed else ""
    num_devices = len(summary.devices)
    where = f" on {num_devices} device{'s' if num_devices > 1 else ''}" if num_devices else ""
    return f"{summary.strategy}{options}{where}"


def _metric_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    loss = summary.loss
    if loss.first is not None:
        yield "loss", loss_range_text(summary)
    evaluation = summary.evaluation
    if evaluation:
        accuracy = evaluation.accuracy
        text = loss_text(evaluation.loss)
        yield (
            "held-out loss",
            text + (f", accuracy {_format_percent(accuracy, 2)}" if accuracy is not None else ""),
        )
    if scaling := summary.loss_scaling:
        yield "loss scale", f"{scaling.scale:g}, skipped steps: {scaling.num_left_out}"
    if summary.data is not None and (left_out := summary.data.text()):
        yield "data", left_out
    if summary.samples_per_s is not None:
        yield "speed", f"{summary.samples_per_s:.1f} samples/s{_step_time_text(summary.step_s)}"
    elif summary.steps_per_s is not None:
        yield "speed", f"{summary.steps_per_s:.1f} steps/s{_step_time_text(summary.step_s)}"
    if summary.first_step_s is not None:
        yield "first step", f"after {summary.first_step_s:.1f} s"


def _step_time_text(step_s: StepSeconds) -> str:
    if step_s.median is None or step_s.p99 is None:
        return ""
    return f", step {step_s.median * 1000:.1f} ms (p99 {step_s.p99 * 1000:.1f} ms)"


def _peak_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    """Yield a row with the steps in which a rehearsal's peaks were measured, and a row with the simulated
    capacity and the devices whose peaks exceed it."""
    sampled = [device.sampled_steps for device in summary.devices if device.sampled_steps]
    if not sampled:
        return
    # The sentence covers every device, so the device with the fewest sampled steps decides.
    coverage = peak_coverage_text(min(sampled), summary.steps_measured)
    yield "peaks are", coverage
    limits = [(device, size) for device in summary.devices if (size := device.total_bytes) is not None]
    if limits:
        over = [f"{device.device}" for device, size in limits if (device.peak_bytes or 0) > size]
        capacity_text = f"exceeded on device {', '.join(over)}" if over else f"not exceeded, {coverage}"
        yield "capacity", f"{format_bytes(max(size for _, size in limits))}, {capacity_text}"


def _sync_rows(comm: CommSummary) -> Iterable[tuple[str, str]]:
    """Yield rows with the slowest rank's gradient synchronization time and its overlap with the backward
    pass."""
    pairs = zip(comm.sync_s, comm.overlapped_s, strict=True)
    measured = [(sync_s, overlapped_s) for sync_s, overlapped_s in pairs if sync_s is not None]
    if measured:
        sync_s, overlapped_s = max(measured, key=lambda pair: pair[0])
        hidden = (
            ""
            if overlapped_s is None
            else f", {_format_milliseconds(overlapped_s)} of it overlapping the backward pass"
        )
        yield "gradient sync", f"{_format_milliseconds(sync_s)} a step on the slowest rank{hidden}"


def _pipeline_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    bubble, ranks = summary.bubble, summary.pipeline
    if bubble:
        theory = "" if bubble.theory is None else f", {bubble.theory:.3f} in theory"
        measured = UNKNOWN if bubble.measured is None else f"{bubble.measured:.3f}"
        simulated = f" ({SIMULATED_TIME})" if summary.pace == "simulated" else ""
        yield "bubble", f"{measured} measured{theory}{simulated}"
    if ranks:
        yield "in flight", f"{', '.join(str(rank.in_flight) for rank in ranks)} microbatches by rank"
        if any(rank.weight_versions is not None for rank in ranks):
            yield "weight versions", ", ".join(_format_count(rank.weight_versions) for rank in ranks)
            yield "staleness", f"{', '.join(_format_count(rank.staleness) for rank in ranks)} updates"


def _anatomy_rows(anatomy: SampledStep | None) -> Iterable[tuple[str, str]]:
    """Yield a row with the longest phases of the last sampled step on the first device in `anatomy`."""
    if anatomy:
        lead = anatomy.devices[0].seconds_by_phase
        longest = sorted(lead.items(), key=lambda item: -item[1])[:6]
        phases = ", ".join(f"{name} {_format_milliseconds(seconds)}" for name, seconds in longest)
        simulated = f" ({SIMULATED_TIME})" if anatomy.simulated else ""
        yield f"step {anatomy.step}", f"device {anatomy.devices[0].device}: {phases}{simulated}"


def _format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 2}f} ms"


def _devices_table(devices: Sequence[DeviceSummary], *, at_peak: bool) -> Table:
    """Return a table of each device's bytes by kind, at its peak or in the latest measurement of live bytes.

    Devices are the columns, because there are more kinds than devices.
    """
    table = empty_table()
    table.add_column("")
    for device in devices:
        table.add_column(f"{device.device} {device.name or ''}".rstrip(), justify="right")
    by_kind = [(device.peak_by_kind if at_peak else device.live_by_kind) or {} for device in devices]
    for kind in (*MEMORY_KINDS, UNATTRIBUTED):
        if any(sizes.get(kind) for sizes in by_kind):
            table.add_row(KIND_LABELS[kind], *(size_text(sizes.get(kind)) for sizes in by_kind))
    totals = [device.peak_bytes if at_peak else device.live_bytes for device in devices]
    table.add_row("peak" if at_peak else "total", *map(size_text, totals), style="bold")
    if any(device.predicted_peak_bytes for device in devices):
        table.add_row("predicted", *(size_text(device.predicted_peak_bytes) for device in devices))
        table.add_row("error (+: predicted too high)", *map(_prediction_error, devices), style="dim")
    if any(device.utilisation_mean is not None for device in devices):
        table.add_row("busy", *(_format_percent(device.utilisation_mean) for device in devices))
    return table


def runs_table(runs: Sequence[RunInfo], width: int) -> Text:
    """Return the list that `rankdeck runs` prints, one line per run; titles are truncated on narrow
    terminals.

    The list is plain text, because rich takes two seconds to lay out a table of 5,000 rows.
    """
    lines = [("run", "title", "outcome", "strategy", "steps", "started"), *map(_run_cells, runs)]
    # cell_len and not len: East Asian characters take two cells.
    widths = [max(cell_len(line[at]) for line in lines) for at in range(6)]
    room = width - sum(widths) - 2 * (len(widths) - 1)
    # Only titles shrink: the names must stay whole to be copied into a command.
    widths[1] = max(widths[1] + min(room, 0), _MIN_TITLE_WIDTH)
    table = Text()
    for number, line in enumerate(lines):
        cells = [_fit_width(cell, widths[at], align_right=at == 4) for at, cell in enumerate(line[:-1])]
        before, after = "  ".join([*cells[:2], ""]), "  ".join(["", *cells[3:], line[-1]])
        is_head, end = number == 0, "\n" if number + 1 < len(lines) else ""
        table.append(before, "dim" if is_head else "")
        table.append(cells[2], "dim" if is_head else _STYLES.get(line[2], ""))
        table.append(after + end, "dim" if is_head else "")
    return table


def _run_cells(info: RunInfo) -> tuple[str, ...]:
    race = info.race
    ago = UNKNOWN if info.started is None else f"{format_duration(time.time() - info.started)} ago"
    raced = f"race, {race.num_done} of {race.num_entries}" if race is not None and race.entries else ""
    use = raced or info.strategy or ("script" if info.is_script else UNKNOWN)
    called = one_line(info.title + "".join(f"  #{tag}" for tag in info.labels.tags))
    steps = f"{info.step if race is None else race.steps}" + (f"/{info.steps}" if info.steps else "")
    return info.name, called, info.state, use, steps, ago


def _fit_width(text: str, width: int, *, align_right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - cell_len(text)) + text if align_right else set_cell_size(text, width)


def _print_pairs(out: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a line for each label and its text; a table would wrap long paths on narrow terminals."""
    width = max(len(label) for label, _ in pairs) + 2
    for label, text in pairs:
        out.print(Text(label.ljust(width), style="dim").append(text, style="default not dim"), soft_wrap=True)


def _format_percent(share: float | None, digits: int = 0) -> str:
    return UNKNOWN if share is None else f"{share * 100:.{digits}f} %"


def _prediction_error(device: DeviceSummary) -> str:
    predicted, measured = device.predicted_peak_bytes, device.peak_bytes
    return f"{(predicted / measured - 1) * 100:+.2f} %" if predicted and measured else UNKNOWN


def _format_count(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
