"""From the sampler's board and history to what the cards of the Devices tab show: plain functions.

What is not known says why: n/a (the device has no such reading), error, old, or a dash before the first
answer. Never a zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankdeck.imbalance import Imbalance, imbalance_of
from rankdeck.telemetry.readings import METRICS, Reading, throttle_words
from rankdeck.units import format_bytes
from rankdeck_app.state.gpus import Gpu, Gpus
from rankdeck_app.state.series import Series
from rankdeck_app.widgets.band_chart import BandFigure, Limit
from rankdeck_app.widgets.chart_colors import HOLDER_LABELS, byte_unit
from rankdeck_app.widgets.device_tracks import Limit as LineLimit
from rankdeck_app.widgets.device_tracks import Mark, Track, TracksFigure
from rankdeck_app.widgets.heat_strip import HeatFigure, shares_of
from rankdeck_app.widgets.holder_list import Holder, HoldersFigure
from rankdeck_app.widgets.metric_table import Cell, Column, Row, TableFigure
from rankdeck_app.widgets.stat_strip import Stat
from rankdeck_app.widgets.vram_bars import BarsFigure, DeviceBar

if TYPE_CHECKING:
    from rankdeck.telemetry.readings import Device

UNKNOWN = "–"
MEASURED, SIMULATED = "measured on GPU", "simulated devices"
OUTSIDE = "other, outside this namespace"
_HOT_C = 90.0
_SCALE_C = 100.0
_HEAT_COLUMNS = 240

COLUMNS = (
    Column("VRAM", "888.8 GiB", 4, meaning=METRICS["used_bytes"].meaning),
    Column("Busy", "100%", 4, meaning=METRICS["utilisation"].meaning),
    Column("Power", "888 W", 3, keep=8, meaning=METRICS["power_w"].meaning),
    Column("Temp", "88°C", 2, keep=8, meaning=METRICS["temperature_c"].meaning),
    Column("SM clock", "8888", 2, keep=5, meaning="MHz: " + METRICS["sm_clock_mhz"].meaning),
    Column("Mem clock", "8888", keep=2, meaning="MHz: " + METRICS["memory_clock_mhz"].meaning),
    Column("Fan", "100%", keep=3, meaning=METRICS["fan"].meaning),
    Column("Throttled by", "thermal limit", keep=6, is_text=True, meaning="why clocks are lowered"),
    Column("Errors", "XID 79, 2 ECC", keep=7, is_text=True, meaning="XID errors, uncorrected memory errors"),
    Column("Held by", "python 55 GiB, …", keep=9, is_text=True, meaning="processes that hold memory"),
)


def clock_time(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def source(gpus: Gpus) -> str:
    return SIMULATED if gpus.is_simulated else MEASURED


# All of them


def stats(gpus: Gpus) -> list[Stat]:
    there = [gpu for gpu in gpus.whole if gpu.lost_at is None]
    used = [gpu.used_bytes for gpu in there if gpu.used_bytes is not None]
    totals = [gpu.total_bytes for gpu in there if gpu.total_bytes is not None]
    divisor, unit = byte_unit(max([*totals, *used], default=1))
    vram = f"{sum(used) / divisor:.1f}" if used else UNKNOWN
    if len(totals) == len(there) and totals:
        vram += f" / {sum(totals) / divisor:.0f} {unit}"
    busy = [gpu.utilisation for gpu in there if gpu.utilisation is not None]
    watts = [gpu.power_w for gpu in there if gpu.power_w is not None]
    hottest = max(
        (gpu for gpu in there if gpu.temperature_c is not None),
        key=lambda gpu: gpu.temperature_c or 0,
        default=None,
    )
    is_hot = hottest is not None and (hottest.temperature_c or 0) >= _HOT_C
    return [
        Stat("VRAM in use", vram, "888.8 / 8888 GiB"),
        Stat("Busy, mean", f"{100 * sum(busy) / len(busy):.0f}%" if busy else UNKNOWN, "100%"),
        Stat("Power", _watts(sum(watts)) if watts else UNKNOWN, "88.88 kW"),
        Stat(
            f"Hottest, {hottest.label}" if hottest else "Hottest",
            f"{hottest.temperature_c:.0f}°C" if hottest and hottest.temperature_c is not None else UNKNOWN,
            "Hottest, GPU 15",
            is_hot,
        ),
        _health(gpus),
        _balance(gpus),
    ]


def _watts(watts: float) -> str:
    return f"{watts / 1000:.2f} kW" if watts >= 1000 else f"{watts:.0f} W"


def _health(gpus: Gpus) -> Stat:
    """How many devices are in trouble, of which kind."""
    lost = [gpu for gpu in gpus.whole if gpu.lost_at is not None]
    if lost:
        words = lost[0].label if len(lost) == 1 else f"{len(lost)} GPUs"
        return Stat("Lost", words, "88 GPUs", True)
    if any(gpu.is_stale for gpu in gpus.devices):
        return Stat("Readings", "old", "88 GPUs", True)
    faulty = [gpu for gpu in gpus.devices if errors_of(gpus, gpu)[1] == "hot"]
    if faulty:
        return Stat(
            "With errors", faulty[0].label if len(faulty) == 1 else f"{len(faulty)} GPUs", "88 GPUs", True
        )
    slowed = [gpu for gpu in gpus.devices if throttled_by(gpus, gpu.uuid)[1] == "hot"]
    if slowed:
        return Stat(
            "Throttled", slowed[0].label if len(slowed) == 1 else f"{len(slowed)} GPUs", "88 GPUs", True
        )
    return Stat("Trouble", "none" if gpus.devices else UNKNOWN, "88 GPUs")


def _balance(gpus: Gpus) -> Stat:
    found = imbalance(gpus)
    if found is None:
        return Stat("Lead vs median", UNKNOWN, "+888.8 GiB  (8.8×)")
    ratio = "" if found.ratio is None else f"  ({found.ratio:.1f}×)"
    label = f"{gpus.whole[found.device].label} vs median of the others"
    return Stat(label, f"+{format_bytes(found.excess_bytes)}{ratio}", "+888.8 GiB  (8.8×)", found.is_notable)


def imbalance(gpus: Gpus) -> Imbalance | None:
    """Of the devices that one run, or one process, holds together; by the place among `gpus.whole`.

    Devices that have nothing to do with each other are not out of balance.
    """
    together: dict[object, set[int]] = {}
    for place, gpu in enumerate(gpus.whole):
        if gpu.lost_at is not None or gpu.used_bytes is None:
            continue
        keys: list[object] = (
            [gpu.run] if gpu.run is not None else [item.pid for item in gpu.others if not item.foreign]
        )
        for key in keys:
            together.setdefault(key, set()).add(place)
    largest = max(together.values(), key=len, default=set())
    return imbalance_of({place: gpus.whole[place].used_bytes for place in sorted(largest)})


def bars(gpus: Gpus) -> BarsFigure:
    totals = [gpu.total_bytes for gpu in gpus.whole if gpu.total_bytes is not None]
    return BarsFigure(
        tuple(_bar(gpus, gpu) for gpu in gpus.whole),
        imbalance(gpus),
        max(totals, default=None),
        HOLDER_LABELS,
    )


def _bar(gpus: Gpus, gpu: Gpu) -> DeviceBar:
    if gpu.lost_at is not None:
        return DeviceBar(gpu.label, None, missing="lost", note=f"lost at {clock_time(gpu.lost_at)}")
    note = "old figures" if gpu.is_stale else f"peak since the start: {_peak_words(gpus, gpu)}"
    held: dict[str, int] = {}
    for holder in holders(gpus, gpu).holders:
        if holder.kind in HOLDER_LABELS and holder.num_bytes:
            held[holder.kind] = held.get(holder.kind, 0) + holder.num_bytes
    return DeviceBar(gpu.label, gpu.used_bytes, held, note, "old" if gpu.is_stale else "–")


def _peak_words(gpus: Gpus, gpu: Gpu) -> str:
    peak = gpus.board.peak_bytes.get(gpu.uuid)
    return UNKNOWN if peak is None else format_bytes(peak)


def bars_subtitle(gpus: Gpus) -> str:
    figure = bars(gpus)
    if not figure.largest_bytes:
        return ""
    divisor, unit = figure.unit
    of = f" of {figure.capacity_bytes / divisor:.0f}" if figure.capacity_bytes else ""
    return f"now, {unit}{of}"


def band(gpus: Gpus, span_s: float) -> BandFigure:
    """The lead device and the rest; of all GPUs that told anything in the window."""
    history = gpus.history
    if history is None:
        return BandFigure()
    now_s = gpus.now_s
    known = [
        (place, series)
        for place, gpu in enumerate(gpus.whole)
        if gpu.lost_at is None and _was_told(series := history.series(gpu.uuid, "used_bytes"), now_s - span_s)
    ]
    found = imbalance(gpus)
    places = [place for place, _ in known]
    is_notable = found is not None and found.is_notable and found.device in places
    lead = places.index(found.device) if found is not None and is_notable else 0
    totals = {gpu.total_bytes for gpu in gpus.whole if gpu.total_bytes is not None}
    limits = tuple(Limit(f"capacity {format_bytes(total, 0)}", total) for total in sorted(totals)[:1])
    return BandFigure(
        labels=[gpus.whole[place].label for place in places],
        histories=[series for _, series in known],
        lead=lead,
        is_notable=is_notable,
        limits=limits if len(totals) == 1 else (),
        now_s=now_s,
        span_s=span_s,
    )


def _was_told(series: Series, since_s: float) -> bool:
    return series.last_x is not None and series.last_x >= since_s and math.isfinite(series.last_y or math.nan)


def heat(gpus: Gpus, span_s: float) -> HeatFigure:
    whole = gpus.whole
    labels = [gpu.label for gpu in whole]
    history = gpus.history
    if history is None:
        return HeatFigure(labels, None, [None] * len(labels), span_s)
    column_s = span_s / _HEAT_COLUMNS
    end = math.ceil(gpus.now_s / column_s) * column_s
    columns = end - span_s + column_s * (np.arange(_HEAT_COLUMNS) + 0.5)
    reach_s = max(METRICS["utilisation"].stale_after_s, column_s)
    rows = [shares_of(history.series(gpu.uuid, "utilisation"), columns, column_s, reach_s) for gpu in whole]
    found = imbalance(gpus)
    lead = found.device if found is not None and found.is_notable else None
    shares = np.stack(rows) if rows else None
    return HeatFigure(labels, shares, [gpu.utilisation for gpu in whole], span_s, lead)


# The table


def table(gpus: Gpus, span_s: float) -> TableFigure:
    now_s = gpus.now_s
    found = imbalance(gpus)
    whole = gpus.whole
    lead = whole[found.device].uuid if found is not None and found.is_notable else ""
    tops = {metric: _top(gpus, metric) for metric in ("power_w", "sm_clock_mhz")}
    rows = [_row(gpus, gpu, tops, gpu.uuid == lead) for gpu in gpus.devices]
    return TableFigure(rows, (now_s - span_s, now_s))


def _top(gpus: Gpus, metric: str) -> float:
    """One scale for all devices: the highest limit, or the highest value of now."""
    limits = [device.power_limit_w or 0.0 for device in gpus.board.devices] if metric == "power_w" else []
    values = [float(gpus.reading(gpu.uuid, metric).value or 0) for gpu in gpus.devices]
    return max([1.0, *limits, *(1.1 * value for value in values)])


def _row(gpus: Gpus, gpu: Gpu, tops: dict[str, float], is_lead: bool) -> Row:
    cells = (
        _cell(
            gpus,
            gpu,
            "used_bytes",
            float(gpu.total_bytes or gpus.board.peak_bytes.get(gpu.uuid) or 1),
            is_lead,
        ),
        _cell(gpus, gpu, "utilisation", 1.0),
        _cell(gpus, gpu, "power_w", tops["power_w"]),
        _cell(gpus, gpu, "temperature_c", _SCALE_C, _at_least(gpus, gpu, "temperature_c", _HOT_C)),
        _cell(gpus, gpu, "sm_clock_mhz", tops["sm_clock_mhz"], throttled_by(gpus, gpu.uuid)[1] == "hot"),
        _cell(gpus, gpu, "memory_clock_mhz"),
        _cell(gpus, gpu, "fan"),
        Cell(*throttled_by(gpus, gpu.uuid)),
        Cell(*errors_of(gpus, gpu)),
        Cell(*held_by(gpu)),
    )
    state, note = "", f"{gpu.name}\n{gpu.uuid}"
    if gpu.lost_at is not None:
        state, note = "lost", f"lost at {clock_time(gpu.lost_at)}: it answers no more"
    elif gpu.is_stale:
        state = "stale"
    return Row(gpu.uuid, gpu.label, cells, note, gpu.parent is not None, state, is_lead)


def _at_least(gpus: Gpus, gpu: Gpu, metric: str, limit: float) -> bool:
    reading = gpus.reading(gpu.uuid, metric)
    return reading.state == "value" and (reading.value or 0) >= limit


def _cell(gpus: Gpus, gpu: Gpu, metric: str, top: float = 0.0, is_hot: bool = False) -> Cell:
    reading = gpus.reading(gpu.uuid, metric)
    text, tone = reading_words(metric, reading)
    meaning = METRICS[metric].meaning
    why = f" ({reading.detail})" if reading.detail else ""
    age = f"{reading.age_s:.1f} s old" if reading.value is not None else reading.state + why
    curve = gpus.history.series(gpu.uuid, metric) if gpus.history is not None and top else None
    tone = tone or ("hot" if is_hot else "")
    hold_s = METRICS[metric].stale_after_s
    return Cell(text, tone, curve, top or 1.0, hold_s, f"{gpu.label}: {text}\n{meaning}; {age}")


def reading_words(metric: str, reading: Reading) -> tuple[str, str]:
    """(text, tone) of a reading: the number with its unit, or why there is none."""
    if reading.value is None:
        if reading.state == "unsupported":
            return "n/a", "muted"
        return (UNKNOWN if reading.detail == "not read yet" else "error"), "muted"
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
    words = throttle_words(int(reading.value))
    if reading.state != "value":
        return ", ".join(words) or "none", "muted"
    return (", ".join(words), "hot") if words else ("none", "muted")


def errors_of(gpus: Gpus, gpu: Gpu) -> tuple[str, str]:
    """(XID errors since the start and uncorrected memory errors, tone)."""
    xids = [notice.xid for notice in gpus.board.notices if notice.uuid == gpu.uuid and notice.xid is not None]
    reading = gpus.reading(gpu.uuid, "ecc_errors")
    parts = [f"XID {xid}" for xid in dict.fromkeys(reversed(xids))]
    if reading.value:
        parts.append(f"{reading.value:.0f} ECC")
    if parts:
        return ", ".join(parts), "hot"
    return ("none", "muted") if reading.value is not None else reading_words("ecc_errors", reading)


def held_by(gpu: Gpu) -> tuple[str, str]:
    """(who holds memory of it, tone)."""
    if gpu.run is not None:
        return f"run {gpu.run_name()}", ""
    if gpu.processes is None:
        return "n/a", "muted"
    words = gpu.busy_words()
    return (words, "") if words else ("nobody", "muted")


# One of them


def holders(gpus: Gpus, gpu: Gpu) -> HoldersFigure:
    """Who holds its memory, adding up to its capacity; what the driver attributes to nobody says so."""
    device = gpus.board.device(gpu.uuid)
    if gpu.lost_at is not None or device is None:
        facts = [("lost at", clock_time(gpu.lost_at or 0.0)), ("UUID", gpu.uuid)]
        return HoldersFigure((), None, facts)
    found = [
        Holder(
            "run" if gpu.run is not None else "others",
            item.name or "?",
            item.used_bytes,
            _note(item.pid, item.type),
        )
        for item in gpu.processes or ()
        if not item.foreign
    ]
    foreign = [item.used_bytes for item in gpu.processes or () if item.foreign]
    if foreign:
        told = [num_bytes for num_bytes in foreign if num_bytes is not None]
        count = f"{len(foreign)} processes" if len(foreign) > 1 else "1 process"
        found.append(Holder("outside", OUTSIDE, sum(told) if told else None, count))
    found.sort(key=lambda holder: -(holder.num_bytes or 0))
    found += _rest(gpu, device, sum(holder.num_bytes or 0 for holder in found))
    return HoldersFigure(tuple(found), gpu.total_bytes, _facts(gpus, gpu))


def _note(pid: int, kind: str) -> str:
    return f"pid {pid}" + ("" if kind == "compute" else f", {kind}")


def _rest(gpu: Gpu, device: Device, attributed_bytes: int) -> list[Holder]:
    """What is in use and nobody's, what the driver keeps, and what is free."""
    if gpu.used_bytes is None:
        return []
    rest = []
    if gpu.used_bytes > attributed_bytes:
        name = "in use, not told by whom" if gpu.processes is not None else "in use; processes are not told"
        rest.append(Holder("unclaimed", name, gpu.used_bytes - attributed_bytes))
    if device.driver_bytes:
        rest.append(Holder("driver", "the driver's own", device.driver_bytes))
    if gpu.total_bytes is not None:
        used = max(gpu.used_bytes, attributed_bytes) + (device.driver_bytes or 0)
        rest.append(Holder("free", "free", max(0, gpu.total_bytes - used)))
    return rest


def _facts(gpus: Gpus, gpu: Gpu) -> Sequence[tuple[str, str]]:
    facts = [("peak since the start", _peak_words(gpus, gpu))]
    if gpu.run is not None:
        facts.append(("run", gpu.run_name()))
    parts = [other.label for other in gpus.devices if other.parent == gpu.uuid]
    if parts:
        facts.append(("split into", ", ".join(parts)))
    elif gpu.is_split:
        facts.append(("split into", "no instance yet"))
    facts.append(("UUID", gpu.uuid))
    if gpus.driver:
        facts.append(("driver", gpus.driver))
    return facts


def tracks(gpus: Gpus, gpu: Gpu, span_s: float) -> TracksFigure:
    """Every metric of one device, with its limits and what happened to it."""
    now_s = gpus.now_s
    device = gpus.board.device(gpu.uuid)
    power_limit = (device.power_limit_w if device is not None else None) or 0.0
    total = float(gpu.total_bytes or 0)
    peak = float(gpus.board.peak_bytes.get(gpu.uuid) or 0)
    vram_limits = [LineLimit(total), LineLimit(peak, is_hard=False)]
    power_top, clock_top = 1.1 * _top(gpus, "power_w"), _clock_top(gpus, gpu)
    found = [
        _track(gpus, gpu, "VRAM", "used_bytes", 1.06 * max(total, peak, 1.0), limits=vram_limits),
        _track(gpus, gpu, "Busy, memory busy", "utilisation", 1.0, second="memory_utilisation"),
        _track(gpus, gpu, "Power", "power_w", power_top, limits=[LineLimit(power_limit)]),
        _track(
            gpus, gpu, "Temperature", "temperature_c", _SCALE_C, limits=[LineLimit(_HOT_C, is_hard=False)]
        ),
        _track(gpus, gpu, "SM, memory clock, MHz", "sm_clock_mhz", clock_top, second="memory_clock_mhz"),
        _track(gpus, gpu, "Fan", "fan", 1.0),
        _throttle_track(gpus, gpu),
        _error_track(gpus, gpu, _marks(gpus, gpu)),
    ]
    return TracksFigure(found, (now_s - span_s, now_s), gpu.is_stale or gpu.lost_at is not None)


def _clock_top(gpus: Gpus, gpu: Gpu) -> float:
    values = [gpus.reading(gpu.uuid, metric).value or 0 for metric in ("sm_clock_mhz", "memory_clock_mhz")]
    return 1.1 * max(1.0, *(float(value) for value in values))


def _track(
    gpus: Gpus,
    gpu: Gpu,
    title: str,
    metric: str,
    top: float,
    *,
    second: str = "",
    limits: Sequence[LineLimit] = (),
) -> Track:
    reading = gpus.reading(gpu.uuid, metric)
    text, tone = reading_words(metric, reading)
    if second:
        text += f"  {reading_words(second, gpus.reading(gpu.uuid, second))[0]}"
    if reading.state == "stale":
        text += f", {reading.age_s:.0f} s old"
    history = gpus.history
    return Track(
        title,
        text,
        None if history is None else history.series(gpu.uuid, metric),
        top,
        METRICS[metric].stale_after_s,
        None if history is None or not second else history.series(gpu.uuid, second),
        limits,
        tone=tone,
    )


def _throttle_track(gpus: Gpus, gpu: Gpu) -> Track:
    text, tone = throttled_by(gpus, gpu.uuid)
    curve = None if gpus.history is None else gpus.history.throttled(gpu.uuid)
    return Track("Throttled by", text, curve, 1.0, METRICS["throttle"].stale_after_s, tone=tone)


def _error_track(gpus: Gpus, gpu: Gpu, marks: Sequence[Mark]) -> Track:
    text, tone = errors_of(gpus, gpu)
    curve = None if gpus.history is None else gpus.history.series(gpu.uuid, "ecc_errors")
    top = max(1.0, 1.1 * float(gpus.reading(gpu.uuid, "ecc_errors").value or 0))
    hold_s = METRICS["ecc_errors"].stale_after_s
    return Track("ECC errors, XID events", text, curve, top, hold_s, marks=marks, tone=tone)


def _marks(gpus: Gpus, gpu: Gpu) -> list[Mark]:
    since = time.time() - gpus.now_s
    words = {"lost": "lost", "back": "back", "slow": "slow"}
    found = []
    for notice in gpus.board.notices:
        if notice.uuid not in (gpu.uuid, None):
            continue
        text = f"XID {notice.xid}" if notice.xid is not None else words.get(notice.code)
        if notice.code in ("restarted", "silent"):
            text = notice.code
        if text is not None:
            found.append(Mark(notice.t - since, text))
    return found


# Exports


def bars_rows(gpus: Gpus) -> Iterator[Sequence[object]]:
    yield ("device", "uuid", "used_bytes", "total_bytes")
    for gpu in gpus.devices:
        yield (gpu.label, gpu.uuid, gpu.used_bytes, gpu.total_bytes)


def history_rows(gpus: Gpus, *metrics: str) -> Iterator[Sequence[object]]:
    """All that is still held one by one, of some metrics or of all."""
    yield ("device", "uuid", "metric", "unit", "seconds", "value")
    for gpu in gpus.devices:
        for metric in metrics or METRICS:
            series = gpus.history.series(gpu.uuid, metric) if gpus.history is not None else None
            for x, y in zip(*series.points(), strict=True) if series is not None else ():
                value = "" if math.isnan(y) else f"{y:.6g}"
                yield (gpu.label, gpu.uuid, metric, METRICS[metric].unit, f"{x:.3f}", value)


def holder_rows(gpus: Gpus, gpu: Gpu | None) -> Iterator[Sequence[object]]:
    yield ("holder", "note", "bytes")
    for holder in holders(gpus, gpu).holders if gpu is not None else ():
        yield (holder.name, holder.note, holder.num_bytes)
