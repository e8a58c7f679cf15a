"""Current state of the GPUs (GpuStatus) of this machine or another host.

The state is built from the sampler's lines (device_feed.py). There is no state before the sampler's first
answer; if there are no GPUs to show, `reason` explains why in one line. Readings are updated at most four
times a second, because text that changes faster cannot be read.
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
    """Return the compute processes on a GPU; return an empty list if a run has leased the GPU."""
    return gpu.compute_processes if gpu.run is None else []


def busy_text(gpu: GpuStatus) -> str:
    """Return text that names the processes on a GPU, such as 'python 12 GiB, outside this namespace 3 GiB';
    empty if the GPU is unused."""
    used_by, hidden_bytes = other_processes(gpu), gpu.unaccounted_bytes
    if gpu.run is None and not used_by and hidden_bytes is not None:
        return tr("unattributed {size}", size=format_bytes(hidden_bytes, 0))
    return ", ".join(
        name if num_bytes is None else f"{name} {format_bytes(num_bytes, 0)}"
        for name, num_bytes in _sum_by_name(used_by).items()
    )


def run_label(gpu: GpuStatus) -> str:
    """Return the name of the run that has leased a GPU, without the timestamp at the start of the name."""
    stamp, _, rest = gpu.run_name.partition("-")
    return rest.partition("-")[2] if stamp.isdecimal() and "-" in rest else gpu.run_name


def clock_time(unix_s: float) -> str:
    """Return a Unix time as local clock time."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def _sum_by_name(processes: list[ProcessUse]) -> dict[str, int | None]:
    bytes_by_name: dict[str, int | None] = {}
    for item in processes:
        name = tr("outside this namespace") if item.foreign else item.name or tr("pid {pid}", pid=item.pid)
        before = bytes_by_name.get(name)
        bytes_by_name[name] = before if item.used_bytes is None else (before or 0) + item.used_bytes
    return bytes_by_name


class Gpus(QObject):
    """GPUs of one host; `host` is "" for this machine.

    `changed` is emitted when the devices or the processes on them change, or a device is lost, returns or
    becomes stale; `readings_changed` is emitted for new readings. `notice_received` carries a NoticeLine.
    `is_known` is False until the first answer. `refusal` explains why another host does not answer.
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
        """The GPUs, leaving out MIG instances."""
        return [gpu for gpu in self.devices if gpu.parent is None]

    def count_devices(self, selection: DeviceSelection) -> int | None:
        """Return the number of devices that a selection includes on this host; None while the number is
        unknown."""
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
        """The history's clock: seconds since this object was created."""
        return time.monotonic() - self.started_s

    @property
    def silence_s(self) -> float | None:
        """Seconds since the sampler's last line that is not a notice; None if there are no devices."""
        return time.monotonic() - self._last_line_s if self.devices else None

    def imbalance(self) -> Imbalance | None:
        """Return the memory imbalance among the devices that one run or process uses together.

        Devices are numbered by their index in `physical_gpus`. Unrelated devices and stale readings are not
        compared.
        """
        gpus = self.physical_gpus
        together: dict[object, set[int]] = {}
        for index, gpu in enumerate(gpus):
            if gpu.used_bytes is None:
                continue
            pids: list[object] = [item.pid for item in other_processes(gpu) if not item.foreign]
            for key in pids if gpu.run is None else [gpu.run]:
                together.setdefault(key, set()).add(index)
        largest = max(together.values(), key=len, default=set())
        return find_imbalance({index: gpus[index].used_bytes for index in sorted(largest)})

    def start(self) -> None:
        """Start reading the GPUs, or retry after reading has ended; `changed` follows with the first
        answer."""
        self._feed.start()

    def close(self) -> None:
        self._update_timer.stop()
        self._feed.close()

    def reading(self, uuid: str, metric: str) -> Reading:
        """Return the current reading of a metric, marked stale if it is old."""
        return self.registry.reading(uuid, metric, time.monotonic())

    def add_line(self, line: AnySamplerLine) -> None:
        """Process a line of the sampler."""
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
            from rankdeck_app.state.device_feed import DeviceHistory  # imports numpy

            self.history = DeviceHistory()
        self.history.add(line, now_s - self.started_s)

    def set_unavailable(self, why: str = "") -> None:
        """Clear all devices, and set the reason why there is nothing to read."""
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
        """Set `reason`, which explains why there are no GPUs to show, either temporarily or permanently."""
        # Without a full stop, because the messages that quote the reason add their own.
        self.is_known, self.reason = True, reason.rstrip(".")
        self.changed.emit()

    def update(self) -> None:
        """Update the GPUs from the device registry, and emit a signal for each kind of change."""
        line = self.registry.devices_line
        if line is None:
            return
        now_s = time.monotonic()
        before, was_known = self.devices, self.is_known
        self.devices = self.registry.gpus(now_s)
        self.is_known = True
        self.reason = None if self.devices else tr("The NVIDIA driver reports no GPU")
        if not was_known or [_devices_key(gpu) for gpu in before] != [
            _devices_key(gpu) for gpu in self.devices
        ]:
            self.changed.emit()
        if [*map(_display_values, before)] != [*map(_display_values, self.devices)]:
            self.readings_changed.emit()


def _devices_key(gpu: GpuStatus) -> tuple[object, ...]:
    """Return the values of a GPU on which a choice of devices depends."""
    # Without their memory, which differs in nearly every reading: `changed` would be emitted all the time.
    users = None if gpu.processes is None else [(item.pid, item.name) for item in gpu.processes]
    return gpu.uuid, gpu.label, gpu.lost_at, gpu.mig, gpu.is_stale, gpu.is_free, gpu.run, users


def _display_values(gpu: GpuStatus) -> tuple[object, ...]:
    """Return the values of a GPU that are shown as text."""
    facts = gpu.name, gpu.total_bytes, gpu.simulated, gpu.processes
    readings = gpu.last_used_bytes, gpu.utilisation, gpu.temperature_c, gpu.power_w
    return _devices_key(gpu), facts, readings
