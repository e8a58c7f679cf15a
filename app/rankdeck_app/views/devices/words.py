"""What a reading, a device and its users are in a few words, with the tone that they are said in.

What is not known says why: n/a (the device has no such reading), error, or a dash before the first answer.
Never a zero. Tones: "" | muted | hot.
"""

from __future__ import annotations

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes
from rankdeck.run.series import Series
from rankdeck.telemetry.readings import METRICS, Reading, throttle_words
from rankdeck.telemetry.registry import NOT_READ
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus, GpuState
from rankdeck_app.widgets.chart import UNKNOWN

MEASURED, SIMULATED = marked("measured on GPU"), marked("simulated devices")
HOT_C = 90.0


def source(gpus: Gpus) -> str:
    return tr(SIMULATED if gpus.is_simulated else MEASURED)


def series_of(gpus: Gpus, uuid: str, metric: str) -> Series:
    """What is still held of a metric; empty before the first reading."""
    return Series() if gpus.history is None else gpus.history.series(uuid, metric)


def reading_words(metric: str, reading: Reading) -> tuple[str, str]:
    """(text, tone) of a reading: the number with its unit, or why there is none."""
    if reading.value is None:
        if reading.state == "unsupported":
            return tr("n/a"), "muted"
        return (UNKNOWN if reading.detail == NOT_READ else tr("error")), "muted"
    return number_words(metric, reading.value), "muted" if reading.state != "value" else ""


def number_words(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    if unit == "B":
        return format_bytes(int(value))
    if unit == "ratio":
        return f"{100 * value:.0f}%"
    return {"W": f"{value:.0f} W", "C": f"{value:.0f}°C"}.get(unit, f"{value:.0f}")


def throttled_by(gpus: Gpus, uuid: str) -> tuple[str, str]:
    """(what lowers the clocks, tone)."""
    reading = gpus.reading(uuid, "throttle")
    if reading.value is None:
        return reading_words("throttle", reading)
    words = ", ".join(map(tr, throttle_words(int(reading.value))))
    return words or tr("none"), "hot" if words and reading.state == "value" else "muted"


def errors_of(gpus: Gpus, gpu: GpuState) -> tuple[str, str]:
    """(XID errors since the start and uncorrected memory errors, tone)."""
    xids = [
        notice.xid for notice in gpus.registry.notices if notice.uuid == gpu.uuid and notice.xid is not None
    ]
    reading = gpus.reading(gpu.uuid, "ecc_errors")
    parts = [f"XID {xid}" for xid in dict.fromkeys(reversed(xids))]
    if reading.value:
        parts.append(f"{reading.value:.0f} ECC")
    if parts:
        return ", ".join(parts), "hot"
    return (tr("none"), "muted") if reading.value is not None else reading_words("ecc_errors", reading)


def held_by(gpu: GpuState) -> tuple[str, str]:
    """(who holds memory of it, tone)."""
    if gpu.run is not None:
        return tr("run {name}", name=gpu.run_label()), ""
    if gpu.processes is None:
        return tr("n/a"), "muted"
    words = gpu.busy_words()
    return (words, "") if words else (tr("nobody"), "muted")
