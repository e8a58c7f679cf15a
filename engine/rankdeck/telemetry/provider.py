"""Protocol of a source of readings, which lists its devices and reads them.

NVML (nvml.py) and the ranks of a rehearsal (host.py) are providers; another vendor's GPUs would need one more
such class. Everything is keyed by UUID. Only the sampler (sampler.py) uses a provider.
"""

from __future__ import annotations

from typing import Protocol

from rankdeck.telemetry.readings import DeviceProcesses, DevicesLine, NoticeLine, Reading


class DeviceLostError(Exception):
    """The device no longer answers. The message is the driver's."""


class Provider(Protocol):
    """A source of readings. It can crash or hang its process, which is why the sampler is a separate process.

    `needs_reopen`: whether a provider that no longer answers may have to be reopened before it answers again.
    """

    needs_reopen: bool = False

    def probe(self) -> DevicesLine:
        """Return all devices, each GPU followed by its MIG instances, with their static facts and supported
        metrics.

        A metric is listed only if its support can be determined without a query.

        Raises:
            MachineError: there is no driver, or it does not answer.
        """

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """Return current readings of `metrics`, without those that must not be queried now.

        Raises:
            DeviceLostError: the device no longer answers.
        """

    def processes(self, uuid: str) -> DeviceProcesses:
        """Return the processes that hold memory on the device.

        Raises:
            DeviceLostError: the device no longer answers.
        """

    def listen(self) -> bool:
        """Ask the driver to report events; return True if the caller should call `wait_for_event`."""
        return False

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait for an event from the driver or for the timeout; called from a background thread.

        The event itself is returned by `notices`.
        """
        return

    def notices(self, *, at_end: bool = False) -> list[NoticeLine]:
        """Return the notices since the last call; if `at_end` is True, also those that are not due yet."""
        return []

    def signature(self) -> object:
        """Return a value that changes when the set of devices is no longer that of the last probe."""
        return None

    def close(self) -> None:
        """Close the driver's library."""
        return
