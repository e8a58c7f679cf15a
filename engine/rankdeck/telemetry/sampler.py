"""The sampler: a separate process that reads devices at the rates of METRICS and writes their readings.

    python -P -m rankdeck.telemetry.sampler [--once]                   lines (readings.py) on stdout
    python -P -m rankdeck.telemetry.sampler --run DIR --attempt N ...  events in a run directory

A crash or hang of the driver's library, or the loss of a device, affects only this process, which then ends,
waits or reports the loss. sampler_process.py starts and watches it. Reads are spread out: each device's 1 Hz
metrics are read in one of every ten ticks, chosen by the device's index, so that with up to ten devices no
tick reads them for more than one device. Missed ticks are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rankdeck import debug_log
from rankdeck.base.errors import MachineError
from rankdeck.base.files import lease_holder
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import phrase
from rankdeck.observer import process_title
from rankdeck.telemetry.crash_marker import CrashMarker
from rankdeck.telemetry.provider import DeviceLostError, Provider
from rankdeck.telemetry.readings import (
    DEFAULT_METRICS,
    METRICS,
    Device,
    DeviceProcesses,
    DeviceReadings,
    NoticeLine,
    ProcessesLine,
    SampleLine,
    SamplerLine,
    encode,
)

_log = logging.getLogger("rankdeck.telemetry.sampler")  # `python -m` calls it __main__

TICK_S = 0.1
TICKS_PER_CYCLE = 10
"""Number of consecutive ticks in which every metric becomes due at least once."""
LOST_RETRY_TICKS = 50
"""Ticks between two attempts to read a lost device."""
PROBE_TICKS = 50
"""Ticks between two checks for a change in the set of devices."""
EXIT_CHANGED = 75
"""Exit code if the set of devices has changed. A new process then lists the devices, because NVML counts
devices only when it is initialized."""
EXIT_UNRESPONSIVE = 76
"""Exit code if no device has answered for a while: an NVML session opened before the driver was reloaded
never recovers."""
UNRESPONSIVE_AFTER_S = 5.0
_MIN_REPORTED_AGE_S = 0.005
_DUE_METRICS = [
    tuple(name for name in DEFAULT_METRICS if tick % round(TICKS_PER_CYCLE / METRICS[name].hz) == 0)
    for tick in range(TICKS_PER_CYCLE)
]

LineSink = Callable[[SamplerLine], None]


class Sampler:
    """Sampler that reads devices from `provider` and passes lines to `write`.

    `only_uuids`: the devices of a run; if it is None, all devices are read, and those that a run's own
    sampler also reads are read only once a second. `low_rate`: read every device only once a second. `pcie`:
    also read PCIe metrics, which take 20 ms each.
    """

    def __init__(
        self,
        provider: Provider,
        write: LineSink,
        *,
        crash_marker: CrashMarker | None = None,
        only_uuids: Sequence[str] | None = None,
        pcie: bool = False,
        low_rate: bool = False,
    ) -> None:
        self._provider = provider
        self._write = write
        self._mark_call = crash_marker.mark if crash_marker is not None else lambda *_: None
        self._only_uuids = only_uuids
        self._low_rate = low_rate
        self._metrics = tuple(METRICS) if pcie else DEFAULT_METRICS
        self._devices: list[Device] = []
        self._lost: set[str] = set()
        self._runs: dict[str, str | None] = {}
        self._signature: object = None
        self._failing_since_s: float | None = None

    def start(self) -> None:
        """Write the list of devices.

        Raises:
            MachineError: the devices cannot be listed.
        """
        # Taken before the list: a device that answers only after being listed then counts as a change.
        self._signature = self._provider.signature()
        listed = self._provider.probe()
        if self._only_uuids is not None:
            listed.devices = [device for device in listed.devices if device.uuid in self._only_uuids]
        self._devices = listed.devices
        self._lost = {device.uuid for device in listed.devices if device.lost_at is not None}
        self._mark_call("")
        _log.info("reading %d devices, lost: %s", len(self._devices), sorted(self._lost))
        self._write(listed)

    def listen(self) -> None:
        """Start a thread that waits for the driver's events."""
        if not self._provider.listen():
            return
        self._mark_call("")

        def wait() -> NoReturn:
            while True:
                self._provider.wait_for_event(1.0)

        threading.Thread(target=wait, name="events", daemon=True).start()

    def run(self, wait: Callable[[float], bool]) -> int:
        """Call `tick` every `TICK_S` seconds until `wait(seconds)` returns True; return the exit code.

        The code is nonzero if a new process must take over.
        """
        began_s, tick, code = time.monotonic(), 0, None
        while code is None:
            self.tick(tick)
            code = self._restart_code(tick)
            # After a slow tick the missed ones are skipped, not caught up.
            tick = max(tick, int((time.monotonic() - began_s) / TICK_S)) + 1
            if code is None and wait(max(0.0, began_s + tick * TICK_S - time.monotonic())):
                code = 0
                self._write_last_processes()
        self._write_notices(at_end=True)
        return code

    def _restart_code(self, tick: int) -> int | None:
        """Return the exit code if a new process must take over, otherwise None.

        The devices of a run are fixed, but a new process may reach one of them that did not answer before.
        """
        failing_s = time.monotonic() - (self._failing_since_s or time.monotonic())
        # A session from before the driver was loaded never answers again, so NVML is reopened in a new
        # process.
        if self._provider.needs_reopen and failing_s > UNRESPONSIVE_AFTER_S:
            _log.warning("no device has answered for %.1f s", failing_s)
            return EXIT_UNRESPONSIVE
        if tick % PROBE_TICKS or self._provider.signature() == self._signature:
            return None
        if self._only_uuids is None:
            message = phrase("The list of devices has changed.")
            self._write(NoticeLine(code="changed", message=message, severity="info"))
        return EXIT_CHANGED

    def tick(self, tick: int) -> None:
        """Read all metrics that are due; in tick 0, every metric is due."""
        readings: list[DeviceReadings] = []
        processes: list[DeviceProcesses] = []
        read_s: list[float] = []
        for position, device in enumerate(self._devices):
            uuid, phase = device.uuid, (tick + position) % TICKS_PER_CYCLE
            turn = phase == 0 or tick == 0
            if turn and self._only_uuids is None:
                self._runs[uuid] = lease_holder(uuid)
            if uuid in self._lost and (not turn or not self._has_recovered(device, tick)):
                continue
            if not turn and (self._low_rate or self._runs.get(uuid) is not None):
                continue
            with self._marked(device):
                entry = DeviceReadings(
                    uuid, self._provider.read(uuid, self._metrics if turn else _DUE_METRICS[phase])
                )
                self._check_health(entry)
                readings.append(entry)
                read_s.append(time.monotonic())
                if turn:
                    processes.append(self._processes(uuid))
        self._mark_call("")
        self._write_readings(readings, read_s)
        self._write_processes(processes)
        self._write_notices()

    def _check_health(self, entry: DeviceReadings) -> None:
        """Update the time since which no read of a device has returned a value."""
        states = {reading.state for reading in entry.readings.values()}
        if "value" in states:
            self._failing_since_s = None
        elif "error" in states:
            self._failing_since_s = self._failing_since_s or time.monotonic()

    def _write_notices(self, *, at_end: bool = False) -> None:
        for notice in self._provider.notices(at_end=at_end):
            self._write(notice)

    def read_once(self) -> None:
        """Read everything once, and write each device's readings immediately, because a later device may
        hang."""
        for device in self._devices:
            if device.uuid in self._lost:
                continue
            with self._marked(device):
                entry = DeviceReadings(device.uuid, self._provider.read(device.uuid, self._metrics))
                self._write(SampleLine(devices=[entry]))
                self._runs[device.uuid] = lease_holder(device.uuid)
                self._write_processes([self._processes(device.uuid)])
        self._mark_call("")

    @contextlib.contextmanager
    def _marked(self, device: Device) -> Iterator[None]:
        """Mark the device for the watcher; if the `with` block raises DeviceLostError, report the loss."""
        self._mark_call(device.uuid)
        try:
            yield
        except DeviceLostError as error:
            self._mark_lost(device, str(error))

    def _write_last_processes(self) -> None:
        """Write the processes on the devices one last time before the sampler ends."""
        processes = []
        for device in self._devices:
            if device.uuid not in self._lost:
                with self._marked(device):
                    processes.append(self._processes(device.uuid))
        self._write_processes(processes)

    def _processes(self, uuid: str) -> DeviceProcesses:
        processes = self._provider.processes(uuid)
        processes.run = self._runs.get(uuid)
        return processes

    def _write_readings(self, devices: list[DeviceReadings], read_s: list[float]) -> None:
        if not devices:
            return
        now_s = time.monotonic()
        for entry, at_s in zip(devices, read_s, strict=True):
            if now_s - at_s > _MIN_REPORTED_AGE_S:
                for reading in entry.readings.values():
                    reading.age_s = round(now_s - at_s, 4)
        self._write(SampleLine(devices=devices))

    def _write_processes(self, devices: list[DeviceProcesses]) -> None:
        if devices:
            self._write(ProcessesLine(devices=devices))

    def _mark_lost(self, device: Device, why: str) -> None:
        _log.warning("%s is lost: %s", device.uuid, why)
        self._lost.add(device.uuid)
        self._failing_since_s = self._failing_since_s or time.monotonic()
        gpu = f"GPU {device.index} ({device.name})"
        # The driver's own text is usually "GPU is lost", which would only repeat the message.
        if "is lost" in why.lower():
            message = phrase("{gpu} is lost.", gpu=gpu)
        else:
            message = phrase("{gpu} is lost: {why}.", gpu=gpu, why=why.rstrip("."))
        advice = phrase(
            "Programs that use this GPU will fail. See the kernel log (dmesg); the machine may "
            "need a restart."
        )
        self._write(
            NoticeLine(code="lost", uuid=device.uuid, message=message, advice=advice, severity="error")
        )

    def _has_recovered(self, device: Device, tick: int) -> bool:
        """Retry a lost device from time to time; return whether it answers again."""
        # One cycle out of five, in which each device's turn comes exactly once.
        if tick % LOST_RETRY_TICKS >= TICKS_PER_CYCLE or tick < TICKS_PER_CYCLE:
            return False
        self._mark_call(device.uuid)
        try:
            values = self._provider.read(device.uuid, ("used_bytes",))
        except DeviceLostError:
            return False
        if all(reading.state == "error" for reading in values.values()):
            return False
        _log.info("%s answers again", device.uuid)
        self._lost.discard(device.uuid)
        message = phrase("{gpu} answers again.", gpu=f"GPU {device.index} ({device.name})")
        self._write(NoticeLine(code="back", uuid=device.uuid, message=message, severity="info"))
        return True


def _write_line(line: SamplerLine) -> None:
    sys.stdout.buffer.write(encode(line))
    sys.stdout.buffer.flush()


def _install_signal_handlers() -> Callable[[float], bool]:
    """Handle SIGTERM and SIGINT; return a function that waits up to a given number of seconds for either
    signal and returns whether one has arrived."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # The pipe wakes select; without a Python handler the signal would end the process instead.
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return lambda seconds: bool(select.select([read_end], [], [], seconds)[0])


def _parse_args(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rankdeck.telemetry.sampler")
    parser.add_argument("--once", action="store_true", help="read everything once and exit")
    parser.add_argument("--calm", action="store_true", help="read everything once a second")
    parser.add_argument("--pcie", action="store_true", help="also read PCIe traffic")
    parser.add_argument("--last-call", type=int, help="file descriptor of the crash marker")
    parser.add_argument("--parent", type=int, help="exit when the process with this PID ends")
    parser.add_argument("--skip", action="append", default=[], help="skip this device")
    parser.add_argument("--told", action="store_true", help="do not report a missing driver again")
    parser.add_argument("--run", type=Path, help="write events into this run's directory")
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--ranks", default="", help="process ids of the ranks, in order")
    parser.add_argument("--first", type=int, default=0, help="index of the first device and rank")
    parser.add_argument("--threads", type=int, default=1, help="maximum number of threads per rank")
    parser.add_argument(
        "--trees", action="store_true", help="count a rank's child processes as part of the rank"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the sampler and return its exit code: 0 if it was asked to stop, 3 if no driver answers,
    EXIT_CHANGED or EXIT_UNRESPONSIVE if a new process must take over."""
    options = _parse_args(argv)
    die_with_parent(options.parent)
    process_title.set_process_name("sampler", str(options.run or "rankdeck"))
    debug_log.enable(None if options.run is None else options.run / "logs")
    wait = _install_signal_handlers()
    last_call = None if options.last_call is None else CrashMarker(options.last_call)
    if last_call is not None:
        last_call.enable_crash_stack()
    write: LineSink = _write_line
    only: list[str] | None = None
    pids = [int(pid) for pid in options.ranks.split(",") if pid]
    kind = "gpu"
    if options.run is not None:
        from rankdeck.telemetry.run_sink import RunSink

        write = sink = RunSink(options.run, options.attempt, pids, options.first)
        only, kind = sink.uuids, sink.kind
    try:
        if kind == "virtual":
            from rankdeck.telemetry.host import HostProvider

            provider: Provider = HostProvider(pids, threads=options.threads, include_children=options.trees)
        else:
            from rankdeck.telemetry.nvml import NvmlProvider

            named = os.environ.get("RANKDECK_NVML")
            mark = last_call.mark if last_call is not None else lambda *_: None
            provider = NvmlProvider(Path(named).absolute() if named else None, options.skip, mark)
        sampler = Sampler(
            provider, write, crash_marker=last_call, only_uuids=only, pcie=options.pcie, low_rate=options.calm
        )
        sampler.start()
    except MachineError as error:
        if not options.told:
            write(NoticeLine(code=error.code, message=error.message, advice=error.advice, severity="error"))
        return error.exit_code
    if options.once:
        sampler.read_once()
        provider.close()
        return 0
    sampler.listen()
    # NVML is not closed, because the event thread may be waiting inside it.
    return sampler.run(wait)


if __name__ == "__main__":
    try:
        _code = main(sys.argv[1:])
    except BrokenPipeError:
        _code = 0  # the reader has gone
    # _exit, because a normal exit could hang on a thread that waits inside the driver.
    os._exit(_code)
