"""From a live run to what the cards and the stat strip show: plain functions, one per card, no widgets made.

Everything that is not known yet becomes a dash or an empty row here, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes, format_count, format_duration, format_loss, format_rate
from rankdeck.run.anatomy import SIMULATED_TIME, StepAnatomy
from rankdeck.run.breakdown import highest_of
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.imbalance import lead_of
from rankdeck.run.problems import failed_problem, lost_problem
from rankdeck.run.summarising import training_data
from rankdeck_app.language import in_words, spoken, tr
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.widgets.anatomy import AnatomyFigure, AnatomyRow
from rankdeck_app.widgets.band_chart import BandFigure, MemoryLimit
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.chart_colors import KIND_LABELS, SCRIPT_KIND_LABELS
from rankdeck_app.widgets.heat_strip import COLUMNS, HeatFigure, shares_of
from rankdeck_app.widgets.stat_strip import Stat, imbalance_stat
from rankdeck_app.widgets.time_words import age_words, span_in_words
from rankdeck_app.widgets.vram_bars import BarsFigure, DeviceBar, prediction_text

REHEARSAL_BYTES = marked("tensor bytes on virtual devices (CPU rehearsal)")
REHEARSAL = marked("CPU rehearsal")

_SPAN_S = 60.0
_STALE_S = 3.0

Moments = tuple[float, float]
"""From and to, in seconds since the start of the run."""


def stats(run: RunAnswers) -> tuple[Stat, ...]:
    """The cells of the strip. While the run lives the fifth is its ETA, then its held-out loss."""
    total = f" / {format_count(run.steps)}" if run.steps is not None else ""
    step = UNKNOWN if run.step is None else format_count(run.step)
    elapsed = UNKNOWN if run.elapsed_s is None else format_duration(run.elapsed_s)
    widest_step = "8" * len(step) if run.steps is None else format_count(run.steps)
    return (
        Stat(tr("Step"), step + total, widest_step + total),
        loss_stat(run),
        Stat(tr("Samples/s"), rate_text(run, run.samples_per_s), "88 888"),
        Stat(tr("Elapsed"), elapsed, "8:88:88"),
        _outlook(run),
        _balance(run),
    )


def rate_text(run: RunAnswers, rate: float | None) -> str:
    """A rate of now: none while ranks make no progress."""
    return UNKNOWN if rate is None else format_rate(0.0 if run.standstill is not None else rate)


def loss_stat(run: RunAnswers) -> Stat:
    is_lost = run.loss is not None and not math.isfinite(run.loss)
    text = UNKNOWN if run.loss is None else tr("not finite") if is_lost else format_loss(run.loss)
    return Stat(tr("Last loss"), text, text if is_lost else "88.8888", is_hot=is_lost)


def rate_subtitle(run: RunAnswers) -> tuple[str, str]:
    data = training_data(run.fold)
    left_out = spoken(data.text()) if data is not None else ""
    return "; ".join(filter(None, (tr("samples/s"), left_out))), tr("samples/s")


def _outlook(run: RunAnswers) -> Stat:
    if not run.is_over:
        return Stat(tr("ETA"), UNKNOWN if run.eta_s is None else format_duration(run.eta_s), "8:88:88")
    evaluation = run.evaluation
    loss = UNKNOWN if evaluation is None or evaluation.loss is None else f"{evaluation.loss:.4f}"
    if evaluation is None or evaluation.accuracy is None:
        return Stat(tr("Held-out loss"), loss, "88.8888")
    accuracy = f"{loss}  {100 * evaluation.accuracy:.1f}%"
    short = tr("Held-out, accuracy")
    return Stat(tr("Held-out loss, accuracy"), accuracy, "88.8888  88.8%", short=short)


def _balance(run: RunAnswers) -> Stat:
    """The lead device against the median of the others; alone, a device shows its peak."""
    if len(run.devices) == 1:
        total_bytes = run.total_bytes_of(run.devices[0])
        value = UNKNOWN if total_bytes is None else format_bytes(total_bytes)
        device = run.label_of(run.devices[0])
        label = tr("{device} live", device=device) if run.is_by_owners else tr("{device} peak", device=device)
        return Stat(label, value, "888.8 MiB")
    return imbalance_stat(run.imbalance, [run.label_of(device) for device in run.rows])


def bars(run: RunAnswers) -> BarsFigure:
    labels = SCRIPT_KIND_LABELS if run.is_script else KIND_LABELS
    found = tuple(_bar(run, device) for device in run.rows)
    has_ghosts = any(bar.ghost_bytes is not None for bar in found)
    plan = run.fix_plan if has_ghosts else None
    ghost = "" if plan is None else tr("with {fix}, predicted", fix=plan.text)
    return BarsFigure(found, run.imbalance, run.capacity_bytes, labels, ghost)


def _bar(run: RunAnswers, device: DeviceFigures) -> DeviceBar:
    memory, label = run.memory_of(device), run.label_of(device)
    bar = DeviceBar(
        label,
        device.used_bytes,
        note=tr("in use now"),
        is_old=device.host in run.silent_hosts,
        predicted_bytes=run.predicted_bytes_of(device),
        ghost_bytes=run.fix_bytes_of(device),
        host=device.host,
    )
    if memory is None:
        return bar
    note = tr("live at the end of the step: {size}", size=format_bytes(memory.live_bytes))
    if memory.reserved_bytes is not None:
        reserved = tr("reserved: {size}", size=format_bytes(memory.reserved_bytes))
        note += f"<br>{reserved}"
    return replace(bar, total_bytes=memory.peak_bytes, by_kind=memory.peak_by_kind, note=note)


def bars_subtitle(run: RunAnswers, figure: BarsFigure) -> tuple[str, ...]:
    """Which moment the bars show, of how much, and what was predicted; in ever fewer words."""
    if run.fix_plan is not None:
        return run.fix_plan.in_words(max((bar.ghost_bytes or 0 for bar in figure.bars), default=0))
    if not figure.largest_bytes:
        return ("",)
    when, short = _moment(run)
    of_all = when
    if run.capacity_bytes is not None:
        of_all = tr("{moment}, of {size}", moment=when, size=format_bytes(run.capacity_bytes, 0))
    words = *_aged(("; ".join(filter(None, (of_all, _beside(figure)))), of_all, when), memory_age(run)), short
    if not run.is_by_hosts:
        return words
    fullest = tr("fullest of each host")
    return *(f"{fullest}; {text}" for text in words), fullest, short


def _aged(words: Sequence[str], age: str) -> tuple[str, ...]:
    """The words with their age, in ever fewer words, and then without."""
    if not age:
        return tuple(words)
    sampled = tr("sampled {age}", age=age)
    return *(f"{text}; {sampled}" for text in words), *(f"{text}, {age}" for text in words), *words


def _moment(run: RunAnswers) -> tuple[str, str]:
    """In words, and in as few as there can be."""
    if all(run.memory_of(device) is None for device in run.devices):
        return tr("in use now"), tr("in use now")
    step = format_count(max(device.memory_step or 0 for device in run.devices))
    if run.is_by_owners:
        at_step = tr("at step {step}", step=step)
        return at_step, at_step
    if not run.is_over:
        return tr("peak of step {step}", step=step), tr("peak")
    sampled = [device.num_sampled for device in run.devices if device.num_sampled]
    if not sampled:
        return tr("peak of the run"), tr("peak")
    return spoken(highest_of(min(sampled), run.fold.num_steps_measured)), tr("highest")


def _beside(figure: BarsFigure) -> str:
    """The prediction for the fullest device."""
    fullest = max(figure.bars, key=lambda bar: bar.total_bytes or 0)
    if not fullest.total_bytes or fullest.predicted_bytes is None:
        return ""
    return prediction_text(fullest.total_bytes, fullest.predicted_bytes)


def moments(run: RunAnswers) -> Moments:
    """What every chart over time shows: the last minute, now at its right; all of the run once it is over, or
    while somebody looks back.

    It moves once a second: an axis that is laid out anew in every frame costs more than its curves.
    """
    if _shows_all(run):
        return 0.0, max(1.0, run.whole_s or 0.0)
    now_s = run.since_start_s or 0.0
    return math.ceil(now_s) - _SPAN_S, float(math.ceil(now_s))


def _shows_all(run: RunAnswers) -> bool:
    return run.is_over or run.looked_back_at is not None


def memory_age(run: RunAnswers) -> str:
    """How old the newest known memory of any device is, while the run lives."""
    last = [device.memory_history.last_x for device in run.rows]
    known = [at for at in last if at is not None]
    return "" if not known or run.is_over else age_words((run.since_start_s or 0.0) - max(known))


def band(run: RunAnswers) -> BandFigure:
    """Memory over time."""
    charted = run.charted
    limits = []
    if run.capacity_bytes is not None:
        name = tr("capacity {size}", size=format_bytes(run.capacity_bytes, 0))
        limits.append(MemoryLimit(name, run.capacity_bytes))
    predicted_bytes = _predicted_peak(run)
    if predicted_bytes is not None:
        name = tr("predicted peak {size}", size=format_bytes(predicted_bytes))
        short = tr("predicted {size}", size=format_bytes(predicted_bytes, 0))
        limits.append(MemoryLimit(name, predicted_bytes, is_hard=False, short=short))
    return BandFigure(
        labels=[run.label_of(device) for device in charted.rows],
        histories=[device.memory_history for device in charted.rows],
        lead=lead_of(run.imbalance),
        limits=tuple(limits),
        x_range=moments(run),
        is_live=not _shows_all(run),
        awaited=tr("no step was sampled") if run.is_over else "",
    )


def _predicted_peak(run: RunAnswers) -> int | None:
    """Of the fullest device, in what the history is of: the driver's readings or sampled steps."""
    known = [run.predicted_bytes_of(device, as_read=bool(len(device.used_history))) for device in run.rows]
    return max((value for value in known if value is not None), default=None)


def band_subtitle(run: RunAnswers) -> tuple[str, ...]:
    if not any(len(device.memory_history) for device in run.rows):
        return ("",)
    if run.is_over:
        return (tr("whole run"),)
    age = memory_age(run)
    sampled = tr("sampled {age}", age=age)
    return f"{_span(run)}; {sampled}", sampled, age


def _span(run: RunAnswers) -> str:
    """What every chart over time shows, in words."""
    return tr("whole run") if _shows_all(run) else tr("last {seconds:.0f} s", seconds=_SPAN_S)


def heat(run: RunAnswers, seen: Moments | None = None) -> HeatFigure:
    """Utilisation over the same time as memory; `seen` is what a person chose there."""
    histories = [device.utilisation_history for device in run.rows]
    newest = max((history.last_x for history in histories if history.last_x is not None), default=None)
    labels, hosts = [run.label_of(device) for device in run.rows], [one.host for one in run.rows]
    x0, x1 = seen or moments(run)
    began_s = x0 if seen is not None or _shows_all(run) else None
    if newest is None:
        unread = [None] * len(labels)
        return HeatFigure(labels, None, unread, x1 - x0, None, began_s, is_over=run.is_over, hosts=hosts)
    shown = {device.device for device in run.rows}
    charted = [device for device in run.charted.devices if device.device in shown]
    readings = [(one.utilisation_history, max(_STALE_S, one.interval_s + 0.5)) for one in charted]
    column_s = (x1 - x0) / COLUMNS
    readings = [(history, max(reach_s, 2.5 * column_s)) for history, reach_s in readings]
    shares = shares_of(readings, x1, x1 - x0, column_s)
    values = [_value_now(device, newest) for device in run.rows]
    lead, at_s = lead_of(run.imbalance), run.looked_back_at
    return HeatFigure(labels, shares, values, x1 - x0, lead, began_s, at_s, hosts=hosts)


def heat_subtitle(run: RunAnswers, what: str) -> tuple[str, str]:
    return f"{what}, {_span(run)}", what


def _value_now(device: DeviceFigures, newest: float) -> float | None:
    """The mean of the last second, or None when the device has said nothing for longer than the others."""
    history = device.utilisation_history
    if history.last_x is None or history.last_x < newest - _STALE_S:
        return None
    window = history.window(newest - 1.0, newest, 100)
    return float(np.nanmean(window.high))


def anatomy(run: RunAnswers) -> AnatomyFigure:
    """The last sampled step, a row for each device of the run; of a pipeline, from its first forward on."""
    sampled = run.anatomy
    spans = {} if sampled is None else {row.device: row.spans for row in sampled.rows}
    rows = [AnatomyRow(run.label_of(one), spans.get(one.device, ()), one.host) for one in run.rows]
    if sampled is None:
        return AnatomyFigure(rows, is_over=run.is_over)
    window = sampled.pipeline_window if _flushes(run) else None
    start_s, end_s = window or (min(row.spans[0].start_s for row in sampled.rows), sampled.seconds)
    return AnatomyFigure(rows, start_s, end_s, is_pipeline=sampled.is_pipeline)


def _flushes(run: RunAnswers) -> bool:
    return run.bubble is None or bool(run.bubble[1])


def anatomy_subtitle(run: RunAnswers) -> tuple[str, ...]:
    """The step and how long it took, or of a pipeline the run's bubble; and how old that is."""
    sampled = run.anatomy
    if sampled is None:
        return ("",)
    words = _of_step(run, sampled)
    if run.is_over:
        return words
    return _aged(words, age_words(run.now - sampled.began - sampled.seconds))


def _of_step(run: RunAnswers, sampled: StepAnatomy) -> tuple[str, ...]:
    seconds = sampled.seconds
    took = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
    step = tr("step {step}", step=format_count(sampled.step))
    if run.bubble is None or run.bubble[0] is None:
        return f"{step}, {took}", step
    measured, theory = run.bubble
    bubble = tr("bubble {measured:.2f}", measured=measured)
    if theory is None:
        words = [tr("bubble {measured:.2f} measured", measured=measured), bubble]
    else:
        words = [
            tr("bubble {measured:.2f} measured, {theory:.2f} theory", measured=measured, theory=theory),
            tr("bubble {measured:.2f}, theory {theory:.2f}", measured=measured, theory=theory),
            bubble,
        ]
    return *(f"{step}, {text}" for text in words), step


def headline(run: RunAnswers) -> tuple[str, str, str] | None:
    """(tone, message, what next) of the state, or None where the figures say it all.

    Tones: info, warning, error.
    """
    if run.ending == "stopping":
        return "info", tr("Stopping…") if run.is_script else tr("Stopping, saving a checkpoint…"), ""
    if not run.is_over:
        if run.silent_hosts:
            host, seconds = max(run.silent_hosts.items(), key=lambda item: item[1])
            words = tr("{host} has told nothing for {time}.", host=host, time=span_in_words(seconds))
            return "info", words, tr("What is shown of it is old.")
        if (still := run.standstill_problem) is not None:
            return "warning", _of_rank(still), still.advice or ""
        if run.step is not None:
            return None
        return "info", tr("Starting ranks…"), _awaited(run)
    if run.outcome == "completed":
        return None
    if run.outcome == "stopped":
        reason = run.end.reason or "" if run.end is not None else ""
        if run.step is None:
            return "info", tr("Stopped before its first step."), reason
        return "info", tr("Stopped at step {step}.", step=format_count(run.step)), reason
    errors = [problem for problem in run.fold.problems if problem.severity == "error"]
    unexplained = lost_problem if run.outcome == "lost" else failed_problem
    problem = errors[0] if errors else unexplained(run.run)
    said = in_words(problem)
    return "error", _of_rank(said), said.advice or ""


def _of_rank(problem: Problem) -> str:
    """The message, with the rank and the host that it is of."""
    told = {"rank": problem.rank, "host": problem.host, "message": problem.message}
    if problem.rank is not None and problem.host:
        return tr("Rank {rank} on {host}: {message}", **told)
    if problem.rank is not None and f"rank {problem.rank}" not in problem.message.lower():
        return tr("Rank {rank}: {message}", **told)
    return problem.message


def _awaited(run: RunAnswers) -> str:
    phase = run.phase()
    if phase is not None:
        return f"{phase[0].upper()}{phase[1:]}"
    if run.strategy is not None:
        return tr("Waiting for the ranks to report.")
    return tr("Waiting for the supervisor.")


def sources(run: RunAnswers) -> tuple[tuple[str, str], tuple[str, str]]:
    """(text, short text) of what the figures are: for the cards of memory, and for the others."""
    if run.is_script:
        source = tr(run.source or "")
        return (source, source), ("", "")
    if not run.is_rehearsal:
        source = tr(run.source or "")
        return (source, source), (source, source)
    rehearsal = tr(REHEARSAL)
    simulated = tr("simulated time (CPU rehearsal)"), tr(SIMULATED_TIME)
    return (tr(REHEARSAL_BYTES), rehearsal), (simulated if run.is_simulated else (rehearsal, rehearsal))
