"""The attempts of a run put together: their curves as one, and what those that are measured together say of
the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.curves import INDICES
from rankdeck.run.devices import HISTORIES, DeviceFigures
from rankdeck.run.series import Curve, Series


class Histories:
    """The histories of a run's devices over seconds since its start (devices.HISTORIES)."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._attempts = attempts
        self._known: dict[tuple[int, float], dict[str, Curve]] = {}

    def of(self, index: int, zero: float) -> dict[str, Curve]:
        """Of one device, `zero` being the start of the run."""
        if (index, zero) not in self._known:
            self._known[index, zero] = {name: self._curve(index, name, zero) for name in HISTORIES}
        return self._known[index, zero]

    def _curve(self, index: int, name: str, zero: float) -> Curve:
        def parts() -> list[Series]:
            return [getattr(one.devices[index], name) for one in self._attempts() if index in one.devices]

        return Curve(parts, zero=zero)


def step_curve(attempts: Callable[[], Sequence[Attempt]], name: str) -> Curve:
    """One curve (curves.INDICES) of all attempts, whose steps follow each other."""

    def parts() -> list[Series]:
        drawn = [one.curves for one in attempts() if one.curves is not None]
        return [series for curves in drawn if (series := curves.series_of(name)) is not None]

    return Curve(parts, INDICES[name])


def measured_together(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The newest attempt that restored, or the latest one, after those before it with the same set-up."""
    known = [one for one in attempts if one.started is not None] or list(attempts)
    restored = [one for one in known if one.restored is not None]
    shown = (restored or known)[-1:]
    for one in reversed(known[: known.index(shown[0])] if shown else []):
        if one.setup() != shown[0].setup():
            break
        shown.insert(0, one)
    return shown


def put_devices_together(
    measured: Sequence[Attempt], histories: Histories, zero: float
) -> dict[int, DeviceFigures]:
    """The devices of attempts that are measured together, by place in the run, which began at `zero`."""
    infos = _infos(measured[-1]) if measured else {}
    indices = sorted(infos.keys() | {index for one in measured for index in one.devices})
    figures = {index: DeviceFigures(index, infos.get(index), histories.of(index, zero)) for index in indices}
    for one in measured:
        for index, device in one.devices.items():
            figures[index].add(device)
    return figures


def _infos(latest: Attempt) -> dict[int, events.DeviceInfo]:
    """The devices as they were announced; of a script on CPUs a rank that it started itself has one too."""
    announced = latest.started.devices if latest.started is not None else []
    infos = {info.index: info for info in announced}
    if latest.is_of_a_script and all(info.kind == "virtual" for info in announced):
        for index in sorted(latest.devices.keys() - infos.keys()):
            infos[index] = events.DeviceInfo(index=index, name=f"CPU {index}", kind="virtual")
    return infos
