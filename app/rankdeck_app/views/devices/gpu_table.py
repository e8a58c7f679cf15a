"""Builds the table of every metric, with a row per device, from the metric registry and the history."""

from __future__ import annotations

from functools import partial

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.run.imbalance import lead_device
from rankdeck.run.series import Series
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import METRICS, STATE_TEXTS, Reading, throttle_reasons
from rankdeck.telemetry.registry import NOT_READ
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus, busy_text, clock_time, run_label
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.metric_table import MetricCell, MetricColumn, MetricRow, MetricTableData

SCALE_C = 100.0


def columns() -> tuple[MetricColumn, ...]:
    def meaning(metric: str) -> str:
        return tr(METRICS[metric].description)

    throttled, errors = tr("reason for lowered clocks"), tr("XID errors, uncorrected memory errors")
    widest_run, holders = tr("run {name}", name="gpt2-large-dp"), tr("processes that hold memory")
    sm_clock, memory_clock = meaning("sm_clock_mhz"), meaning("memory_clock_mhz")
    return (
        MetricColumn(tr("VRAM"), "888.8 GiB", 4, meaning=meaning("used_bytes")),
        MetricColumn(tr("Busy"), "100%", 4, meaning=meaning("utilisation")),
        MetricColumn(tr("Power"), "888 W", 3, importance=8, meaning=meaning("power_w")),
        MetricColumn(tr("Temp"), "88°C", 2, importance=8, meaning=meaning("temperature_c")),
        MetricColumn(tr("SM clock"), "8888", 2, importance=5, meaning=f"MHz: {sm_clock}"),
        MetricColumn(tr("Mem clock"), "8888", importance=2, meaning=f"MHz: {memory_clock}"),
        MetricColumn(tr("Fan"), "100%", importance=3, meaning=meaning("fan")),
        MetricColumn(tr("Throttled by"), tr("thermal limit"), importance=6, is_text=True, meaning=throttled),
        MetricColumn(tr("Errors"), "XID 79, 2 ECC", importance=7, is_text=True, meaning=errors),
        MetricColumn(tr("Held by"), widest_run, importance=9, is_text=True, meaning=holders),
    )


def table(gpus: Gpus, span_s: float) -> MetricTableData:
    now_s = gpus.now_s
    lead = lead_device(gpus.imbalance())
    lead_uuid = None if lead is None else gpus.physical_gpus[lead].uuid
    tops = {metric: scale_max(gpus, metric) for metric in ("power_w", "sm_clock_mhz")}
    rows = [_row(gpus, gpu, tops, gpu.uuid == lead_uuid) for gpu in gpus.devices]
    return MetricTableData(rows, (now_s - span_s, now_s))


def scale_max(gpus: Gpus, metric: str) -> float:
    """Return the upper end of a metric's scale, the same for all devices: the highest limit, or a tenth above
    the highest current value if that is higher."""
    limits = [gpu.power_limit_w or 0.0 for gpu in gpus.devices] if metric == "power_w" else []
    values = [float(gpus.reading(gpu.uuid, metric).value or 0) for gpu in gpus.devices]
    # A tenth above the values, so that a curve at its maximum stays visible below the edge.
    return max([1.0, *limits, *(1.1 * value for value in values)])


def _row(gpus: Gpus, gpu: GpuStatus, tops: dict[str, float], is_lead: bool) -> MetricRow:
    # Without a known size, the scale ends at the largest reading so far.
    capacity = float(gpu.total_bytes or gpus.registry.peak_bytes.get(gpu.uuid) or 1)
    is_hot = gpu.temperature_c is not None and gpu.temperature_c >= HOT_C
    cells = (
        _cell(gpus, gpu, "used_bytes", capacity, is_lead),
        _cell(gpus, gpu, "utilisation", 1.0),
        _cell(gpus, gpu, "power_w", tops["power_w"]),
        _cell(gpus, gpu, "temperature_c", SCALE_C, is_hot),
        _cell(gpus, gpu, "sm_clock_mhz", tops["sm_clock_mhz"], throttle_text(gpus, gpu.uuid)[1] == "hot"),
        _cell(gpus, gpu, "memory_clock_mhz"),
        _cell(gpus, gpu, "fan"),
        MetricCell(*throttle_text(gpus, gpu.uuid)),
        MetricCell(*errors_text(gpus, gpu)),
        MetricCell(*holders_text(gpu)),
    )
    note = f"{gpu.name}\n{gpu.uuid}"
    if gpu.lost_at is not None:
        note = tr("lost at {time}: the device no longer responds", time=clock_time(gpu.lost_at))
    is_part, is_lost = gpu.parent is not None, gpu.lost_at is not None
    return MetricRow(gpu.uuid, gpu.label, cells, note, is_part, is_lost, is_lead)


def _cell(gpus: Gpus, gpu: GpuStatus, metric: str, top: float = 0.0, is_hot: bool = False) -> MetricCell:
    reading = gpus.reading(gpu.uuid, metric)
    text, tone = reading_text(metric, reading)
    meaning = tr(METRICS[metric].description)
    state = tr(STATE_TEXTS[reading.state])
    detail = tr(NOT_READ) if reading.detail == NOT_READ else reading.detail
    why = f"{state} ({detail})" if detail else state
    age = tr("{age:.1f} s old", age=reading.age_s) if reading.value is not None else why
    curve = series_of(gpus, gpu.uuid, metric) if top else None
    tone = tone or ("hot" if is_hot else "")
    hold_s = METRICS[metric].stale_after_s
    now = f"{gpu.label}: {text}\n{meaning}; {age}"
    return MetricCell(text, tone, curve, top or 1.0, hold_s, now, partial(format_reading, metric))


# Short texts for readings, devices and their users, each with a tone: "" | muted | hot.  An unknown value
# shows the reason, never a zero: n/a (the device has no such reading), error, or a dash before the first
# answer.

MEASURED, SIMULATED = tr_noop("measured on GPU"), tr_noop("simulated devices")
HOT_C = 90.0


def source(gpus: Gpus) -> str:
    return tr(SIMULATED if gpus.is_simulated else MEASURED)


def series_of(gpus: Gpus, uuid: str, metric: str) -> Series:
    """Return the stored readings of a metric; empty before the first reading."""
    return Series() if gpus.history is None else gpus.history.series(uuid, metric)


def reading_text(metric: str, reading: Reading) -> tuple[str, str]:
    """Return (text, tone) of a reading: the number with its unit, or the reason why there is no number."""
    if reading.value is None:
        if reading.state == "unsupported":
            return tr("n/a"), "muted"
        return (UNKNOWN if reading.detail == NOT_READ else tr("error")), "muted"
    return format_reading(metric, reading.value), "muted" if reading.state != "value" else ""


def format_reading(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    if unit == "B":
        return format_bytes(int(value))
    if unit == "ratio":
        return f"{100 * value:.0f}%"
    return {"W": f"{value:.0f} W", "C": f"{value:.0f}°C"}.get(unit, f"{value:.0f}")


def throttle_text(gpus: Gpus, uuid: str) -> tuple[str, str]:
    """Return (throttle reasons, tone)."""
    reading = gpus.reading(uuid, "throttle")
    if reading.value is None:
        return reading_text("throttle", reading)
    reasons = ", ".join(map(tr, throttle_reasons(int(reading.value))))
    return reasons or tr("none"), "hot" if reasons and reading.state == "value" else "muted"


def errors_text(gpus: Gpus, gpu: GpuStatus) -> tuple[str, str]:
    """Return (text, tone). The text lists the XID errors since monitoring started and the number of
    uncorrected memory errors."""
    xids = [
        notice.xid for notice in gpus.registry.notices if notice.uuid == gpu.uuid and notice.xid is not None
    ]
    reading = gpus.reading(gpu.uuid, "ecc_errors")
    # The newest comes first, because a narrow column cuts off the end.
    texts = [f"XID {xid}" for xid in dict.fromkeys(reversed(xids))]
    if reading.value:
        texts.append(f"{reading.value:.0f} ECC")
    if texts:
        return ", ".join(texts), "hot"
    return (tr("none"), "muted") if reading.value is not None else reading_text("ecc_errors", reading)


def holders_text(gpu: GpuStatus) -> tuple[str, str]:
    """Return (the processes that hold the device's memory, tone)."""
    if gpu.run is not None:
        return tr("run {name}", name=run_label(gpu)), ""
    if "processes" in gpu.states:
        return tr("n/a"), "muted"
    text = busy_text(gpu)
    return (text, "") if text else (tr("no process"), "muted")
