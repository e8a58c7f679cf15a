"""Merge the attempts of a run: join their curves, and combine the device reports of attempts with the same
setup."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.curves import CURVE_INDICES
from rankdeck.run.devices import HISTORIES, DeviceState
from rankdeck.run.series import Curve, Series


class DeviceHistories:
    """Histories of a run's devices (devices.HISTORIES), over the seconds since the run's start."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._attempts = attempts
        self._curves: dict[tuple[int, float], dict[str, Curve]] = {}

    def for_device(self, index: int, zero: float) -> dict[str, Curve]:
        """Return the histories of one device; `zero` is the start of the run."""
        if (index, zero) not in self._curves:
            self._curves[index, zero] = {name: self._curve(index, name, zero) for name in HISTORIES}
        return self._curves[index, zero]

    def _curve(self, index: int, name: str, zero: float) -> Curve:
        def list_series() -> list[Series]:
            return [
                getattr(attempt.devices[index], name)
                for attempt in self._attempts()
                if index in attempt.devices
            ]

        return Curve(list_series, zero=zero)


def step_curve(attempts: Callable[[], Sequence[Attempt]], name: str) -> Curve:
    """Return the curve `name` (a key of curves.CURVE_INDICES), joined across all attempts."""

    def list_series() -> list[Series]:
        drawn = [attempt.curves for attempt in attempts() if attempt.curves is not None]
        return [series for curves in drawn if (series := curves.series_of(name)) is not None]

    return Curve(list_series, CURVE_INDICES[name])


def attempts_measured_together(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts whose measurements are combined, oldest first.

    The last of them is the newest attempt that restored a checkpoint, or else the latest attempt. The others
    are the attempts directly before it that have the same setup.
    """
    candidates = [attempt for attempt in attempts if attempt.started is not None] or list(attempts)
    restored = [attempt for attempt in candidates if attempt.restored is not None]
    measured = (restored or candidates)[-1:]
    for attempt in reversed(candidates[: candidates.index(measured[0])] if measured else []):
        if attempt.setup() != measured[0].setup():
            break
        measured.insert(0, attempt)
    return measured


def merge_devices(
    measured: Sequence[Attempt], histories: DeviceHistories, zero: float
) -> dict[int, DeviceState]:
    """Return the state of each device, by index, merged from the reports in the attempts `measured`.

    Each state gets its curves from `histories`; `zero` is the start of the run.
    """
    infos = _device_infos(measured[-1]) if measured else {}
    indices = sorted(infos.keys() | {index for attempt in measured for index in attempt.devices})
    states = {
        index: DeviceState(index, infos.get(index), histories.for_device(index, zero)) for index in indices
    }
    for attempt in measured:
        for index, device in attempt.devices.items():
            states[index].add_attempt(device)
    return states


def _device_infos(latest: Attempt) -> dict[int, events.DeviceInfo]:
    """Return the devices that the supervisor announced.

    On CPUs, each rank that a script starts itself also gets a device.
    """
    announced = latest.started.devices if latest.started is not None else []
    infos = {info.index: info for info in announced}
    if announced and all(info.kind == "virtual" for info in announced):
        for index in sorted(latest.devices.keys() - infos.keys()):
            infos[index] = events.DeviceInfo(index=index, name=f"CPU {index}", kind="virtual")
    return infos
