"""From a live run to what the cards and the stat strip show: plain functions, one per card, no widgets made.

Everything that is not known yet becomes a dash or an empty row here, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rankdeck.base.units import format_bytes, format_count, format_duration, format_loss, format_rate
from rankdeck.run.anatomy import SIMULATED_TIME, StepAnatomy
from rankdeck.run.breakdown import highest_of
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.imbalance import lead_of
from rankdeck.run.left_out import left_out_in_words, training_data
from rankdeck.run.problems import failed_problem, lost_problem
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.widgets.anatomy import AnatomyFigure, AnatomyRow
from rankdeck_app.widgets.band_chart import BandFigure, MemoryLimit
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.chart_colors import KIND_LABELS, SCRIPT_KIND_LABELS
from rankdeck_app.widgets.heat_strip import HeatFigure, shares_of
from rankdeck_app.widgets.stat_strip import Stat, imbalance_stat
from rankdeck_app.widgets.time_words import age_words
from rankdeck_app.widgets.vram_bars import PREDICTED, BarsFigure, DeviceBar, prediction_text

REHEARSAL_BYTES = "tensor bytes on virtual devices (CPU rehearsal)"
REHEARSAL = "CPU rehearsal"

_SPAN_S = 60.0
_HEAT_COLUMNS = 240
_STALE_S = 3.0

Moments = tuple[float, float]
"""From and to, in seconds since the start of the run."""


def stats(run: RunAnswers) -> tuple[Stat, ...]:
    """The cells of the strip. While the run lives the fifth is its ETA, then its held-out loss."""
    total = f" / {format_count(run.steps)}" if run.steps is not None else ""
    step = UNKNOWN if run.step is None else format_count(run.step)
    rate = UNKNOWN if run.samples_per_s is None else format_rate(run.samples_per_s)
    elapsed = UNKNOWN if run.elapsed_s is None else format_duration(run.elapsed_s)
    widest_step = "8" * len(step) if run.steps is None else format_count(run.steps)
    return (
        Stat("Step", step + total, widest_step + total),
        loss_stat(run),
        Stat("Samples/s", rate, "88 888"),
        Stat("Elapsed", elapsed, "8:88:88"),
        _outlook(run),
        _balance(run),
    )


def loss_stat(run: RunAnswers) -> Stat:
    text = UNKNOWN if run.loss is None else format_loss(run.loss)
    is_lost = run.loss is not None and not math.isfinite(run.loss)
    return Stat("Loss (EMA)", text, text if is_lost else "88.8888", is_hot=is_lost)


def rate_subtitle(run: RunAnswers) -> tuple[str, str]:
    left_out = left_out_in_words(**training_data(run.fold) or {})
    return f"samples/s{left_out and f'; {left_out}'}", "samples/s"


def _outlook(run: RunAnswers) -> Stat:
    evaluation = run.evaluation
    if not run.is_over or evaluation is None:
        return Stat("ETA", UNKNOWN if run.eta_s is None else format_duration(run.eta_s), "8:88:88")
    loss = UNKNOWN if evaluation.loss is None else f"{evaluation.loss:.4f}"
    if evaluation.accuracy is None:
        return Stat("Held-out loss", loss, "88.8888")
    accuracy = f"{loss}  {100 * evaluation.accuracy:.1f}%"
    return Stat("Held-out loss, accuracy", accuracy, "88.8888  88.8%", short="Held-out, accuracy")


def _balance(run: RunAnswers) -> Stat:
    """The lead device against the median of the others; alone, a device shows its peak."""
    if len(run.devices) == 1:
        total_bytes = run.total_bytes_of(run.devices[0])
        value = UNKNOWN if total_bytes is None else format_bytes(total_bytes)
        return Stat(
            f"{run.label_of(run.devices[0])} {'live' if run.is_by_owners else 'peak'}", value, "888.8 MiB"
        )
    return imbalance_stat(run.imbalance, [run.label_of(device) for device in run.devices])


def bars(run: RunAnswers) -> BarsFigure:
    labels = SCRIPT_KIND_LABELS if run.is_script else KIND_LABELS
    found = tuple(_bar(run, device) for device in run.devices)
    has_ghosts = any(bar.ghost_bytes is not None for bar in found)
    ghost = f"with {run.cured.words}, {PREDICTED}" if run.cured is not None and has_ghosts else ""
    return BarsFigure(found, run.imbalance, run.capacity_bytes, labels, ghost)


def _bar(run: RunAnswers, device: DeviceFigures) -> DeviceBar:
    memory, label = run.memory_of(device), run.label_of(device)
    predicted, ghost = run.predicted_bytes_of(device), run.cured_bytes_of(device)
    if memory is None:
        return DeviceBar(
            label, device.used_bytes, note="in use now", predicted_bytes=predicted, ghost_bytes=ghost
        )
    note = f"live at the end of the step: {format_bytes(memory.live_bytes)}"
    if memory.reserved_bytes is not None:
        note += f"<br>reserved: {format_bytes(memory.reserved_bytes)}"
    return DeviceBar(
        label, memory.peak_bytes, memory.peak_by_kind, note, predicted_bytes=predicted, ghost_bytes=ghost
    )


def bars_subtitle(run: RunAnswers, figure: BarsFigure) -> tuple[str, ...]:
    """Which moment the bars show, of how much, and what was predicted; in ever fewer words."""
    if run.cured is not None:
        return run.cured.in_words(max((bar.ghost_bytes or 0 for bar in figure.bars), default=0))
    if not figure.largest_bytes:
        return ("",)
    of = "" if run.capacity_bytes is None else f", of {format_bytes(run.capacity_bytes, 0)}"
    when, age = _moment(run), memory_age(run)
    words = f"{when}{of}{_beside(figure)}", f"{when}{of}", when
    return *_aged(words, age), when.partition(" of ")[0]


def _aged(words: Sequence[str], age: str) -> tuple[str, ...]:
    """The words with their age, in ever fewer words, and then without."""
    if not age:
        return tuple(words)
    return *(f"{text}; sampled {age}" for text in words), *(f"{text}, {age}" for text in words), *words


def _moment(run: RunAnswers) -> str:
    if all(run.memory_of(device) is None for device in run.devices):
        return "in use now"
    step = format_count(max(device.memory_step or 0 for device in run.devices))
    if run.is_by_owners:
        return f"at step {step}"
    if not run.is_over:
        return f"peak of step {step}"
    sampled = [device.num_sampled for device in run.devices if device.num_sampled]
    return highest_of(min(sampled), run.fold.num_steps_measured) if sampled else "peak of the run"


def _beside(figure: BarsFigure) -> str:
    """The prediction for the fullest device."""
    fullest = max(figure.bars, key=lambda bar: bar.total_bytes or 0)
    if not fullest.total_bytes or fullest.predicted_bytes is None:
        return ""
    return f"; {prediction_text(fullest.total_bytes, fullest.predicted_bytes)}"


def moments(run: RunAnswers) -> Moments:
    """What every chart over time shows: the last minute, now at its right; all of the run once it is over, or
    while somebody looks back.

    It moves once a second: an axis that is laid out anew in every frame costs more than its curves.
    """
    if _shows_all(run):
        return 0.0, max(1.0, run.whole_s or 0.0)
    now_s = run.elapsed_s or 0.0
    return math.ceil(now_s) - _SPAN_S, float(math.ceil(now_s))


def _shows_all(run: RunAnswers) -> bool:
    return run.is_over or run.looked_back_at is not None


def memory_age(run: RunAnswers) -> str:
    """How old the newest known memory of any device is, while the run lives."""
    last = [device.memory_history.last_x for device in run.devices]
    known = [at for at in last if at is not None]
    return "" if not known or run.is_over else age_words((run.elapsed_s or 0.0) - max(known))


def band(run: RunAnswers) -> BandFigure:
    """Memory over time."""
    charted = run.charted
    limits = []
    if run.capacity_bytes is not None:
        limits.append(MemoryLimit(f"capacity {format_bytes(run.capacity_bytes, 0)}", run.capacity_bytes))
    predicted_bytes = _predicted_peak(run)
    if predicted_bytes is not None:
        name = f"predicted peak {format_bytes(predicted_bytes)}"
        short = f"predicted {format_bytes(predicted_bytes, 0)}"
        limits.append(MemoryLimit(name, predicted_bytes, is_hard=False, short=short))
    return BandFigure(
        labels=[run.label_of(device) for device in charted.devices],
        histories=[device.memory_history for device in charted.devices],
        lead=lead_of(run.imbalance),
        limits=tuple(limits),
        x_range=moments(run),
        is_live=not _shows_all(run),
    )


def _predicted_peak(run: RunAnswers) -> int | None:
    """Of the fullest device, in what the history is of: the driver's readings or sampled steps."""
    known = [run.predicted_bytes_of(device, as_read=bool(len(device.used_history))) for device in run.devices]
    return max((value for value in known if value is not None), default=None)


def band_subtitle(run: RunAnswers) -> tuple[str, ...]:
    if not any(len(device.memory_history) for device in run.devices):
        return ("",)
    if run.is_over:
        return ("whole run",)
    age = memory_age(run)
    if run.looked_back_at is not None:
        return f"whole run; sampled {age}", f"sampled {age}", age
    return f"last {_SPAN_S:.0f} s; sampled {age}", f"sampled {age}", age


def heat(run: RunAnswers, seen: Moments | None = None) -> HeatFigure:
    """Utilisation over the same time as memory; `seen` is what a person chose there."""
    histories = [device.utilisation_history for device in run.devices]
    newest = max((history.last_x for history in histories if history.last_x is not None), default=None)
    labels = [run.label_of(device) for device in run.devices]
    if newest is None:
        return HeatFigure(labels, None, [None] * len(labels))
    readings = [
        (device.utilisation_history, max(_STALE_S, device.interval_s + 0.5)) for device in run.charted.devices
    ]
    x0, x1 = seen or moments(run)
    column_s = (x1 - x0) / _HEAT_COLUMNS
    readings = [(history, max(reach_s, 2.5 * column_s)) for history, reach_s in readings]
    shares = shares_of(readings, x1, x1 - x0, column_s)
    values = [_value_now(device, newest) for device in run.devices]
    began_s = x0 if seen is not None or _shows_all(run) else None
    lead, at_s = lead_of(run.imbalance), run.looked_back_at
    return HeatFigure(labels, shares, values, x1 - x0, lead, began_s, at_s)


def heat_subtitle(run: RunAnswers, what: str) -> tuple[str, str]:
    return f"{what}, {'whole run' if _shows_all(run) else f'last {_SPAN_S:.0f} s'}", what


def _value_now(device: DeviceFigures, newest: float) -> float | None:
    """The mean of the last second, or None when the device has said nothing for longer than the others."""
    history = device.utilisation_history
    if history.last_x is None or history.last_x < newest - _STALE_S:
        return None
    window = history.window(newest - 1.0, newest, 100)
    return float(np.nanmean(window.high))


def anatomy(run: RunAnswers) -> AnatomyFigure:
    """The last sampled step, a row for each device of the run; of a pipeline, from its first forward on."""
    labels = [run.label_of(device) for device in run.devices]
    sampled = run.anatomy
    if sampled is None:
        return AnatomyFigure([AnatomyRow(label) for label in labels])
    spans = {row.device: row.spans for row in sampled.rows}
    rows = [AnatomyRow(run.label_of(device), spans.get(device.device, ())) for device in run.devices]
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
    step, bubble = f"step {format_count(sampled.step)}", run.bubble
    if bubble is None or bubble[0] is None:
        return f"{step}, {took}", step
    measured, theory = bubble
    if theory is None:
        return f"{step}, bubble {measured:.2f} measured", f"{step}, bubble {measured:.2f}", step
    return (
        f"{step}, bubble {measured:.2f} measured, {theory:.2f} theory",
        f"{step}, bubble {measured:.2f}, theory {theory:.2f}",
        f"{step}, bubble {measured:.2f}",
        step,
    )


def anatomy_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "phase", "start_s", "seconds", "stage", "microbatch", "bytes")
    sampled = run.anatomy
    for row in () if sampled is None else sampled.rows:
        for span in row.spans:
            label = (
                run.label_of(run.devices[row.device]) if row.device < len(run.devices) else str(row.device)
            )
            times = (f"{span.start_s:.6f}", f"{span.duration_s:.6f}")
            yield (label, span.name, *times, span.stage, span.microbatch, span.num_bytes)


def headline(run: RunAnswers) -> tuple[str, str, str] | None:
    """(tone, message, what next) of the state, or None where the figures say it all.

    Tones: info, error.
    """
    if run.ending == "stopping":
        return "info", "Stopping…" if run.is_script else "Stopping, saving a checkpoint…", ""
    if not run.is_over:
        if run.step is not None:
            return None
        return "info", "Starting ranks…", _awaited(run)
    if run.outcome == "completed":
        return None
    if run.outcome == "stopped":
        at = "before its first step" if run.step is None else f"at step {format_count(run.step)}"
        return "info", f"Stopped {at}.", run.end.reason or "" if run.end is not None else ""
    errors = [problem for problem in run.problems if problem.severity == "error"]
    unexplained = lost_problem if run.outcome == "lost" else failed_problem
    problem = errors[0] if errors else unexplained(run.run)
    rank = "" if problem.rank is None else f"Rank {problem.rank}"
    where = f"{rank}: " if rank and rank.lower() not in problem.message.lower() else ""
    return "error", f"{where}{problem.message}", problem.advice or ""


def _awaited(run: RunAnswers) -> str:
    phase = run.phase()
    if phase is not None:
        return f"{phase[0].upper()}{phase[1:]}"
    return "Waiting for the ranks to report." if run.strategy is not None else "Waiting for the supervisor."


def sources(run: RunAnswers) -> tuple[tuple[str, str], tuple[str, str]]:
    """(text, short text) of what the figures are: for the cards of memory, and for the others."""
    if run.is_script:
        source = run.source or ""
        return (source, source), ("", "")
    if not run.is_rehearsal:
        source = run.source or ""
        return (source, source), (source, source)
    simulated = (f"{SIMULATED_TIME} (CPU rehearsal)", SIMULATED_TIME)
    return (REHEARSAL_BYTES, REHEARSAL), (simulated if run.is_simulated else (REHEARSAL, REHEARSAL))


def bars_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    """CSV of the bars, in bytes."""
    figure = bars(run)
    yield ("device", "peak_bytes", *figure.labels, "predicted_bytes")
    for bar in figure.bars:
        kinds = bar.by_kind or {}
        yield (bar.label, bar.total_bytes, *(kinds.get(kind) for kind in figure.labels), bar.predicted_bytes)


def band_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "seconds", "bytes")
    for device in run.devices:
        for x, y in zip(*device.memory_history.points(), strict=True):
            yield (run.label_of(device), f"{x:.3f}", round(float(y)))


def heat_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "seconds", "busy")
    for device in run.devices:
        for x, y in zip(*device.utilisation_history.points(), strict=True):
            yield (run.label_of(device), f"{x:.3f}", f"{y:.4f}")


def loss_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    """Training losses, then held-out ones: a step has one row for each that it has."""
    yield ("step", "loss", "ema", "held_out")
    for step, loss, average in zip(*run.losses.points(), run.loss_ema.points()[1], strict=True):
        yield (int(step), f"{loss:.6g}", f"{average:.6g}", "")
    for step, loss in zip(*run.held_out.points(), strict=True):
        yield (int(step), "", "", f"{loss:.6g}")


def lr_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "lr")
    for step, lr in zip(*run.fold.lrs.points(), strict=True):
        yield (int(step), f"{lr:.6g}")


def norm_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "grad_norm")
    for step, norm in zip(*run.fold.grad_norms.points(), strict=True):
        yield (int(step), f"{norm:.6g}")


def rate_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "samples_per_s", "smoothed")
    for step, rate, smooth in zip(*run.rates.points(), run.rate_ema.points()[1], strict=True):
        yield (int(step), f"{rate:.6g}", f"{smooth:.6g}")
