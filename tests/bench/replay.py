"""The dashboard against the clock: a run of 8 devices with 1000 losses a second on top of a million.

    python -m tests.bench.replay [--devices 8] [--points 1000000] [--seconds 15]
    python -m tests.bench.replay --day      16 devices, 8.64e7 losses, 60 s; 6 GB of disk for its files
    python -m tests.bench.replay --hosts 32     8 devices each, every rank with 10 events a second; live only

Two measurements, in a real window (offscreen where there is no display). Attach: a finished run of so many
steps, from opening to the last event drawn; fifty steps a line, as a rank that does 1000 a second writes them
(training/reporting.py), and a line each, as one that does 20. Live: another process appends to a run that
already has that many points, and 10 readings a second of every device; a frame is measured from the clock's
tick to the end of its painting. A day is measured live only, once its files were read as fast as can be.
Goals: attach <= 1 s, p99 frame <= 16 ms, <= 30 % of a core at 30 frames a second, and of a day < 5 MB more of
memory in the minute in which it is watched.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
from PySide6.QtCore import QEvent, QObject

from rankdeck import events
from rankdeck_app.shell.frame_clock import _FRAME_END, FrameClock
from rankdeck_app.state.live_run import LiveRun
from tests.helpers.written_run import MIB, WrittenRun, device_infos, write_backdated

STEPS_PER_S = 1000
READINGS_HZ = 10
READINGS_PER_FOLLOWED = 5
"""A step is followed each half second at most (training/sampling_budget.py)."""
DEVICES_OF_HOST = 8
FLUSH_S = 0.05
LINE_STEPS = int(STEPS_PER_S * FLUSH_S)


def steps_line(rng: random.Random, first: int, num_steps: int, t: float, step_s: float) -> events.Steps:
    """Steps that ended before `t`, `step_s` apart."""
    at = np.arange(num_steps)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(size=num_steps)
    loss = 2.2 + 8.5 * np.exp(-(first + at) / 2e5) + 0.1 * noise
    return events.Steps(
        rank=0,
        first=first,
        loss_sum=(32 * loss).tolist(),
        count=[32.0] * num_steps,
        lr=[3e-4] * num_steps,
        samples=[32] * num_steps,
        step_s=[step_s] * num_steps,
        ended=(t - step_s * (num_steps - 1 - at)).tolist(),
    )


def readings(rng: random.Random, num_devices: int, t: float, number: int) -> list[events.Event]:
    """One sample of every device, and where one is due a followed step."""
    sample = events.Sample(
        interval_s=1 / READINGS_HZ,
        devices=[
            events.DeviceSample(device=index, utilisation=0.6 + 0.3 * math.sin(2.6 * t + 0.3 * index))
            for index in range(num_devices)
        ],
    )
    if number % READINGS_PER_FOLLOWED:
        return [sample]
    memory = events.Memory(rank=0, step=0, source=events.MEASURED_IN_REHEARSAL, devices=[])
    for index in range(num_devices):
        kinds = {"parameters": 21 * MIB, "activations": int((47 + rng.gauss(0, 1)) * MIB)}
        if index == 0:
            kinds |= {"optimizer": 42 * MIB, "gathered": 122 * MIB}
        total_bytes = sum(kinds.values())
        memory.devices.append(events.DeviceMemory(index, total_bytes // 2, total_bytes, peak_by_kind=kinds))
    return [sample, memory]


def history(
    num_devices: int, num_points: int, per_line: int, t: float
) -> Iterator[tuple[float, events.Event]]:
    """(time, event) of a run that has been going for `num_points` steps at time `t`."""
    rng = random.Random(1)
    start = t - num_points / STEPS_PER_S
    every = STEPS_PER_S // READINGS_HZ
    next_reading = every
    for first in range(1, num_points + 1, per_line):
        num_steps = min(per_line, num_points + 1 - first)
        ended = start + (first + num_steps - 1) / STEPS_PER_S
        yield ended, steps_line(rng, first, num_steps, ended, 1 / STEPS_PER_S)
        while first + num_steps > next_reading:
            for event in readings(rng, num_devices, ended, next_reading // every):
                yield ended, event
            next_reading += every


def write_run(runs: Path, name: str, num_devices: int, num_points: int, per_line: int) -> WrittenRun:
    run = WrittenRun(runs, name)
    now = time.time()
    run.started = now - num_points / STEPS_PER_S
    run.start(devices=device_infos(num_devices), steps=2 * num_points)
    write_backdated(run.dir.events_folder / "rank-0.0.jsonl", history(num_devices, num_points, per_line, now))
    return run


def write_as_process(runs: Path, kind: str, num_devices: int, num_points: int) -> None:
    """Writes a run, prints its path, and goes on appending to a running one until standard input closes."""
    is_finished, per_line = kind.startswith("finished"), {"finished": LINE_STEPS, "finished-slow": 1}
    run = write_run(runs, kind, num_devices, num_points, per_line.get(kind, 1000))
    if is_finished:
        run.end()
        print(run.path, flush=True)
        return
    print(run.path, flush=True)
    sys.stdin.readline()
    os.set_blocking(0, False)
    run.start(devices=device_infos(num_devices), steps=2 * num_points, attempt=1)
    rng, number = random.Random(2), 0
    first, next_reading, next_flush = num_points + 1, time.time(), time.time()
    num_steps = LINE_STEPS
    while _is_wanted():
        next_flush += FLUSH_S
        time.sleep(max(0.0, next_flush - time.time()))
        run.writer("rank-0", 1).write(steps_line(rng, first, num_steps, time.time(), 1 / STEPS_PER_S))
        first += num_steps
        if time.time() >= next_reading:
            next_reading, number = next_reading + 1 / READINGS_HZ, number + 1
            for event in readings(rng, num_devices, time.time(), number):
                run.writer("sampler").write(event)
    run.lose()


def write_over_hosts(runs: Path, num_hosts: int) -> None:
    """The same of a run of so many hosts, whose ranks all write, and whose samplers read once a second."""
    infos = [
        msgspec.structs.replace(info, host=f"box{info.index // DEVICES_OF_HOST}")
        for info in device_infos(num_hosts * DEVICES_OF_HOST)
    ]
    run = WrittenRun(runs, "over-hosts")
    run.start(world_size=len(infos), devices=infos, steps=1_000_000)
    print(run.path, flush=True)
    sys.stdin.readline()
    os.set_blocking(0, False)
    rng, due = random.Random(2), time.time()
    number, step = 0, 1
    while _is_wanted():
        number, due = number + 1, due + 1 / READINGS_HZ
        time.sleep(max(0.0, due - time.time()))
        is_followed = number % READINGS_PER_FOLLOWED == 0
        for rank in range(len(infos)):
            steps = msgspec.structs.replace(steps_line(rng, step, 1, time.time(), 1 / READINGS_HZ), rank=rank)
            kinds = {"parameters": 21 * MIB, "activations": int((47 + rng.gauss(0, 1)) * MIB)}
            device_memory = events.DeviceMemory(rank, 60 * MIB, sum(kinds.values()), peak_by_kind=kinds)
            memory = events.Memory(
                rank=rank, step=step, source=events.MEASURED_IN_REHEARSAL, devices=[device_memory]
            )
            run.writer(f"rank-{rank}").write(memory if is_followed else steps)
        step += not is_followed
        for host in range(num_hosts) if number % READINGS_HZ == 0 else ():
            busy = [
                events.DeviceSample(device=host * DEVICES_OF_HOST + index, utilisation=rng.random())
                for index in range(DEVICES_OF_HOST)
            ]
            run.writer(f"sampler-box{host}").write(events.Sample(interval_s=1.0, devices=busy))
    run.lose()


def _is_wanted() -> bool:
    try:
        return os.read(0, 1) != b""
    except BlockingIOError:
        return True


class Writer:
    """A process that writes a run, so that neither its time nor its memory counts as the app's."""

    def __init__(self, runs: Path, kind: str, num_devices: int, num_points: int) -> None:
        command = [sys.executable, "-m", "tests.bench.replay", "--write", kind, "--runs", str(runs)]
        counts = ["--devices", str(num_devices), "--points", str(num_points)]
        counts += ["--hosts", str(num_devices // DEVICES_OF_HOST)]
        self._process = subprocess.Popen(
            [*command, *counts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.path = Path(self._process.stdout.readline().strip())

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=10)


class FrameTimes(QObject):
    """Processor time of the UI's thread per frame: what a frame costs on a machine that does nothing else."""

    def __init__(self, clock: FrameClock) -> None:
        super().__init__()
        self.times_ms: list[float] = []
        self._began_s = 0.0
        clock.subscribe(self._start_frame)
        clock.installEventFilter(self)

    def _start_frame(self) -> None:
        self._began_s = time.thread_time()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == _FRAME_END:
            self.times_ms.append((time.thread_time() - self._began_s) * 1e3)
        return False

    def percentile(self, share: float) -> float:
        return sorted(self.times_ms)[min(len(self.times_ms) - 1, int(len(self.times_ms) * share))]


class Bench:
    """A window of the app, and the two measurements in it."""

    def __init__(self, folder: Path, num_devices: int, num_points: int) -> None:
        import numpy.ma  # noqa: F401 (with the views, as composition.py does)
        from PySide6.QtWidgets import QApplication

        from rankdeck_app.shell.services import make_services
        from rankdeck_app.shell.window_state import open_window
        from rankdeck_app.views.dashboard.page import RunPage, page_id

        self._make_page, self._page_id = RunPage, page_id
        self._app = QApplication([])
        self._runs = folder / "runs"
        self._sizes = (num_devices, num_points)
        self._window = open_window(make_services(self._runs, folder))
        self._window.resize(1440, 900)
        self._window.show()
        self._frames = FrameTimes(self._window.clock)
        # As the app does once its views are there: a full collection of what never dies takes tens of ms.
        gc.collect()
        gc.freeze()

    def _open(self, path: Path) -> LiveRun:
        live = LiveRun(path)
        live.start()
        self._window.editor.open(
            self._page_id(path), lambda _: self._make_page(live, self._window.theme, self._window.clock)
        )
        return live

    def _spin(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not until():
            self._app.processEvents()
            time.sleep(0.001)

    def attach(self, kind: str) -> str:
        """From the click on a finished run to its last event drawn."""
        writer = Writer(self._runs, kind, *self._sizes)
        writer.close()
        self._spin(0.5)
        start_s, cpu_s = time.perf_counter(), time.process_time()
        live = self._open(writer.path)
        opened_ms = (time.perf_counter() - start_s) * 1e3
        self._spin(60, lambda: live.outcome is not None and not live.has_unread)
        attach_s = time.perf_counter() - start_s
        assert live.step == self._sizes[1], live.step
        live.close()
        self._window.editor.close_page()
        return (
            f"attach: {live.step:,} steps in {live.state.num_events:,} events in {attach_s:.2f} s (goal 1), "
            f"of the processor {time.process_time() - cpu_s:.2f} s; tab open in {opened_ms:.0f} ms"
        )

    def live(self, seconds: float) -> str:
        """Frames and time of the processor while another process appends."""
        num_points = self._sizes[1]
        writer = Writer(self._runs, "running" if num_points else "over-hosts", *self._sizes)
        before, start_s = _resident_bytes(), time.perf_counter()
        live = self._open(writer.path)
        self._spin(1800, lambda: bool(live.devices) and (live.step or 0) == num_points)
        assert (live.step or 0) == num_points, live.step
        loaded = (
            f"backlog: {_size_of(writer.path) / 1e9:.2f} GB in {time.perf_counter() - start_s:.1f} s, "
            f"{(_resident_bytes() - before) / 1e6:.0f} MB of memory\n"
        )
        writer.go_on()
        self._spin(12)
        self._frames.times_ms.clear()
        step, cpu_s, start_s = live.step or 0, time.process_time(), time.perf_counter()
        before = _resident_bytes()
        self._spin(seconds)
        wall_s = time.perf_counter() - start_s
        share, rate = (time.process_time() - cpu_s) / wall_s, ((live.step or 0) - step) / wall_s
        grown = _resident_bytes() - before
        stats = self._window.clock.stats()
        assert stats is not None
        writer.close()
        live.close()
        self._window.close()
        return loaded + (
            f"live: frame p50 {stats.p50_ms:.1f} ms, p99 {stats.p99_ms:.1f} ms (goal 16), of the processor "
            f"p99 {self._frames.percentile(0.99):.1f} ms; {stats.rate_hz:.0f} fps, "
            f"{share:.0%} of a core (goal 30 %), {rate:.0f} losses/s, {len(live.state.losses):,} points, "
            f"{grown / 1e6:+.1f} MB of memory in {wall_s:.0f} s, "
            f"{self._sizes[0]} devices, {self._app.platformName()}, load {os.getloadavg()[0]:.1f}"
        )


def _resident_bytes() -> int:
    """What this process holds, after what nothing refers to is gone."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _size_of(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / "events").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--day", action="store_true", help="16 devices, a day at 1000 losses a second, 60 s")
    parser.add_argument("--hosts", type=int, default=0, help="a run of so many hosts, of 8 devices each")
    kinds = ("finished", "finished-slow", "running", "over-hosts")
    parser.add_argument("--write", choices=kinds, help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.day:
        args.devices, args.points, args.seconds = 16, 24 * 3600 * STEPS_PER_S, 60.0
    if args.write == "over-hosts":
        write_over_hosts(args.runs, args.hosts)
        return
    if args.write is not None:
        write_as_process(args.runs, args.write, args.devices, args.points)
        return
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RANKDECK_HOME"] = folder
        if args.hosts:
            args.devices, args.points = args.hosts * DEVICES_OF_HOST, 0
        bench = Bench(Path(folder), args.devices, args.points)
        if not args.day and not args.hosts:
            for kind in ("finished", "finished-slow"):
                print(bench.attach(kind), flush=True)
        print(bench.live(args.seconds), flush=True)


if __name__ == "__main__":
    main()
