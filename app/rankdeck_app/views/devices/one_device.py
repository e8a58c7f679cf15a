"""One device in full: every metric over time, with its limits and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from rankdeck.base.phrases import marked
from rankdeck.telemetry.readings import METRICS
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus, GpuState
from rankdeck_app.views.devices.rows import SCALE_C, top_of
from rankdeck_app.views.devices.words import (
    HOT_C,
    errors_of,
    number_words,
    reading_words,
    series_of,
    throttled_by,
)  # fmt: skip
from rankdeck_app.widgets.device_tracks import Track, TrackLimit, TrackMark, TracksFigure

_MARKED = (marked("lost"), marked("back"), marked("slow"), marked("restarted"), marked("silent"))


def tracks(gpus: Gpus, gpu: GpuState, span_s: float) -> TracksFigure:
    """Every metric of one device, with its limits and what happened to it."""
    now_s = gpus.now_s
    device = gpus.registry.device(gpu.uuid)
    power_limit = (device.power_limit_w if device is not None else None) or 0.0
    total = float(gpu.total_bytes or 0)
    peak = float(gpus.registry.peak_bytes.get(gpu.uuid) or 0)
    vram_limits = [TrackLimit(total), TrackLimit(peak, is_hard=False)]
    power_top, clock_top = 1.1 * top_of(gpus, "power_w"), _clock_top(gpus, gpu)
    tracks = [
        _track(gpus, gpu, tr("VRAM"), "used_bytes", 1.06 * max(total, peak, 1.0), limits=vram_limits),
        _track(gpus, gpu, tr("Busy, memory busy"), "utilisation", 1.0, second="memory_utilisation"),
        _track(gpus, gpu, tr("Power"), "power_w", power_top, limits=[TrackLimit(power_limit)]),
        _track(
            gpus, gpu, tr("Temperature"), "temperature_c", SCALE_C, limits=[TrackLimit(HOT_C, is_hard=False)]
        ),
        _track(gpus, gpu, tr("SM, memory clock, MHz"), "sm_clock_mhz", clock_top, second="memory_clock_mhz"),
        _track(gpus, gpu, tr("Fan"), "fan", 1.0),
        _throttle_track(gpus, gpu),
        _error_track(gpus, gpu, _marks(gpus, gpu)),
    ]
    return TracksFigure(tracks, (now_s - span_s, now_s), gpu.lost_at is not None)


def _clock_top(gpus: Gpus, gpu: GpuState) -> float:
    values = [gpus.reading(gpu.uuid, metric).value or 0 for metric in ("sm_clock_mhz", "memory_clock_mhz")]
    return 1.1 * max(1.0, *(float(value) for value in values))


def _track(
    gpus: Gpus,
    gpu: GpuState,
    title: str,
    metric: str,
    top: float,
    *,
    second: str = "",
    limits: Sequence[TrackLimit] = (),
) -> Track:
    reading = gpus.reading(gpu.uuid, metric)
    text, tone = reading_words(metric, reading)
    if second:
        text += f"  {reading_words(second, gpus.reading(gpu.uuid, second))[0]}"
    if reading.state == "stale":
        text = tr("{reading}, {age:.0f} s old", reading=text, age=reading.age_s)
    return Track(
        title,
        text,
        series_of(gpus, gpu.uuid, metric),
        top,
        METRICS[metric].stale_after_s,
        series_of(gpus, gpu.uuid, second) if second else None,
        limits,
        tone=tone,
        in_words=partial(number_words, metric),
    )


def _throttle_track(gpus: Gpus, gpu: GpuState) -> Track:
    text, tone = throttled_by(gpus, gpu.uuid)
    curve = None if gpus.history is None else gpus.history.throttled(gpu.uuid)
    return Track(tr("Throttled by"), text, curve, 1.0, METRICS["throttle"].stale_after_s, tone=tone)


def _error_track(gpus: Gpus, gpu: GpuState, marks: Sequence[TrackMark]) -> Track:
    text, tone = errors_of(gpus, gpu)
    top = max(1.0, 1.1 * float(gpus.reading(gpu.uuid, "ecc_errors").value or 0))
    curve, hold_s = series_of(gpus, gpu.uuid, "ecc_errors"), METRICS["ecc_errors"].stale_after_s
    return Track(tr("ECC errors, XID events"), text, curve, top, hold_s, marks=marks, tone=tone)


def _marks(gpus: Gpus, gpu: GpuState) -> list[TrackMark]:
    since = time.time() - gpus.now_s
    return [
        TrackMark(notice.t - since, tr(notice.code) if notice.xid is None else f"XID {notice.xid}")
        for notice in gpus.registry.notices
        if notice.uuid in (gpu.uuid, None) and (notice.xid is not None or notice.code in _MARKED)
    ]
