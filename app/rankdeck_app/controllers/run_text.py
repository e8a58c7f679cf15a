"""What the status bar and a toast say of runs. run_tabs.py shows it."""

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
"""What a run does, and how it ended, where a text begins with it; a summary does, too."""


def state_text(run: LiveRun) -> str:
    """'Running', or what it does between that and its end."""
    if run.hang is not None:
        return tr("Hanging")
    return tr((run.ending or run.outcome or "running").capitalize())


def progress_texts(run: LiveRun) -> list[str]:
    """Its strategy, and its step or what it is busy with before the first one."""
    strategy = strategy_title(run.strategy) if run.strategy else ""
    if run.step is None:
        return [strategy, run.phase_text() or ""]
    step, steps = format_count(run.step), format_count(run.num_steps) if run.num_steps else ""
    if not steps:
        return [strategy, tr("step {step}", step=step)]
    return [strategy, tr("step {step} / {steps}", step=step, steps=steps)]


def rate_text(run: LiveRun) -> str:
    """Samples where they are seen, else steps; nothing of a run that is over."""
    if run.is_over or run.hang is not None:
        return ""
    if run.samples_per_s is not None:
        return tr("{rate} samples/s", rate=format_rate(run.samples_per_s))
    if run.steps_per_s is not None:
        return tr("{rate} steps/s", rate=format_rate(run.steps_per_s))
    return ""


def devices_text(run: LiveRun) -> str:
    """'8 GPUs · 141.6 GiB of 640.0 GiB', '4 virtual · 1.2 GiB'; 'peak 1.2 GiB' of a run that is over."""
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
    known = [total for total in totals if total is not None]
    if not known:
        return name
    held, capacity = format_bytes(sum(known)), run.capacity_bytes
    if capacity:
        held = tr("{size} of {capacity}", size=held, capacity=format_bytes(capacity * count))
    if run.is_over:
        held = tr("peak {size}", size=held)
    return f"{name} · {held}"


def outcome_count_text(outcome: str, n: int) -> str:
    """So many runs that ended so."""
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
