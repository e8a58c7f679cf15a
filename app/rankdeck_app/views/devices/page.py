"""The Devices tab: the GPUs of one host, now and over time.

The upper part shows either all devices side by side (memory by holder, memory over time, load) or one device
in full (every metric, its memory holders). The table below shows every metric of every device; selecting a
row shows its device in full. Each frame draws at most one part of the page, and each part is drawn up to five
times a second. Nothing is drawn while the page is hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QButtonGroup, QPushButton, QStackedLayout, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import METRICS
from rankdeck_app.language import tr
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.gpus import Gpus, clock_time
from rankdeck_app.theme import Theme
from rankdeck_app.views.devices import gpu_chart_data, gpu_table, memory_holders
from rankdeck_app.views.devices.gpu_table import (
    HOT_C,
    SCALE_C,
    errors_text,
    format_reading,
    reading_text,
    scale_max,
    series_of,
    throttle_text,
)  # fmt: skip
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangeableGrid
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.holder_list import HolderList
from rankdeck_app.widgets.layouts import MIDDLE, TOP, column, push_button, row, text_label
from rankdeck_app.widgets.metric_table import MetricTable
from rankdeck_app.widgets.stat_strip import StatStrip
from rankdeck_app.widgets.tracks import (
    DeviceTracks,
    DeviceTracksData,
    Track,
    TrackLimit,
    TrackMark,
    span_text,
)
from rankdeck_app.widgets.vram_bars import VramBars

PAGE_KIND = "devices"
SPANS_S = (60.0, 600.0, 3600.0, 86_400.0)
_DRAW_INTERVAL_S = 0.2
_NO_GPUS_ADVICE = tr_noop(
    "Rehearse on virtual devices, or install the NVIDIA driver to use this machine's GPUs."
)


class DevicesPage(Page):
    """Page of one host's GPUs. `memory_of` returns the memory that an open run reports for a GPU; `bar` is
    the host bar at the top of the page."""

    def __init__(
        self,
        gpus: Gpus,
        theme: Theme,
        clock: FrameClock,
        memory_of: memory_holders.MemoryOf,
        bar: QWidget | None = None,
    ) -> None:
        title = tr("Devices: {host}", host=gpus.host) if gpus.host else tr("Devices")
        super().__init__(f"{PAGE_KIND}:{gpus.host}", title=title, icon="graph-line")
        self._gpus = gpus
        self._memory_of = memory_of
        self._span_s = SPANS_S[0]
        self._drawn_s: dict[str, float] = {}
        self._shown_breadcrumbs: list[str] = []
        self._stat_strip = StatStrip(theme)
        self._stat_strip.setAccessibleName(tr("Metrics of all GPUs"))
        self._bars, self._heat = VramBars(theme), HeatStrip(theme)
        self._band = BandChart(theme, tr("Memory over time"))
        self._tracks, self._holders = DeviceTracks(theme), HolderList(theme)
        self.table = MetricTable(theme, gpu_table.columns())
        self.table.selection_changed.connect(lambda _uuid: self._show_selection())
        self._empty_label = text_label(tone="dim")
        self._empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        used = partial(gpu_chart_data.history_rows, gpus, "used_bytes")
        busy = partial(gpu_chart_data.history_rows, gpus, "utilisation", "memory_utilisation")
        everything = partial(gpu_chart_data.history_rows, gpus)
        self.cards = {
            name: ChartCard(title, theme, body, csv_rows)
            for name, title, body, csv_rows in (
                ("bars", tr("VRAM per device"), self._bars, partial(gpu_chart_data.bars_rows, gpus)),
                ("heat", tr("Utilisation"), self._heat, busy),
                ("band", tr("VRAM over time"), self._band, used),
                ("tracks", tr("Device"), self._tracks, everything),
                ("holders", tr("Memory by owner"), self._holders, self._holder_rows),
                ("table", tr("All metrics"), self.table, everything),
            )
        }
        self._build(bar or QWidget())
        gpus.changed.connect(self._on_gpus_changed)
        clock.subscribe(self._on_frame)
        self._on_gpus_changed()

    def _build(self, bar: QWidget) -> None:
        self.span_buttons = QButtonGroup(self)
        tooltip = tr("Show all devices side by side (Escape)")
        self.all_button = push_button(tr("All Devices"), tooltip, lambda: self.table.select(""), height=24)
        self.all_button.hide()
        spans = row(*map(self._make_span_button, SPANS_S), spacing=0, align=MIDDLE)
        spans.setContentsMargins(10, 0, 0, 0)
        top = row((self._stat_strip, 1), self.all_button, spans, spacing=0, align=TOP)
        self.grid = ArrangeableGrid(
            self.cards, devices=("bars", "heat"), full_width=("table",), wide=("tracks",)
        )
        inner = QWidget()
        column(top, (self.grid, 1), on=inner, margins=(16, 2, 16, 12), spacing=10)
        self._stack = QStackedLayout()
        self._stack.addWidget(inner)
        self._stack.addWidget(self._empty_label)
        column(bar, (self._stack, 1), on=self, spacing=0)

    def _make_span_button(self, span_s: float) -> QPushButton:
        text = span_text(span_s)
        tooltip = tr("Show the last {time}", time=text)
        button = push_button(
            text.replace("60 s", "1 min"), tooltip, partial(self.set_span, span_s), kind="segment", height=24
        )
        button.setChecked(span_s == self._span_s)
        self.span_buttons.addButton(button)
        return button

    # Contents

    @property
    def selected_gpu(self) -> GpuStatus | None:
        """The device that is shown in full, or None for all devices."""
        return next((gpu for gpu in self._gpus.devices if gpu.uuid == self.table.selected), None)

    def set_span(self, span_s: float) -> None:
        self._span_s = span_s
        self._redraw()

    def breadcrumbs(self) -> list[str]:
        gpus = self._gpus
        # A GPU that was lost from the start has no name.
        there = [gpu for gpu in gpus.physical_gpus if gpu.lost_at is None] or gpus.physical_gpus
        names = list(dict.fromkeys(gpu.name for gpu in there))
        host = [gpus.host] if gpus.host else []
        crumbs = [
            tr("devices"),
            *host,
            *([f"{len(gpus.physical_gpus)} × {names[0]}"] if len(names) == 1 else names),
        ]
        if gpus.driver:
            crumbs.append(tr("driver {version}", version=gpus.driver))
        return [*crumbs, tr(gpu_table.SIMULATED)] if gpus.is_simulated else crumbs

    def tab_actions(self) -> list[PageAction]:
        return [PageAction("checklist", tr("Check This Machine"), "doctor.show")]

    def save_state(self) -> dict[str, Any]:
        cards = self.grid.layout_state()
        return {"span_s": self._span_s, "chosen": self.table.selected, "cards": cards}

    def restore_state(self, state: dict[str, Any]) -> None:
        if state.get("span_s") in SPANS_S:
            self._span_s = float(state["span_s"])
            self.span_buttons.buttons()[SPANS_S.index(self._span_s)].setChecked(True)
        self.table.select(str(state.get("chosen") or ""))
        cards = state.get("cards")
        self.grid.restore(cards if isinstance(cards, dict) else {})

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._redraw()

    def _on_gpus_changed(self) -> None:
        """Update the page for a changed set of devices."""
        gpus = self._gpus
        self._empty_label.setText(
            f"{gpus.reason}.\n{tr(_NO_GPUS_ADVICE)}" if gpus.is_known else tr("Looking for GPUs…")
        )
        self._stack.setCurrentIndex(0 if gpus.devices else 1)
        if gpus.devices:
            for part in ("table", "bars"):
                self.draw(part)  # the number of rows determines their height
        path = self.breadcrumbs()
        if path != self._shown_breadcrumbs:
            self._shown_breadcrumbs = path
            self.title_changed.emit()
        # A restored selection waits until the devices are known.
        if self.table.selected and self.selected_gpu is None and gpus.devices:
            self.table.select("")
        self._show_selection()
        self.grid.relayout()

    def _show_selection(self) -> None:
        self.grid.show_only(_OVERVIEW_CARDS if self.selected_gpu is None else _DEVICE_CARDS)
        self.all_button.setVisible(self.selected_gpu is not None)
        self._redraw()

    def _redraw(self) -> None:
        """Draw all parts now."""
        self._drawn_s = dict.fromkeys(self._drawn_s, 0.0)
        if self.isVisible() and self._gpus.devices:
            for part in self.parts():
                self.draw(part)
            self.grid.relayout()  # another device's holders may need another height

    def parts(self) -> Sequence[str]:
        """Return the names of the page's parts, which are drawn one per frame."""
        return _OVERVIEW_PARTS if self.selected_gpu is None else _DEVICE_PARTS

    def _on_frame(self) -> None:
        """Draw only the least recently drawn part, so that frames stay short. Parts are redrawn even without
        new readings, so that displayed ages advance."""
        if not self.isVisible() or not self._gpus.devices:
            return
        oldest = min(self.parts(), key=lambda part: self._drawn_s.get(part, 0.0))
        if time.monotonic() - self._drawn_s.get(oldest, 0.0) >= _DRAW_INTERVAL_S:
            self.draw(oldest)

    def draw(self, part: str) -> None:
        """Draw one of the `parts`."""
        gpus, span_s, chosen = self._gpus, self._span_s, self.selected_gpu
        self._drawn_s[part] = time.monotonic()
        if part == "strip":
            self._stat_strip.set_data(gpu_chart_data.stats(gpus))
        elif part == "table":
            self.table.set_data(gpu_table.table(gpus, span_s))
        elif part == "bars":
            self._bars.set_data(gpu_chart_data.bars(gpus, self._memory_of))
            visible_range = None if self._band.is_following else self._band.visible_x()
            self._heat.set_data(gpu_chart_data.heat(gpus, span_s, visible_range))
        elif part == "band":
            self._band.set_data(gpu_chart_data.band(gpus, span_s))
            self._band.tick()
        elif chosen is not None:
            self._tracks.set_data(device_tracks(gpus, chosen, span_s))
            self._holders.set_data(memory_holders.holders(gpus, chosen, self._memory_of(chosen)))
        if part == "strip":
            self._update_card_texts()

    def _update_card_texts(self) -> None:
        gpus, chosen, span = self._gpus, self.selected_gpu, tr("last {time}", time=span_text(self._span_s))
        cards = self.cards
        for card in cards.values():
            card.set_source(gpu_table.source(gpus))
        for name in ("table", "band"):
            cards[name].set_subtitle(span)
        zoomed = self._band.zoom_text
        cards["band"].set_note(*((zoomed, tr("zoomed")) if zoomed else ()))
        cards["heat"].set_subtitle(f"% SM, {span}", "% SM")
        cards["bars"].set_subtitle(*gpu_chart_data.bars_subtitle(self._bars.data))
        if chosen is not None:
            cards["tracks"].set_title(chosen.label)
            lost = [] if chosen.lost_at is None else [tr("lost at {time}", time=clock_time(chosen.lost_at))]
            cards["tracks"].set_subtitle(", ".join((chosen.name, *lost, span)), chosen.name)

    def _holder_rows(self) -> Any:
        return memory_holders.holder_rows(self._gpus, self.selected_gpu, self._memory_of)


_OVERVIEW_PARTS = ("strip", "table", "bars", "band")
_DEVICE_PARTS = ("strip", "table", "one")
_OVERVIEW_CARDS = ("bars", "heat", "band", "table")
_DEVICE_CARDS = ("tracks", "holders", "table")


# One device in full: every metric over time, with its limits and events.

_MARKED_CODES = (tr_noop("lost"), tr_noop("back"), tr_noop("slow"), tr_noop("restarted"), tr_noop("silent"))


def device_tracks(gpus: Gpus, gpu: GpuStatus, span_s: float) -> DeviceTracksData:
    """Return the tracks of one device: each metric with its limits, then throttling and errors."""
    now_s = gpus.now_s
    total = float(gpu.total_bytes or 0)
    peak = float(gpus.registry.peak_bytes.get(gpu.uuid) or 0)
    vram_limits = [TrackLimit(total), TrackLimit(peak, is_hard=False)]
    power_top, clock_top = 1.1 * scale_max(gpus, "power_w"), _max_clock_mhz(gpus, gpu)
    tracks = [
        _track(gpus, gpu, tr("VRAM"), "used_bytes", 1.06 * max(total, peak, 1.0), limits=vram_limits),
        _track(gpus, gpu, tr("Busy, memory busy"), "utilisation", 1.0, second="memory_utilisation"),
        _track(gpus, gpu, tr("Power"), "power_w", power_top, limits=[TrackLimit(gpu.power_limit_w or 0.0)]),
        _track(
            gpus, gpu, tr("Temperature"), "temperature_c", SCALE_C, limits=[TrackLimit(HOT_C, is_hard=False)]
        ),
        _track(
            gpus, gpu, tr("SM and memory clock, MHz"), "sm_clock_mhz", clock_top, second="memory_clock_mhz"
        ),
        _track(gpus, gpu, tr("Fan"), "fan", 1.0),
        _throttle_track(gpus, gpu),
        _error_track(gpus, gpu, _marks(gpus, gpu)),
    ]
    return DeviceTracksData(tracks, (now_s - span_s, now_s), gpu.lost_at is not None)


def _max_clock_mhz(gpus: Gpus, gpu: GpuStatus) -> float:
    values = [gpus.reading(gpu.uuid, metric).value or 0 for metric in ("sm_clock_mhz", "memory_clock_mhz")]
    return 1.1 * max(1.0, *(float(value) for value in values))


def _track(
    gpus: Gpus,
    gpu: GpuStatus,
    title: str,
    metric: str,
    top: float,
    *,
    second: str = "",
    limits: Sequence[TrackLimit] = (),
) -> Track:
    reading = gpus.reading(gpu.uuid, metric)
    text, tone = reading_text(metric, reading)
    if second:
        text += f"  {reading_text(second, gpus.reading(gpu.uuid, second))[0]}"
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
        format_value=partial(format_reading, metric),
    )


def _throttle_track(gpus: Gpus, gpu: GpuStatus) -> Track:
    text, tone = throttle_text(gpus, gpu.uuid)
    curve = None if gpus.history is None else gpus.history.throttled_series(gpu.uuid)
    return Track(tr("Throttled by"), text, curve, 1.0, METRICS["throttle"].stale_after_s, tone=tone)


def _error_track(gpus: Gpus, gpu: GpuStatus, marks: Sequence[TrackMark]) -> Track:
    text, tone = errors_text(gpus, gpu)
    top = max(1.0, 1.1 * float(gpus.reading(gpu.uuid, "ecc_errors").value or 0))
    curve, hold_s = series_of(gpus, gpu.uuid, "ecc_errors"), METRICS["ecc_errors"].stale_after_s
    return Track(tr("ECC errors, XID events"), text, curve, top, hold_s, marks=marks, tone=tone)


def _marks(gpus: Gpus, gpu: GpuStatus) -> list[TrackMark]:
    # Notices carry Unix time, the tracks the history's own seconds.
    since = time.time() - gpus.now_s
    return [
        TrackMark(notice.t - since, tr(notice.code) if notice.xid is None else f"XID {notice.xid}")
        for notice in gpus.registry.notices
        if notice.uuid in (gpu.uuid, None) and (notice.xid is not None or notice.code in _MARKED_CODES)
    ]
