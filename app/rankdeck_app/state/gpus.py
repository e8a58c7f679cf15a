"""The GPUs of this machine, or of another host, as they are now (GpuStatus), of the sampler's lines
(device_feed.py).

Until the first answer nothing is known; without a GPU `reason` says why in one line. Figures are made anew at
most four times a second: text that changes faster cannot be read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config.devices import DeviceSelection
from rankdeck.events import ProcessUse
from rankdeck.run.imbalance import Imbalance, find_imbalance
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import (
    AnySamplerLine,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    Reading,
    SampleLine,
)
from rankdeck.telemetry.registry import DeviceRegistry
from rankdeck_app.language import tr, translate
from rankdeck_app.state.device_feed import DeviceFeed
from rankdeck_app.state.engine_process import Engine

if TYPE_CHECKING:
    from rankdeck_app.state.device_feed import DeviceHistory

NO_GPU = tr_noop("No NVIDIA driver found")
UPDATE_INTERVAL_S = 0.25
NUM_AUTO_VIRTUAL_DEVICES = 2  # what `auto` means on a machine without a GPU


def other_processes(gpu: GpuStatus) -> list[ProcessUse]:
    """Computing processes on a GPU that no run holds."""
    return gpu.compute_processes if gpu.run is None else []


def busy_text(gpu: GpuStatus) -> str:
    """Who uses it, in words: 'python 12 GiB', 'outside this namespace 3 GiB'; empty for nobody."""
    used_by, hidden_bytes = other_processes(gpu), gpu.unaccounted_bytes
    if gpu.run is None and not used_by and hidden_bytes is not None:
        return tr("unnamed {size}", size=format_bytes(hidden_bytes, 0))
    return ", ".join(
        name if known is None else f"{name} {format_bytes(known, 0)}"
        for name, known in _sum_by_name(used_by).items()
    )


def run_label(gpu: GpuStatus) -> str:
    """The name of the run that holds it, without the time that it begins with."""
    stamp, _, rest = gpu.run_name.partition("-")
    return rest.partition("-")[2] if stamp.isdecimal() and "-" in rest else gpu.run_name


def clock_time(unix_s: float) -> str:
    """When a GPU was lost, as a clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def _sum_by_name(processes: list[ProcessUse]) -> dict[str, int | None]:
    bytes_by_name: dict[str, int | None] = {}
    for item in processes:
        name = tr("outside this namespace") if item.foreign else item.name or tr("pid {pid}", pid=item.pid)
        before = bytes_by_name.get(name)
        bytes_by_name[name] = before if item.used_bytes is None else (before or 0) + item.used_bytes
    return bytes_by_name


class Gpus(QObject):
    """`changed`: other devices, other users of them, lost, back or stale ones. `readings_changed`: figures
    are new. `notice_received` carries a `Notice`. `is_known` is False until the first answer. `host` is ""
    for this machine; `refusal` says why another one does not answer.
    """

    changed = Signal()
    readings_changed = Signal()
    notice_received = Signal(object)

    def __init__(self, engine: Engine, parent: QObject | None = None, *, host: str = "") -> None:
        super().__init__(parent)
        self.host = host
        self.is_known = False
        self.devices: list[GpuStatus] = []
        self.reason: str | None = None
        self.refusal = ""
        self.registry = DeviceRegistry()
        self.history: DeviceHistory | None = None
        self.started_s = time.monotonic()
        self._last_line_s = self.started_s
        self._feed = DeviceFeed(engine, self, host=host)
        self._feed.line_received.connect(self.add_line)
        self._feed.unavailable.connect(self.set_unavailable)
        self._feed.connection_failed.connect(self._on_connection_failed)
        self._update_timer = QTimer(self, interval=round(1e3 * UPDATE_INTERVAL_S))
        self._update_timer.timeout.connect(self.update)

    @property
    def physical_gpus(self) -> list[GpuStatus]:
        """The GPUs without the MIG instances."""
        return [gpu for gpu in self.devices if gpu.parent is None]

    def count_devices(self, selection: DeviceSelection) -> int | None:
        """How many devices a selection is on this machine; None while nobody knows."""
        if selection.known_count is not None or not self.is_known:
            return selection.known_count
        if selection.kind == "auto":
            return sum(gpu.is_available for gpu in self.devices) or NUM_AUTO_VIRTUAL_DEVICES
        return sum(gpu.is_in_gpu_all for gpu in self.physical_gpus) or None

    @property
    def is_simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.devices)

    @property
    def driver(self) -> str | None:
        return self.registry.devices_line.driver if self.registry.devices_line is not None else None

    @property
    def now_s(self) -> float:
        """Seconds since the app began to look: the clock of the history."""
        return time.monotonic() - self.started_s

    @property
    def silence_s(self) -> float | None:
        """Since when nothing came of devices that are read; None where there are none."""
        return time.monotonic() - self._last_line_s if self.devices else None

    def imbalance(self) -> Imbalance | None:
        """Of the devices that one run, or one process, holds together; by the place among `physical_gpus`.

        Devices that have nothing to do with each other are not out of balance, and what is old is compared
        with nothing.
        """
        whole = self.physical_gpus
        together: dict[object, set[int]] = {}
        for place, gpu in enumerate(whole):
            if gpu.used_bytes is None:
                continue
            pids: list[object] = [item.pid for item in other_processes(gpu) if not item.foreign]
            for key in pids if gpu.run is None else [gpu.run]:
                together.setdefault(key, set()).add(place)
        largest = max(together.values(), key=len, default=set())
        return find_imbalance({place: whole[place].used_bytes for place in sorted(largest)})

    def start(self) -> None:
        """Begin to look, or look again where it was given up; `changed` follows with the first answer."""
        self._feed.start()

    def close(self) -> None:
        self._update_timer.stop()
        self._feed.close()

    def reading(self, uuid: str, metric: str) -> Reading:
        """A metric as it is known now; never a value that only looks new."""
        return self.registry.reading(uuid, metric, time.monotonic())

    def add_line(self, line: AnySamplerLine) -> None:
        """One line of the sampler."""
        now_s = time.monotonic()
        if not isinstance(line, NoticeLine):
            self._last_line_s, self.refusal = now_s, ""
        self.registry.feed(line, now_s)
        if isinstance(line, SampleLine):
            self._add_to_history(line, now_s)
        elif isinstance(line, DevicesLine):
            self._update_timer.start()
        elif isinstance(line, NoticeLine):
            self.notice_received.emit(line)
        if isinstance(line, NoticeLine) or (isinstance(line, ProcessesLine) and not self.is_known):
            self.update()
        if isinstance(line, NoticeLine) and self.registry.devices_line is None and line.code == "restarted":
            self._set_reason(translate(line.message, line.phrases))

    def _add_to_history(self, line: SampleLine, now_s: float) -> None:
        if self.history is None:
            from rankdeck_app.state.device_feed import DeviceHistory  # brings numpy

            self.history = DeviceHistory()
        self.history.add(line, now_s - self.started_s)

    def set_unavailable(self, why: str = "") -> None:
        """There is nothing to read: what was there is lost from sight, and the reason stands in its place."""
        self._update_timer.stop()
        self.refusal = ""
        self.devices = []
        self.registry = DeviceRegistry()
        self._set_reason(why or tr(NO_GPU))
        self.readings_changed.emit()

    def _on_connection_failed(self, why: str) -> None:
        self.refusal, self.is_known = why, True
        self.changed.emit()

    def _set_reason(self, reason: str) -> None:
        """Why there is nothing to show, for now or for good."""
        self.is_known, self.reason = True, reason.rstrip(".")
        self.changed.emit()

    def update(self) -> None:
        """Make the figures anew; says so where they differ."""
        line = self.registry.devices_line
        if line is None:
            return
        now_s = time.monotonic()
        before, was_known = self.devices, self.is_known
        self.devices = self.registry.gpus(now_s)
        self.is_known = True
        self.reason = None if self.devices else tr("NVIDIA's driver knows no GPU")
        if not was_known or [_devices_key(gpu) for gpu in before] != [
            _devices_key(gpu) for gpu in self.devices
        ]:
            self.changed.emit()
        if [*map(_display_values, before)] != [*map(_display_values, self.devices)]:
            self.readings_changed.emit()


def _devices_key(gpu: GpuStatus) -> tuple[object, ...]:
    """What a choice of devices depends on."""
    users = None if gpu.processes is None else [(item.pid, item.name) for item in gpu.processes]
    return gpu.uuid, gpu.label, gpu.lost_at, gpu.mig, gpu.is_stale, gpu.is_free, gpu.run, users


def _display_values(gpu: GpuStatus) -> tuple[object, ...]:
    """What is shown of it as text."""
    facts = gpu.name, gpu.total_bytes, gpu.simulated, gpu.processes
    readings = gpu.last_used_bytes, gpu.utilisation, gpu.temperature_c, gpu.power_w
    return _devices_key(gpu), facts, readings
