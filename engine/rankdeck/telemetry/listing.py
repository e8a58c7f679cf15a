"""The GPUs of this machine, listed once: for `rankdeck devices` and for the choice of a run's devices.

A sampler of its own asks the driver and ends, so that a library that crashes or hangs costs this process
nothing but the readings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import NoticeLine
from rankdeck.telemetry.registry import DeviceRegistry
from rankdeck.telemetry.sampler_process import SamplerProcess

PATIENCE_S = 20.0
"""How long a driver may take to answer everything once; longer by what is lost on each GPU that hangs."""
HANGS_AFTER_S = 5.0
_PAUSE_S = 0.1


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
    gpus = registry.gpus(time.monotonic(), keeps=True)
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
