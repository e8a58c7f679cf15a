"""When each host of a run was heard last, by the clock of whoever looks: a host that is cut off, stopped or
far behind is silent, whatever its own clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rankdeck.run.devices import DeviceState

SILENT_AFTER_S = 3.0
"""What a host tells each second is old from there on."""


class HostLiveness:
    """Fed with the devices of a live run; what is read of them comes once a second from each host."""

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
        """Of hosts that have told nothing for some time, for how many seconds."""
        now_s = self._clock()
        return {
            host: int(now_s - at_s)
            for host, at_s in self._last_heard_s.items()
            if now_s - at_s >= SILENT_AFTER_S
        }
