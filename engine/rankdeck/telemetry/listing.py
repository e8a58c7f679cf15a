"""List the GPUs of this machine once, for `rankdeck devices` and for the choice of a run's devices.

A short-lived sampler process queries the driver, so that the calling process loses only the readings if the
driver's library crashes or hangs.
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

LISTING_TIMEOUT_S = 20.0
"""Time limit for querying every GPU once; each GPU that hangs extends the limit."""
HANG_TIMEOUT_S = 5.0
_RESTART_PAUSE_S = 0.1


@dataclass(frozen=True)
class GpuListing:
    """The listed GPUs. `notices`: events during the query, such as a lost GPU, a crash or a slow call."""

    gpus: list[GpuStatus]
    notices: list[NoticeLine]
    driver: str | None = None
    simulated: bool = False


def list_gpus() -> list[GpuStatus]:
    """Return all GPUs of the machine in nvidia-smi's order; empty if the driver finds none.

    Raises:
        MachineError: there is no driver, or it does not answer.
    """
    return query_gpus().gpus


def query_gpus(timeout_s: float = LISTING_TIMEOUT_S, *, pcie: bool = False) -> GpuListing:
    """Return all GPUs with all readings, including PCIe metrics if `pcie` is set.

    A device that crashes the library or does not respond is reported as lost; all others are queried again.

    Raises:
        MachineError: there is no driver, or it does not answer at all.
    """
    registry = DeviceRegistry()
    hangs_after_s = min(HANG_TIMEOUT_S, timeout_s / 4)
    sampler = SamplerProcess(
        ["--once", *(["--pcie"] if pcie else [])],
        piped=True,
        hang_timeout_s=hangs_after_s,
        first_pause_s=_RESTART_PAUSE_S,
    )
    end_s = time.monotonic() + timeout_s
    try:
        while sampler.exit_code is None and time.monotonic() < end_s:
            for line in [*sampler.wait_for_lines(min(0.5, timeout_s)), *sampler.poll()]:
                registry.feed(line, time.monotonic())
                if isinstance(line, NoticeLine) and line.code == "restarted":
                    # Time lost on one hanging GPU must not be missing for the others.
                    end_s += hangs_after_s
    finally:
        sampler.stop(grace_s=0.1)
    if registry.devices_line is None:
        raise _no_answer_error(registry.notices, timeout_s)
    gpus = registry.gpus(time.monotonic(), keep_stale=True)
    return GpuListing(gpus, registry.notices, registry.devices_line.driver, registry.devices_line.simulated)


def _no_answer_error(notices: list[NoticeLine], patience_s: float) -> MachineError:
    for notice in notices:
        if notice.code in ("no-driver", "driver", "restarted"):
            code = "driver" if notice.code == "restarted" else notice.code
            advice = None if notice.advice is None else notice.phrase_of(notice.advice)
            return MachineError(notice.phrase_of(notice.message), code=code, advice=advice)
    return MachineError(
        phrase("NVIDIA's driver has not answered for {seconds:.0f} s.", seconds=patience_s),
        code="driver",
        advice=phrase("Check whether nvidia-smi responds."),
    )
