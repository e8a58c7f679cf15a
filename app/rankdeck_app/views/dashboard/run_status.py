"""Builds the metric strip and the banner above a run's cards: plain functions, no widgets.

A metric gets a cell once it has a value. Metrics that a configured run is going to report have cells from the
start, with a dash until they have values.
"""

from __future__ import annotations

import math

from rankdeck.base.errors import Problem
from rankdeck.base.units import format_bytes, format_count, format_duration, format_loss, format_rate
from rankdeck.run.problems import failed_problem, lost_problem
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.run_view import RunView
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.stat_strip import Stat, imbalance_stat
from rankdeck_app.widgets.time_text import duration_text


def stats(run: RunView) -> tuple[Stat, ...]:
    """Return the cells of the metric strip above a run's cards."""
    is_promised = bool(run.is_planned)
    cells = [] if run.has_no_steps and not is_promised else [_step_stat(run)]
    if cells and (is_promised or run.loss is not None or not run.is_over):
        cells.append(_loss_stat(run))
    if cells and not is_promised:
        cells.append(Stat(tr("Steps/s"), _rate_text(run, run.steps_per_s), "88 888"))
    if is_promised or run.samples_per_s is not None:
        cells.append(Stat(tr("Samples/s"), _rate_text(run, run.samples_per_s), "88 888"))
    if (wait := run.state.script.wait_share) is not None:
        cells.append(Stat(tr("Loader wait"), f"{100 * wait:.1f}%", "88.8%"))
    elapsed = UNKNOWN if run.elapsed_s is None else format_duration(run.elapsed_s)
    cells.append(Stat(tr("Elapsed"), elapsed, "8:88:88"))
    if is_promised:
        cells.append(_remaining_or_held_out_stat(run))
    if (status := run.state.script.script_status) is not None:
        cells.append(Stat(tr("Exit status"), str(status), "888", is_highlighted=status != 0))
    return (*cells, *_imbalance_stats(run))


def _step_stat(run: RunView) -> Stat:
    step = UNKNOWN if run.step is None else format_count(run.step)
    if run.num_steps is None:
        # The last text reserves the cell's width, so that the strip does not move while numbers grow.
        return Stat(tr("Step"), step, "8" * max(5, len(step)))
    total = f" / {format_count(run.num_steps)}"
    return Stat(tr("Step"), step + total, format_count(run.num_steps) + total)


def _loss_stat(run: RunView) -> Stat:
    is_lost = run.loss is not None and not math.isfinite(run.loss)
    text = UNKNOWN if run.loss is None else tr("not finite") if is_lost else format_loss(run.loss)
    return Stat(tr("Last loss"), text, text if is_lost else "88.8888", is_highlighted=is_lost)


def _rate_text(run: RunView, rate: float | None) -> str:
    """Format the current rate, which is 0 while ranks make no progress."""
    return UNKNOWN if rate is None else format_rate(0.0 if run.hang is not None else rate)


def _remaining_or_held_out_stat(run: RunView) -> Stat:
    """Return the ETA of a live run, or the held-out loss of a finished one."""
    if not run.is_over:
        return Stat(tr("ETA"), UNKNOWN if run.eta_s is None else format_duration(run.eta_s), "8:88:88")
    evaluation = run.state.evaluation
    loss = UNKNOWN if evaluation is None or evaluation.loss is None else f"{evaluation.loss:.4f}"
    if evaluation is None or evaluation.accuracy is None:
        return Stat(tr("Held-out loss"), loss, "88.8888")
    accuracy = f"{loss}  {100 * evaluation.accuracy:.1f}%"
    short = tr("Held-out, accuracy")
    return Stat(tr("Held-out loss, accuracy"), accuracy, "88.8888  88.8%", short_label=short)


def _imbalance_stats(run: RunView) -> list[Stat]:
    """Return a cell that compares the lead device's memory with the median of the others; for a single
    device, a cell with its peak memory."""
    if len(run.devices) != 1:
        is_known = run.imbalance is not None
        labels = [run.device_label(device) for device in run.charted_devices]
        return [imbalance_stat(run.imbalance, labels)] if is_known or run.is_planned else []
    total_bytes = run.device_bytes(run.devices[0])
    if total_bytes is None and not run.is_planned:
        return []
    value = UNKNOWN if total_bytes is None else format_bytes(total_bytes)
    device = run.device_label(run.devices[0])
    label = tr("{device} live", device=device) if run.has_owner_memory else tr("{device} peak", device=device)
    return [Stat(label, value, "888.8 MiB")]


# The banner

Headline = tuple[str, str, str]
"""A tuple (tone, message, advice); the tone is "info", "warning" or "error"."""


def headline(run: RunView) -> Headline | None:
    """Return the headline for the run's state, or None if the state needs no headline."""
    if run.ending == "stopping":
        return "info", tr("Stopping, saving a checkpoint…") if run.is_planned else tr("Stopping…"), ""
    if not run.is_over:
        return _live_headline(run)
    if run.outcome == "completed":
        return None if run.is_planned or run.step is not None else _no_steps_headline(run)
    if run.outcome == "stopped":
        reason = run.exit_record.reason or "" if run.exit_record is not None else ""
        if run.step is None:
            return "info", tr("Stopped before its first step."), reason
        return "info", tr("Stopped at step {step}.", step=format_count(run.step)), reason
    errors = [problem for problem in run.state.problems if problem.severity == "error"]
    unexplained = lost_problem if run.outcome == "lost" else failed_problem
    problem = errors[0] if errors else unexplained(run.run_dir)
    translated = translate_problem(problem)
    return "error", _message_with_rank(translated), translated.advice or ""


def _live_headline(run: RunView) -> Headline | None:
    if run.silent_hosts:
        host, seconds = max(run.silent_hosts.items(), key=lambda item: item[1])
        message = tr("{host} has not reported for {time}.", host=host, time=duration_text(seconds))
        return "info", message, tr("The data shown for this host is out of date.")
    if (still := run.hang_problem) is not None:
        return "warning", _message_with_rank(still), still.advice or ""
    if run.step is not None or run.has_no_steps:
        return None
    if run.is_planned is False:
        return "info", tr("Running; no optimizer step has been observed yet."), tr("The output is below.")
    return "info", tr("Starting ranks…"), _starting_text(run)


def _no_steps_headline(run: RunView) -> Headline:
    """Return the headline for a completed script in which no step was observed."""
    unseen = (
        tr("Completed before its first steps were recorded.")
        if run.state.script.ranks
        else tr("Completed; no optimizer step was observed.")
    )
    return "info", unseen, tr("The output is below.")


def _message_with_rank(problem: Problem) -> str:
    """Return the problem's message with the rank and host that the problem concerns."""
    values = {"rank": problem.rank, "host": problem.host, "message": problem.message}
    if problem.rank is not None and problem.host:
        return tr("Rank {rank} on {host}: {message}", **values)
    # Many messages name their rank already.
    if problem.rank is not None and f"rank {problem.rank}" not in problem.message.lower():
        return tr("Rank {rank}: {message}", **values)
    return problem.message


def _starting_text(run: RunView) -> str:
    phase = run.phase_text()
    if phase is not None:
        return f"{phase[0].upper()}{phase[1:]}"
    if run.strategy is not None:
        return tr("Waiting for the ranks to report.")
    return tr("Waiting for the supervisor.")
