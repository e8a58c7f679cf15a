"""Track when this machine last heard from each host of a run, by this machine's clock.

A host that is disconnected, stopped or late with its reports counts as silent, whatever time its own clock
shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rankdeck.run.devices import DeviceState

SILENT_AFTER_S = 3.0
"""Time without a report after which a host counts as silent; hosts report once a second."""


class HostLiveness:
    """Last-heard times by host, updated from the device readings that each host of a live run reports once a
    second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reading_times_s: dict[int, float] = {}
        self._last_heard_s: dict[str, float] = {}

    def update(self, devices: Iterable[DeviceState]) -> None:
        now_s = self._clock()
        for device in devices:
            if device.host and device.observed_s != self._reading_times_s.get(device.device):
                self._reading_times_s[device.device] = device.observed_s
                self._last_heard_s[device.host] = now_s

    def silent_hosts(self) -> dict[str, int]:
        """Return, for each silent host, the whole seconds since this machine last heard from it."""
        now_s = self._clock()
        return {
            host: int(now_s - at_s)
            for host, at_s in self._last_heard_s.items()
            if now_s - at_s >= SILENT_AFTER_S
        }
