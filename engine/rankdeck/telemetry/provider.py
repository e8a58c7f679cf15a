"""What every source of readings can do: say which devices there are, and read them.

NVML (nvml.py) is one, the ranks of a rehearsal (host.py) another; a source for other vendors' GPUs is one
more class of this shape. Everything is keyed by UUID. The sampler (sampler.py) asks; nobody else holds one.
"""

from __future__ import annotations

from typing import Protocol

from rankdeck.telemetry.readings import DeviceProcesses, DevicesLine, NoticeLine, Reading


class DeviceLostError(Exception):
    """The device does not answer any more. The message is the driver's."""


class Provider(Protocol):
    """A source of readings. It may crash or hang its process: that is why it has one of its own.

    `needs_reopen`: it is opened once, and may have to be opened anew to answer again.
    """

    needs_reopen: bool = False

    def probe(self) -> DevicesLine:
        """Every device that there is, MIG instances after their GPU, with static facts and the metrics that
        it may tell, as far as that is known without asking for them.

        Raises: MachineError where there is no driver, or none that answers.
        """

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """These metrics now. One that may not be asked now is left out.

        Raises: DeviceLostError.
        """

    def processes(self, uuid: str) -> DeviceProcesses:
        """Who holds memory of the device.

        Raises: DeviceLostError.
        """

    def listen(self) -> bool:
        """Ask the driver to report by itself; whether it may be waited for."""
        return False

    def wait_for_event(self, timeout_s: float) -> None:
        """Until the driver has reported something, or the time is over; called from a thread. What it was
        comes with the notices.
        """
        return

    def notices(self, *, at_end: bool = False) -> list[NoticeLine]:
        """What happened since the last time; `at_end` also what would be told later."""
        return []

    def signature(self) -> object:
        """Something that differs once there are other devices than at the last probe."""
        return None

    def close(self) -> None:
        """Let go of the driver."""
        return
