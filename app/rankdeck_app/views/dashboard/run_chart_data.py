"""Builds the data of a run's cards: plain functions, no widgets.

Unknown values become a dash or an empty row, never a zero. run_curves.py builds the curves over steps,
run_status.py the strip and the banner above the cards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes, format_count
from rankdeck.run.anatomy import SIMULATED_TIME, StepAnatomy
from rankdeck.run.breakdown import peak_coverage_text
from rankdeck.run.devices import DeviceState
from rankdeck.run.imbalance import lead_device
from rankdeck_app.language import tr, translate
from rankdeck_app.state.run_view import RunView
from rankdeck_app.widgets.anatomy import AnatomyData, AnatomyRow
from rankdeck_app.widgets.band_chart import BandChartData, MemoryLimit
from rankdeck_app.widgets.chart_colors import KIND_LABELS, SCRIPT_KIND_LABELS
from rankdeck_app.widgets.heat_strip import COLUMNS, HeatStripData, compute_shares
from rankdeck_app.widgets.time_text import age_text
from rankdeck_app.widgets.vram_bars import DeviceBar, VramBarsData, prediction_text

REHEARSAL_BYTES = tr_noop("tensor bytes on virtual devices (CPU rehearsal)")
REHEARSAL = tr_noop("CPU rehearsal")

_EXPECTED_CARDS = frozenset(("bars", "anatomy", "heat", "band", "loss", "rate", "lr", "norm"))

_SPAN_S = 60.0
_STALE_S = 3.0

TimeRange = tuple[float, float]
"""Start and end, in seconds since the start of the run."""


# The cards


def visible_cards(run: RunView) -> set[str]:
    """Return the names of the cards to show, not including the card of logged metrics.

    A configured run shows a fixed set of cards. A script shows the cards that have data or explain why they
    are empty.
    """
    if run.is_planned is None:
        return set()
    if run.is_planned:
        return set(_EXPECTED_CARDS)
    names = {"loss"} if run.has_no_steps else {"loss", "rate"}
    if any(len(device.memory_history) > 1 for device in run.devices):
        names.add("band")
    if any(run.device_bytes(device) is not None for device in run.devices):
        names.add("bars")
    if any(len(device.utilisation_history) for device in run.devices):
        names.add("heat")
    if run.state.script.wait_share is not None:
        names.add("wait")
    curves = {"lr": run.state.lrs, "norm": run.state.grad_norms}
    return names | {name for name, curve in curves.items() if len(curve)}


def card_order(run: RunView) -> tuple[str, ...]:
    """Return the default card order, which starts with the memory bars; for a script, with the loss."""
    if run.is_planned:
        return "bars", "anatomy", "heat", "band", "loss", "rate", "lr", "norm", "metrics"
    return "loss", "bars", "metrics", "band", "rate", "wait", "heat", "lr", "norm"


def card_titles(run: RunView) -> dict[str, str]:
    """Return the titles of the cards whose title depends on the kind of run."""
    if run.is_planned:
        titles = tr("VRAM per device"), tr("VRAM over time"), tr("Logged by the model")
    else:
        titles = tr("Memory per device"), tr("Memory over time"), tr("Logged by the script")
    return dict(zip(("bars", "band", "metrics"), titles, strict=True))


# Devices


def bars(run: RunView) -> VramBarsData:
    labels = KIND_LABELS if run.is_planned else SCRIPT_KIND_LABELS
    device_bars = tuple(_bar(run, device) for device in run.charted_devices)
    has_ghosts = any(bar.ghost_bytes is not None for bar in device_bars)
    plan = run.fix_plan if has_ghosts else None
    ghost = "" if plan is None else tr("with {fix}, predicted", fix=plan.text)
    return VramBarsData(device_bars, run.imbalance, run.capacity_bytes, labels, ghost)


def _bar(run: RunView, device: DeviceState) -> DeviceBar:
    memory, label = run.device_memory(device), run.device_label(device)
    bar = DeviceBar(
        label,
        device.used_bytes,
        note=tr("in use now"),
        is_stale=device.host in run.silent_hosts,
        predicted_bytes=run.predicted_bytes(device),
        ghost_bytes=run.fix_bytes(device),
        host=device.host,
    )
    if memory is None:
        return bar
    note = tr("live at the end of the step: {size}", size=format_bytes(memory.live_bytes))
    if memory.reserved_bytes is not None:
        reserved = tr("reserved: {size}", size=format_bytes(memory.reserved_bytes))
        note += f"<br>{reserved}"
    return replace(bar, total_bytes=memory.peak_bytes, by_kind=memory.peak_by_kind, note=note)


def bars_subtitle(run: RunView, data: VramBarsData) -> tuple[str, ...]:
    """Return texts with the step that the bars show, the capacity and the prediction, each text shorter than
    the one before."""
    if run.fix_plan is not None:
        return run.fix_plan.texts(max((bar.ghost_bytes or 0 for bar in data.bars), default=0))
    if not data.largest_bytes:
        return ("",)
    when, short = _measured_step_text(run)
    of_all = when
    if run.capacity_bytes is not None:
        of_all = tr("{moment}; capacity {size}", moment=when, size=format_bytes(run.capacity_bytes, 0))
    texts = (
        *_with_age(
            ("; ".join(filter(None, (of_all, _prediction_text(data)))), of_all, when), memory_age(run)
        ),
        short,
    )
    if not run.is_grouped_by_host:
        return texts
    fullest = tr("fullest device of each host")
    return *(f"{fullest}; {text}" for text in texts), fullest, short


def _with_age(texts: Sequence[str], age: str) -> tuple[str, ...]:
    """Return the texts with 'sampled' and `age` appended, then with `age` appended, then unchanged; if `age`
    is empty, return only the unchanged texts."""
    if not age:
        return tuple(texts)
    sampled = tr("sampled {age}", age=age)
    return *(f"{text}; {sampled}" for text in texts), *(f"{text}, {age}" for text in texts), *texts


def _measured_step_text(run: RunView) -> tuple[str, str]:
    """Return a long and a short text about when the memory was measured, such as 'peak of step 120' and
    'peak'."""
    if all(run.device_memory(device) is None for device in run.devices):
        return tr("in use now"), tr("in use now")
    step = format_count(max(device.memory_step or 0 for device in run.devices))
    if run.has_owner_memory:
        at_step = tr("at step {step}", step=step)
        return at_step, at_step
    if not run.is_over:
        return tr("peak of step {step}", step=step), tr("peak")
    sampled = [device.num_sampled for device in run.devices if device.num_sampled]
    if not sampled:
        return tr("peak of the run"), tr("peak")
    return translate(peak_coverage_text(min(sampled), run.state.num_measured_steps)), tr("highest")


def _prediction_text(data: VramBarsData) -> str:
    """Return the predicted memory of the fullest device, and the prediction's error, as text."""
    fullest = max(data.bars, key=lambda bar: bar.total_bytes or 0)
    if not fullest.total_bytes or fullest.predicted_bytes is None:
        return ""
    return prediction_text(fullest.total_bytes, fullest.predicted_bytes)


def time_range(run: RunView) -> TimeRange:
    """Return the time range of all charts whose x axis is time.

    This is the last minute, or the whole run if it is over or if an earlier moment of it is viewed.

    The range moves once a second: laying out an axis in every frame costs more than drawing its curves.
    """
    if _shows_whole_run(run):
        return 0.0, max(1.0, run.total_s or 0.0)
    now_s = run.since_start_s or 0.0
    return math.ceil(now_s) - _SPAN_S, float(math.ceil(now_s))


def _shows_whole_run(run: RunView) -> bool:
    return run.is_over or run.viewed_s is not None


def memory_age(run: RunView) -> str:
    """Return the age of the newest memory data of any device; "" once the run is over."""
    last = [device.memory_history.last_x for device in run.charted_devices]
    known_times = [at for at in last if at is not None]
    return "" if not known_times or run.is_over else age_text((run.since_start_s or 0.0) - max(known_times))


def band(run: RunView) -> BandChartData:
    """Return the data of the memory-over-time chart."""
    charted = run.charted_run
    limits = []
    if run.capacity_bytes is not None:
        name = tr("capacity {size}", size=format_bytes(run.capacity_bytes, 0))
        limits.append(MemoryLimit(name, run.capacity_bytes))
    predicted_bytes = _predicted_peak(run)
    if predicted_bytes is not None:
        name = tr("predicted peak {size}", size=format_bytes(predicted_bytes))
        short = tr("predicted {size}", size=format_bytes(predicted_bytes, 0))
        limits.append(MemoryLimit(name, predicted_bytes, is_hard=False, short=short))
    return BandChartData(
        labels=[run.device_label(device) for device in charted.charted_devices],
        histories=[device.memory_history for device in charted.charted_devices],
        lead=lead_device(run.imbalance),
        limits=tuple(limits),
        x_range=time_range(run),
        is_live=not _shows_whole_run(run),
        empty_text=tr("no step was sampled") if run.is_over else "",
    )


def _predicted_peak(run: RunView) -> int | None:
    """Return the largest predicted peak of the charted devices. The prediction covers all memory that the
    driver counts for devices with driver readings, and usually only live tensors for the others."""
    predictions = [
        run.predicted_bytes(device, is_driver_reading=bool(len(device.used_history)))
        for device in run.charted_devices
    ]
    return max((value for value in predictions if value is not None), default=None)


def band_subtitle(run: RunView) -> tuple[str, ...]:
    if not any(len(device.memory_history) for device in run.charted_devices):
        return ("",)
    if run.is_over:
        return (tr("whole run"),)
    age = memory_age(run)
    sampled = tr("sampled {age}", age=age)
    return f"{_span_text(run)}; {sampled}", sampled, age


def _span_text(run: RunView) -> str:
    """Return the displayed time range as text."""
    return tr("whole run") if _shows_whole_run(run) else tr("last {seconds:.0f} s", seconds=_SPAN_S)


def heat(run: RunView, visible_range: TimeRange | None = None) -> HeatStripData:
    """Return the utilisation over the time range of the memory chart; `visible_range` is the range to which
    the user zoomed that chart."""
    histories = [device.utilisation_history for device in run.charted_devices]
    newest = max((history.last_x for history in histories if history.last_x is not None), default=None)
    labels, hosts = (
        [run.device_label(device) for device in run.charted_devices],
        [charted_device.host for charted_device in run.charted_devices],
    )
    x0, x1 = visible_range or time_range(run)
    start_s = x0 if visible_range is not None or _shows_whole_run(run) else None
    if newest is None:
        unread = [None] * len(labels)
        return HeatStripData(labels, None, unread, x1 - x0, None, start_s, is_over=run.is_over, hosts=hosts)
    charted_indices = {device.device for device in run.charted_devices}
    # From `charted_run`, because the whole curve is drawn also while the past is viewed.
    charted = [device for device in run.charted_run.devices if device.device in charted_indices]
    # A reading counts until the next is due, with a margin for its delay.
    readings = [
        (charted_device.utilisation_history, max(_STALE_S, charted_device.interval_s + 0.5))
        for charted_device in charted
    ]
    column_s = (x1 - x0) / COLUMNS
    # Over a long range a column is wider than the reading interval; without this, columns would have gaps.
    readings = [(history, max(reach_s, 2.5 * column_s)) for history, reach_s in readings]
    shares = compute_shares(readings, x1, x1 - x0, column_s)
    values = [_current_value(device, newest) for device in run.charted_devices]
    lead, at_s = lead_device(run.imbalance), run.viewed_s
    return HeatStripData(labels, shares, values, x1 - x0, lead, start_s, at_s, hosts=hosts)


def heat_subtitle(run: RunView) -> tuple[str, str]:
    """Return (text, short text): the measure of utilisation, such as '% SM', with and without the time
    range."""
    if run.is_rehearsal:
        what = tr("thread busy")
    else:
        what = tr("% SM") if run.has_gpus or not run.devices else tr("CPU busy")
    return f"{what}, {_span_text(run)}", what


def _current_value(device: DeviceState, newest: float) -> float | None:
    """Return the device's mean utilisation in the last second before `newest`, the time of the newest reading
    of any device; None if the device's own readings stopped well before that time."""
    history = device.utilisation_history
    if history.last_x is None or history.last_x < newest - _STALE_S:
        return None
    window = history.window(newest - 1.0, newest, 100)
    return float(np.nanmean(window.high))


def anatomy(run: RunView) -> AnatomyData:
    """Return the last sampled step, with a row per device; a pipeline's step begins at its first forward
    pass."""
    sampled = run.state.anatomy
    spans = {} if sampled is None else {row.device: row.spans for row in sampled.rows}
    rows = [
        AnatomyRow(run.device_label(device), spans.get(device.device, ()), device.host)
        for device in run.charted_devices
    ]
    if sampled is None:
        return AnatomyData(rows, is_over=run.is_over)
    window = sampled.pipeline_window if _has_flush(run) else None
    start_s, end_s = window or (min(row.spans[0].start_s for row in sampled.rows), sampled.seconds)
    return AnatomyData(rows, start_s, end_s, is_pipeline=sampled.is_pipeline)


def _has_flush(run: RunView) -> bool:
    return run.state.bubble is None or bool(run.state.bubble[1])


def anatomy_subtitle(run: RunView) -> tuple[str, ...]:
    """Return texts with the step number, the step's duration (for a pipeline, the run's bubble instead) and
    the age of the sample, in successively shorter forms."""
    sampled = run.state.anatomy
    if sampled is None:
        return ("",)
    texts = _anatomy_text(run, sampled)
    if run.is_over:
        return texts
    return _with_age(texts, age_text(run.now - sampled.started - sampled.seconds))


def _anatomy_text(run: RunView, sampled: StepAnatomy) -> tuple[str, ...]:
    seconds = sampled.seconds
    took = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
    step = tr("step {step}", step=format_count(sampled.step))
    if run.state.bubble is None or run.state.bubble[0] is None:
        return f"{step}, {took}", step
    measured, theory = run.state.bubble
    bubble = tr("bubble {measured:.2f}", measured=measured)
    if theory is None:
        texts = [tr("bubble {measured:.2f} measured", measured=measured), bubble]
    else:
        texts = [
            tr("bubble {measured:.2f} measured, {theory:.2f} in theory", measured=measured, theory=theory),
            tr("bubble {measured:.2f}, theory {theory:.2f}", measured=measured, theory=theory),
            bubble,
        ]
    return *(f"{step}, {text}" for text in texts), step


def card_sources(run: RunView) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the data source of the memory cards as (text, short text), then that of the other cards."""
    if not run.is_rehearsal:
        source = tr(run.source or "")
        return (source, source), ((source, source) if run.is_planned else ("", ""))
    rehearsal = tr(REHEARSAL)
    simulated = tr("simulated time (CPU rehearsal)"), tr(SIMULATED_TIME)
    return (tr(REHEARSAL_BYTES), rehearsal), (simulated if run.is_simulated else (rehearsal, rehearsal))
