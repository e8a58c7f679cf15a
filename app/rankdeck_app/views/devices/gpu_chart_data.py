"""Builds the data of the stat strip and of the cards that compare all devices: plain functions, no widgets.

Stale readings are marked and left out of comparisons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.events import DeviceMemory
from rankdeck.run.imbalance import lead_device
from rankdeck.run.series import Series
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import METRICS
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus, clock_time
from rankdeck_app.views.devices.gpu_table import HOT_C, errors_text, series_of, throttle_text
from rankdeck_app.views.devices.memory_holders import MemoryOf, holders, peak_text
from rankdeck_app.widgets.band_chart import BandChartData, MemoryLimit
from rankdeck_app.widgets.card_export import SHORT_FORMAT, CsvColumn, CsvRow, CsvRowBlock
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.chart_colors import HOLDER_LABELS, KIND_LABELS, byte_unit
from rankdeck_app.widgets.heat_strip import COLUMNS, HeatStripData, compute_shares
from rankdeck_app.widgets.stat_strip import Stat, imbalance_stat
from rankdeck_app.widgets.tracks import span_text
from rankdeck_app.widgets.vram_bars import DeviceBar, VramBarsData

_MAX_NAMED = 2
_LABELS = {**KIND_LABELS, **HOLDER_LABELS}


def stats(gpus: Gpus) -> tuple[Stat, ...]:
    # Old readings must not count as current use.
    there = [gpu for gpu in gpus.physical_gpus if gpu.lost_at is None and not gpu.is_stale]
    used = [gpu.used_bytes for gpu in there if gpu.used_bytes is not None]
    totals = [gpu.total_bytes for gpu in there if gpu.total_bytes is not None]
    divisor, unit = byte_unit(max([*totals, *used], default=1))
    vram = f"{sum(used) / divisor:.1f}" if used else UNKNOWN
    # A total that lacks some GPUs would make the machine look smaller than it is.
    if len(totals) == len(there) and totals:
        vram += f" / {sum(totals) / divisor:.0f} {unit}"
    busy = [gpu.utilisation for gpu in there if gpu.utilisation is not None]
    watts = [gpu.power_w for gpu in there if gpu.power_w is not None]
    # Reversed, so that the first of several equally hot GPUs is named.
    degrees = {gpu.temperature_c: gpu.label for gpu in reversed(there) if gpu.temperature_c is not None}
    hottest_c = max(degrees, default=None)
    hottest = tr("Hottest") if hottest_c is None else tr("Hottest, {device}", device=degrees[hottest_c])
    heat = UNKNOWN if hottest_c is None else f"{hottest_c:.0f}°C"
    return (
        Stat(tr("VRAM in use"), vram, "888.8 / 8888 GiB"),
        Stat(tr("Busy, mean"), f"{100 * sum(busy) / len(busy):.0f}%" if busy else UNKNOWN, "100%"),
        Stat(tr("Power"), _format_watts(sum(watts)) if watts else UNKNOWN, "88.88 kW"),
        Stat(
            hottest,
            heat,
            tr("Hottest, {device}", device="GPU 15"),
            hottest_c is not None and hottest_c >= HOT_C,
        ),
        _trouble_stat(gpus),
        imbalance_stat(gpus.imbalance(), [gpu.label for gpu in gpus.physical_gpus]),
    )


def _format_watts(watts: float) -> str:
    return f"{watts / 1000:.2f} kW" if watts >= 1000 else f"{watts:.0f} W"


def _trouble_stat(gpus: Gpus) -> Stat:
    """Return a cell that names the devices with problems and the kinds of problem."""
    kinds = (
        (tr_noop("Lost"), [gpu for gpu in gpus.physical_gpus if gpu.lost_at is not None]),
        (tr_noop("Old readings"), [gpu for gpu in gpus.physical_gpus if gpu.is_stale]),
        (tr_noop("With errors"), [gpu for gpu in gpus.devices if errors_text(gpus, gpu)[1] == "hot"]),
        (tr_noop("Throttled"), [gpu for gpu in gpus.devices if throttle_text(gpus, gpu.uuid)[1] == "hot"]),
    )
    troubles = {trouble: affected for trouble, affected in kinds if affected}
    if not troubles:
        return Stat(tr("Trouble"), tr("none") if gpus.devices else UNKNOWN, "88 GPUs")
    labels = dict.fromkeys(gpu.label for affected in troubles.values() for gpu in affected)
    which = ", ".join(labels) if len(labels) <= _MAX_NAMED else tr("{n} GPUs", "{n} GPU", len(labels))
    return Stat(", ".join(map(tr, troubles)), which, "88 GPUs", True)


def bars(gpus: Gpus, memory_of: MemoryOf) -> VramBarsData:
    totals = [gpu.total_bytes for gpu in gpus.physical_gpus if gpu.total_bytes is not None]
    return VramBarsData(
        tuple(_bar(gpus, gpu, memory_of(gpu)) for gpu in gpus.physical_gpus),
        gpus.imbalance(),
        max(totals, default=None),
        _LABELS,
    )


def _bar(gpus: Gpus, gpu: GpuStatus, memory: DeviceMemory | None) -> DeviceBar:
    if gpu.lost_at is not None:
        return DeviceBar(
            gpu.label, None, missing_text=tr("lost"), note=tr("lost at {time}", time=clock_time(gpu.lost_at))
        )
    peak = tr("peak since monitoring started: {size}", size=peak_text(gpus, gpu))
    note = tr("old readings") if gpu.is_stale else peak
    bytes_by_kind: Counter[str] = Counter()
    for holder in holders(gpus, gpu, memory).holders:
        if holder.kind in _LABELS:
            bytes_by_kind[holder.kind] += holder.num_bytes or 0
    return DeviceBar(gpu.label, gpu.last_used_bytes, bytes_by_kind, note, is_stale=gpu.is_stale)


def bars_subtitle(data: VramBarsData) -> tuple[str, ...]:
    if not data.largest_bytes:
        return ("",)
    if not data.capacity_bytes:
        return tr("now"), tr("now")
    return tr("now; capacity {size}", size=format_bytes(data.capacity_bytes, 0)), tr("now")


def band(gpus: Gpus, span_s: float) -> BandChartData:
    """Return memory over time for the lead device and the other devices. Only GPUs with readings in the last
    `span_s` seconds are included."""
    history = gpus.history
    if history is None:
        return BandChartData()
    now_s = gpus.now_s
    device_series = [
        (index, series)
        for index, gpu in enumerate(gpus.physical_gpus)
        if gpu.lost_at is None
        and _has_readings(series := history.series(gpu.uuid, "used_bytes"), now_s - span_s, now_s)
    ]
    # The axis moves in steps: laying it out in every frame costs more than its curves.
    step_s = max(1.0, span_s / COLUMNS)
    end_s = math.ceil(now_s / step_s) * step_s
    lead, indices = lead_device(gpus.imbalance()), [index for index, _ in device_series]
    totals = {gpu.total_bytes for gpu in gpus.physical_gpus if gpu.total_bytes is not None}
    limits = tuple(
        MemoryLimit(tr("capacity {size}", size=format_bytes(total, 0)), total) for total in sorted(totals)[:1]
    )
    return BandChartData(
        labels=[gpus.physical_gpus[index].label for index in indices],
        histories=[series for _, series in device_series],
        lead=indices.index(lead) if lead in indices else None,
        # GPUs of different sizes have no common capacity.
        limits=limits if len(totals) == 1 else (),
        x_range=(end_s - span_s, end_s),
        is_live=True,
        empty_text=tr("no readings in the last {time}", time=span_text(span_s)),
    )


def _has_readings(series: Series, since_s: float, now_s: float) -> bool:
    """Check whether the series has any reading between `since_s` and `now_s`."""
    return bool(np.isfinite(series.window(since_s, now_s, 64).high).any())


def heat(gpus: Gpus, span_s: float, visible_range: tuple[float, float] | None = None) -> HeatStripData:
    """Return the utilisation over the last `span_s` seconds or, if the user has zoomed the memory chart, over
    `visible_range`, which is the range that the chart shows."""
    end_s = gpus.now_s if visible_range is None else visible_range[1]
    span_s = span_s if visible_range is None else visible_range[1] - visible_range[0]
    labels, lead = [gpu.label for gpu in gpus.physical_gpus], lead_device(gpus.imbalance())
    column_s = span_s / COLUMNS
    # Over a long span a column is wider than the reading interval; without this, columns would have gaps.
    reach_s = max(METRICS["utilisation"].stale_after_s, column_s)
    readings = [(series_of(gpus, gpu.uuid, "utilisation"), reach_s) for gpu in gpus.physical_gpus]
    shares = compute_shares(readings, end_s, span_s, column_s) if gpus.history is not None else None
    values, start_s = (
        [gpu.utilisation for gpu in gpus.physical_gpus],
        None if visible_range is None else visible_range[0],
    )
    return HeatStripData(labels, shares, values, span_s, lead, start_s)


def bars_rows(gpus: Gpus) -> Iterator[Sequence[object]]:
    yield ("device", "uuid", "used_bytes", "total_bytes")
    for gpu in gpus.devices:
        yield (gpu.label, gpu.uuid, gpu.last_used_bytes, gpu.total_bytes)


def history_rows(gpus: Gpus, *metrics: str) -> Iterator[CsvRow | CsvRowBlock]:
    """Yield the stored readings of `metrics`, or of all metrics if none are named."""
    yield ("device", "uuid", "metric", "unit", "seconds", "value")
    for gpu in gpus.devices:
        for metric in metrics or METRICS:
            seconds, values = series_of(gpus, gpu.uuid, metric).points()
            columns = CsvColumn(seconds, "{:.3f}".format), CsvColumn(values, _format_value)
            yield CsvRowBlock(gpu.label, gpu.uuid, metric, METRICS[metric].unit, *columns)


def _format_value(value: float) -> str:
    return "" if math.isnan(value) else SHORT_FORMAT(value)
