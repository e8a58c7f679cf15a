"""The GPUs of this machine, listed once: for `rankdeck devices` and for the choice of a run's devices.

A sampler of its own asks the driver and ends, so that a library that crashes or hangs costs this process
nothing but the readings. Every reading that there is not is None; `states` says why.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgspec

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.telemetry.availability import Availability
from rankdeck.telemetry.readings import METRICS, Device, NoticeLine, has_place, throttle_words
from rankdeck.telemetry.registry import NOT_READ, DeviceRegistry
from rankdeck.telemetry.sampler_process import SamplerProcess

PATIENCE_S = 20.0
"""How long a driver may take to answer everything once; longer by what is lost on each GPU that hangs."""
HANGS_AFTER_S = 5.0
_PAUSE_S = 0.1


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    `kind`: compute | graphics. `name` is None for a process outside this namespace, `used_bytes` where the
    driver does not tell. `command` is without what looks like a secret; `host_bytes` is what it holds of the
    host's memory.
    """

    pid: int
    name: str | None
    used_bytes: int | None
    kind: str = "compute"
    foreign: bool = False
    user: str | None = None
    command: str | None = None
    host_bytes: int | None = None


@dataclass(frozen=True)
class GpuStatus:
    """One GPU, or MIG instance of one, at one moment. Ratios are 0..1; None is what is not known.

    `state`: ok | lost, `why` it is, as the driver says. `states`: why a metric is None (unsupported | error |
    stale). `mig`: it is split, so that only its instances, which name it as `parent`, can be used. `run`: the
    run that holds it. What else a device is, is in readings.py.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: list[GpuProcess] = field(default_factory=list)
    memory_utilisation: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: int | None = None
    fan: float | None = None
    ecc_errors: int | None = None
    ecc_corrected: int | None = None
    performance_state: int | None = None
    pcie_tx_bps: int | None = None
    pcie_rx_bps: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    ecc: bool | None = None
    rows_corrected: int | None = None
    rows_uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    num_links: int | None = None
    links_up: int | None = None
    power_limit_w: float | None = None
    driver_bytes: int | None = None
    parent: str | None = None
    mig: bool = False
    unified: bool = False
    host_bytes: int | None = None
    simulated: bool = False
    state: str = "ok"
    lost_at: float | None = None
    why: str | None = None
    states: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    age_s: float | None = 0.0

    def availability(self, held_by: str | None = None) -> Availability:
        """What decides whether a run may take it; `held_by` is the run that holds its lease now."""
        return Availability(
            is_lost=self.state != "ok",
            is_twin=has_place(self.uuid),
            is_split=self.mig,
            is_simulated=self.simulated,
            is_instance=self.parent is not None,
            held_by=held_by,
            used_bytes=self.used_bytes,
            users=tuple((process.kind, process.used_bytes) for process in self.processes),
        )

    @property
    def hidden_bytes(self) -> int | None:
        """What is in use by nobody that the driver names; see availability.py."""
        return self.availability().hidden_bytes

    def as_json(self) -> dict[str, Any]:
        """The row of `rankdeck devices --json`."""
        return asdict(self) | {"kind": "gpu", "slowed_by": self.slowed_by}

    @property
    def slowed_by(self) -> list[str]:
        """What lowers the clocks, in words."""
        return throttle_words(self.throttle or 0)


_FACTS = {field.name for field in fields(GpuStatus)} & set(Device.__struct_fields__)
"""What a device's status takes over from its listing as it is."""


@dataclass(frozen=True)
class Listing:
    """`notices` are what happened while the driver was asked: a lost GPU, a crash, a slow call."""

    gpus: list[GpuStatus]
    notices: list[NoticeLine]
    driver: str | None = None
    simulated: bool = False


def list_gpus() -> list[GpuStatus]:
    """Every GPU of the machine, in nvidia-smi's order; empty when the driver knows none.

    Raises:
        MachineError: there is no driver, or it does not answer.
    """
    return ask_once().gpus


def ask_once(patience_s: float = PATIENCE_S, *, pcie: bool = False) -> Listing:
    """All GPUs with all readings, PCIe on request. A device that crashes the library, or does not come back,
    is lost; the others are asked again.

    Raises:
        MachineError: there is no driver, or it does not answer at all.
    """
    registry = DeviceRegistry()
    hangs_after_s = min(HANGS_AFTER_S, patience_s / 4)
    sampler = SamplerProcess(
        ["--once", *(["--pcie"] if pcie else [])],
        piped=True,
        hangs_after_s=hangs_after_s,
        first_pause_s=_PAUSE_S,
    )
    end_s = time.monotonic() + patience_s
    try:
        while sampler.exit_code is None and time.monotonic() < end_s:
            for line in [*sampler.wait_for_lines(min(0.5, patience_s)), *sampler.poll()]:
                registry.feed(line, time.monotonic())
                if isinstance(line, NoticeLine) and line.code == "restarted":
                    end_s += hangs_after_s
    finally:
        sampler.stop(grace_s=0.1)
    if registry.listed is None:
        raise _no_answer(registry.notices, patience_s)
    now_s = time.monotonic()
    gpus = [gpu_of(device, registry, now_s, keeps=True) for device in registry.devices]
    return Listing(gpus, registry.notices, registry.listed.driver, registry.listed.simulated)


def _no_answer(notices: list[NoticeLine], patience_s: float) -> MachineError:
    for notice in notices:
        if notice.code in ("no-driver", "driver", "restarted"):
            code = "driver" if notice.code == "restarted" else notice.code
            advice = None if notice.advice is None else notice.phrase_of(notice.advice)
            return MachineError(notice.phrase_of(notice.message), code=code, advice=advice)
    return MachineError(
        phrase("NVIDIA's driver has not answered for {seconds:.0f} s.", seconds=patience_s),
        code="driver",
        advice=phrase("Try nvidia-smi."),
    )


def gpu_of(device: Device, registry: DeviceRegistry, now_s: float, *, keeps: bool = False) -> GpuStatus:
    """A device as the registry knows it. `keeps`: what one slow listing read is not called stale."""
    readings = {name: registry.reading(device.uuid, name, now_s) for name in METRICS}
    if keeps and device.lost_at is None:
        readings = {
            name: msgspec.structs.replace(reading, state="value") if reading.state == "stale" else reading
            for name, reading in readings.items()
        }
    values: dict[str, Any] = {name: r.value if r.state == "value" else None for name, r in readings.items()}
    ages = [reading.age_s for reading in readings.values() if reading.value is not None]
    on_it = registry.processes(device.uuid)
    states: dict[str, str] = {
        name: reading.state
        for name, reading in readings.items()
        if reading.state != "value" and not (METRICS[name].on_request and reading.detail == NOT_READ)
    }
    if on_it.processes is None:
        states["processes"] = on_it.state
    facts: dict[str, Any] = {name: getattr(device, name) for name in _FACTS}
    return GpuStatus(
        processes=[
            GpuProcess(
                item.pid,
                item.name,
                item.used_bytes,
                item.type,
                item.foreign,
                item.user,
                item.command,
                item.host_bytes,
            )
            for item in on_it.processes or []
        ],
        state="ok" if device.lost_at is None else "lost",
        states=states,
        run=on_it.run,
        age_s=max(ages, default=None),
        **facts,
        **values,
    )
