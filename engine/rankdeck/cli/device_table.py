"""Table of GPUs, printed once or every second; on a terminal, it is refreshed in place.

A dash means unknown or unsupported. Failed and stale readings are shown as words, so that they do not look
like numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rankdeck.base.errors import Problem
from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.formatting import UNKNOWN, bar, empty_table, one_line, size_text
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import AnySamplerLine, NoticeLine, ProcessUse
from rankdeck.telemetry.registry import DeviceRegistry

_STATE_TEXTS = {"unsupported": UNKNOWN, "error": "error", "stale": "stale"}
REDRAW_INTERVAL_S = 1.0
_MAX_NOTICES = 4


def devices_table(gpus: Sequence[GpuStatus]) -> Table:
    """Return a table with a row per GPU and its MIG instances below it; optional columns are left out if
    empty."""
    table = empty_table()
    table.add_column("gpu", justify="right", no_wrap=True)
    table.add_column("name", overflow="ellipsis", no_wrap=True)
    table.add_column("")
    for heading in ("used", "total", "busy", "temp", "power", "clock"):
        table.add_column(heading, justify="right", no_wrap=True)
    columns: dict[str, list[Text | str]] = {
        "pcie": [_pcie_text(gpu) for gpu in gpus],
        "state": [_state_text(gpu) for gpu in gpus],
    }
    rest = {heading: cells for heading, cells in columns.items() if any(cells)}
    for heading in rest:
        table.add_column(heading)
    table.add_column("used by")
    table.add_column("uuid", overflow="ellipsis", no_wrap=True)
    for row, gpu in enumerate(gpus):
        last = [UNKNOWN if gpu.is_lost else _usage_text(gpu), one_line(gpu.uuid)]
        cells = [*_device_cells(gpu), *(column[row] for column in rest.values()), *last]
        table.add_row(*cells, style="dim" if gpu.is_lost else "")
    return table


def processes_table(gpus: Sequence[GpuStatus]) -> Table:
    """Return a table with one row per GPU process of this PID namespace."""
    table = empty_table()
    for heading in ("gpu", "pid"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("user", ""):
        table.add_column(heading, no_wrap=True)
    for heading in ("gpu memory", "host memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("command", overflow="ellipsis", no_wrap=True)
    for gpu in gpus:
        for entry in (process for process in gpu.processes or () if not process.foreign):
            sizes = [size_text(entry.used_bytes), size_text(entry.host_bytes)]
            command = one_line(entry.command or entry.name or UNKNOWN)
            table.add_row(
                _index_text(gpu), str(entry.pid), one_line(entry.user or UNKNOWN), entry.type, *sizes, command
            )
    return table


def _index_text(gpu: GpuStatus) -> str:
    return f"{gpu.index}" if gpu.parent is None else f"{gpu.index} MIG"


def _device_cells(gpu: GpuStatus) -> list[Text | str]:
    name = one_line(gpu.name)
    if gpu.is_lost:
        since = "" if gpu.lost_at is None else time.strftime(" since %H:%M:%S", time.localtime(gpu.lost_at))
        return [_index_text(gpu), name, Text(f"lost{since}", style="bold red"), *[UNKNOWN] * 6]
    return [
        _index_text(gpu),
        name,
        _memory_bar(gpu),
        _metric_text(gpu, "used_bytes", size_text(gpu.used_bytes)),
        _total_text(gpu),
        _metric_text(gpu, "utilisation", "" if gpu.utilisation is None else f"{gpu.utilisation * 100:.0f} %"),
        _metric_text(gpu, "temperature_c", "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C"),
        _metric_text(gpu, "power_w", _value_with_limit(gpu.power_w, gpu.power_limit_w, "W")),
        _metric_text(gpu, "sm_clock_mhz", _value_with_limit(gpu.sm_clock_mhz, gpu.max_sm_clock_mhz, "MHz")),
    ]


def _value_with_limit(value: float | None, limit: float | None, unit: str) -> str:
    """Return text such as '412 / 700 W'."""
    if value is None:
        return ""
    return f"{value:.0f} {unit}" if limit is None else f"{value:.0f} / {limit:.0f} {unit}"


def _total_text(gpu: GpuStatus) -> str:
    if not gpu.unified:
        return size_text(gpu.total_bytes)
    return "host" if gpu.host_bytes is None else f"host {format_bytes(gpu.host_bytes)}"


def _pcie_text(gpu: GpuStatus) -> str:
    """Return the outgoing and incoming PCIe traffic."""
    if gpu.pcie_tx_bps is None or gpu.pcie_rx_bps is None:
        return ""
    return f"{format_bytes(gpu.pcie_tx_bps)}/s out, {format_bytes(gpu.pcie_rx_bps)}/s in"


def _state_text(gpu: GpuStatus) -> Text:
    """Return why the GPU is lost; if it is not, return its hardware errors and what slows it down."""
    if gpu.is_lost:
        return Text(one_line(gpu.why or ""), style="red")
    broken = [
        "" if not gpu.ecc_errors else f"{gpu.ecc_errors} memory errors",
        "" if not gpu.rows_failed else "row remapping failed",
        "" if not gpu.rows_pending else "row remapping pending: reset the GPU",
        "" if gpu.links_up == gpu.num_links else f"{gpu.links_up} of {gpu.num_links} NVLinks",
    ]
    text = Text(", ".join(filter(None, broken)), style="red")
    slowed = ", ".join(gpu.slowed_by)
    return text.append(", " if text and slowed else "").append(slowed, style="yellow")


def _metric_text(gpu: GpuStatus, metric: str, text: str) -> Text | str:
    state = gpu.states.get(metric)
    return text if state is None else Text(_STATE_TEXTS.get(state, state), style="dim")


def _memory_bar(gpu: GpuStatus) -> Text:
    if not gpu.total_bytes or gpu.used_bytes is None:
        return Text("")
    return bar(gpu.used_bytes / gpu.total_bytes, style="blue", num_cells=12)


def _usage_text(gpu: GpuStatus) -> str:
    """Return text such as 'run gpt-ddp, python 3.0 GiB, other, outside this namespace: 2.0 GiB'."""
    if "processes" in gpu.states:
        return _STATE_TEXTS.get(gpu.states["processes"], UNKNOWN)
    local_processes = [process for process in gpu.processes or () if not process.foreign]
    texts = [
        f"{one_line(process.name or process.pid)} {size_text(process.used_bytes)}"
        for process in local_processes
    ]
    foreign = [process for process in gpu.processes or () if process.foreign]
    if foreign:
        texts.append(f"other, outside this namespace: {_total_used_text(foreign)}")
    if gpu.run is not None:
        texts.insert(0, f"run {gpu.run_name}")
    if gpu.unaccounted_bytes is not None:
        texts.append(f"unattributed: {format_bytes(gpu.unaccounted_bytes)}")
    return ", ".join(texts) or ("free" if not gpu.mig else "split (MIG)")


def _total_used_text(processes: Sequence[ProcessUse]) -> str:
    """Return the total of the known bytes, with "or more" if some processes' bytes are unknown."""
    known_bytes = [process.used_bytes for process in processes if process.used_bytes is not None]
    if not known_bytes:
        return UNKNOWN
    return format_bytes(sum(known_bytes)) + (" or more" if len(known_bytes) < len(processes) else "")


def print_notice(notice: NoticeLine) -> None:
    """Print a warning or error notice on stderr, in the format of a problem."""
    severity = "error" if notice.severity == "error" else "warning"
    if notice.severity != "info":
        console.print_problem(Problem(notice.code, notice.message, advice=notice.advice, severity=severity))


class LiveDevices:
    """Table of devices that is refreshed in place on a terminal; elsewhere, a new table is printed every
    second."""

    def __init__(self, registry: DeviceRegistry) -> None:
        self._registry = registry
        self._console = console.out()
        self._is_terminal = sys.stdout.isatty()
        self._last_drawn_s = 0.0
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)

    def open_display(self) -> AbstractContextManager[object]:
        return self._live if self._is_terminal else nullcontext()

    def add_line(self, line: AnySamplerLine) -> None:
        """Print the line if it is a notice; on a terminal, the redrawn table shows the notices instead."""
        # If no device was ever listed, the last notice becomes the command's error (devices.py) and must not
        # be printed twice.
        if isinstance(line, NoticeLine) and not self._is_terminal and self._registry.devices_line is not None:
            print_notice(line)

    def draw(self, now_s: float) -> None:
        listed = self._registry.devices_line
        # A table before the first complete reading would be full of dashes.
        if listed is None or not self._registry.is_read:
            return
        if now_s - self._last_drawn_s < REDRAW_INTERVAL_S:
            return
        self._last_drawn_s = now_s
        gpus = self._registry.gpus(now_s)
        if not self._is_terminal:
            self._console.print(devices_table(gpus))
            return
        header = Text(time.strftime("%H:%M:%S"), style="bold")
        header.append(f"  driver {listed.driver or UNKNOWN}", style="dim not bold")
        if listed.simulated:
            header.append("  simulated devices", style="yellow")
        notices = [
            Text(f"{time.strftime('%H:%M:%S', time.localtime(notice.t))} {notice.message}", style="yellow")
            for notice in self._registry.notices[-_MAX_NOTICES:]
        ]
        self._live.update(Group(header, devices_table(gpus), *notices), refresh=True)
