"""Protocol of a source of readings: list its devices and read them.

NVML (nvml.py) and the ranks of a rehearsal (host.py) are providers; support for another vendor's GPUs would
be another such class. Everything is keyed by UUID. Only the sampler (sampler.py) uses a provider.
"""

from __future__ import annotations

from typing import Protocol

from rankdeck.telemetry.readings import DeviceProcesses, DevicesLine, NoticeLine, Reading


class DeviceLostError(Exception):
    """The device no longer answers. The message is the driver's."""


class Provider(Protocol):
    """A source of readings. It may crash or hang its process, which is why the sampler is a separate process.

    `needs_reopen` means that the provider is opened once, and may have to be reopened to answer again.
    """

    needs_reopen: bool = False

    def probe(self) -> DevicesLine:
        """Return all devices, each GPU followed by its MIG instances, with their static facts and metrics.

        Only the metrics that can be determined without a query are listed.

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
        """Ask the driver to report events; return whether `wait_for_event` may be called."""
        return False

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait for an event from the driver or for the timeout; called from a thread.

        The event itself is returned by `notices`.
        """
        return

    def notices(self, *, at_end: bool = False) -> list[NoticeLine]:
        """Return the notices since the last call; `at_end` includes those that would otherwise be reported
        later."""
        return []

    def signature(self) -> object:
        """Return a value that changes when the set of devices differs from that of the last probe."""
        return None

    def close(self) -> None:
        """Close the driver's library."""
        return
