"""Formats a run's state, progress, throughput and devices as text for the status bar and toasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes, format_count, format_rate
from rankdeck_app.language import tr
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

_STATES = (
    tr_noop("Running"), tr_noop("Hanging"), tr_noop("Stopping"), tr_noop("Ending"),
    tr_noop("Completed"), tr_noop("Failed"), tr_noop("Stopped"), tr_noop("Lost"),
)  # fmt: skip
"""Run states as they appear at the start of a text; listed here for translation."""


def state_text(run: LiveRun) -> str:
    """Return the run's state, such as 'Running', 'Hanging' or 'Stopping'."""
    if run.hang is not None:
        return tr("Hanging")
    # _STATES lists these texts for the translation tool.
    return tr((run.ending or run.outcome or "running").capitalize())


def progress_texts(run: LiveRun) -> list[str]:
    """Return the run's strategy, and its step or, before the first step, its current phase."""
    strategy = strategy_title(run.strategy) if run.strategy else ""
    if run.step is None:
        return [strategy, run.phase_text() or ""]
    step, steps = format_count(run.step), format_count(run.num_steps) if run.num_steps else ""
    if not steps:
        return [strategy, tr("step {step}", step=step)]
    return [strategy, tr("step {step} / {steps}", step=step, steps=steps)]


def rate_text(run: LiveRun) -> str:
    """Return the throughput in samples per second, or in steps per second if the number of samples is
    unknown; "" for a finished or hanging run."""
    if run.is_over or run.hang is not None:
        return ""
    if run.samples_per_s is not None:
        return tr("{rate} samples/s", rate=format_rate(run.samples_per_s))
    if run.steps_per_s is not None:
        return tr("{rate} steps/s", rate=format_rate(run.steps_per_s))
    return ""


def devices_text(run: LiveRun) -> str:
    """Return a text such as '8 GPUs · 141.6 GiB of 640.0 GiB' or '4 virtual · 1.2 GiB'; for a finished run,
    the text gives the run's peak memory."""
    if not run.devices:
        return ""
    count = len(run.devices)
    if run.has_gpus:
        name = tr("{n} GPUs", "{n} GPU", count)
    elif run.is_rehearsal:
        name = tr("{n} virtual", "{n} virtual", count)
    else:
        name = tr("{n} on CPU", "{n} on CPU", count)
    totals = [device.peak_bytes if run.is_over else run.device_bytes(device) for device in run.devices]
    known_totals = [total for total in totals if total is not None]
    if not known_totals:
        return name
    memory_text, capacity = format_bytes(sum(known_totals)), run.capacity_bytes
    if capacity:
        memory_text = tr("{size} of {capacity}", size=memory_text, capacity=format_bytes(capacity * count))
    if run.is_over:
        memory_text = tr("peak {size}", size=memory_text)
    return f"{name} · {memory_text}"


def outcome_count_text(outcome: str, n: int) -> str:
    """Return a text such as '2 failed'."""
    match outcome:
        case "completed":
            return tr("{n} completed", "{n} completed", n)
        case "failed":
            return tr("{n} failed", "{n} failed", n)
        case "stopped":
            return tr("{n} stopped", "{n} stopped", n)
        case "lost":
            return tr("{n} lost", "{n} lost", n)
    return f"{n} {outcome}"
