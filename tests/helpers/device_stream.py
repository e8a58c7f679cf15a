"""`rankdeck devices --follow --json` as the app reads it: a process, its lines, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import psutil

from rankdeck.telemetry.readings import AnySamplerLine, NoticeLine, Reading, SampleLine, decode
from rankdeck.telemetry.registry import DeviceRegistry
from tests.helpers.waiting import wait_until


class DeviceStream:
    """The stream while it is open; `lines` are all that came, with what they say."""

    def __init__(self, env: Mapping[str, str]) -> None:
        command = [sys.executable, "-P", "-m", "rankdeck", "devices", "--follow", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **env})
        self.lines: list[AnySamplerLine] = []
        self.garbage: list[bytes] = []
        self.registry = DeviceRegistry()
        self._lock = threading.RLock()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> DeviceStream:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for data in self.process.stdout:
            line = decode(data)
            if line is None:
                self.garbage.append(data)
                continue
            with self._lock:
                self.lines.append(line)
                self.registry.feed(line, time.monotonic())

    def wait(
        self, condition: Callable[[DeviceRegistry], object], what: str, deadline_s: float = 15.0
    ) -> None:
        """Until the registry says so."""

        def is_met() -> object:
            with self._lock:
                return condition(self.registry)

        wait_until(is_met, what=what, deadline_s=deadline_s)

    def wait_for_bytes(self, uuid: str, num_bytes: int | None = None) -> None:
        """Until so many bytes are used on the device, or it has been read at all."""

        def has_bytes(registry: DeviceRegistry) -> bool:
            used = {gpu.uuid: gpu.used_bytes for gpu in registry.gpus(time.monotonic())}.get(uuid)
            return used is not None if num_bytes is None else used == num_bytes

        self.wait(has_bytes, f"{num_bytes or 'any'} bytes on {uuid}")

    def reading(self, uuid: str, metric: str) -> Reading:
        with self._lock:
            return self.registry.reading(uuid, metric, time.monotonic())

    def notices(self, code: str) -> list[NoticeLine]:
        with self._lock:
            return [line for line in self.lines if isinstance(line, NoticeLine) and line.code == code]

    def samples(self) -> list[SampleLine]:
        with self._lock:
            return [line for line in self.lines if isinstance(line, SampleLine)]

    def sampler(self) -> psutil.Process | None:
        """The process that asks the driver."""
        return next(iter(psutil.Process(self.process.pid).children()), None)

    def kill_sampler(self) -> None:
        sampler = self.sampler()
        assert sampler is not None
        os.kill(sampler.pid, signal.SIGKILL)
