"""Check the NVIDIA driver, its GPUs, the processes that use GPU memory, CUDA's device order and peer-to-peer
access.

Telemetry's own sampler takes the readings, in a separate process: a faulty driver may crash or block it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import psutil
import pynvml

from rankdeck.base.errors import MachineError
from rankdeck.base.files import lease_holder, text_or_empty
from rankdeck.base.phrases import COMMA_TEMPLATE, join_phrases, phrase
from rankdeck.base.units import format_bytes, format_duration
from rankdeck.doctor.lines import CheckLine, Verdict, make_row, skipped_rows
from rankdeck.run_dir import RunDir
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.listing import GpuListing, query_gpus
from rankdeck.telemetry.readings import ProcessUse

_PCI_FOLDER = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"
_DEVICE_ORDER, _PCI_BUS_ID = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which a stray comma in pynvml turns into a tuple."""
_GPU_ROWS = ("gpus", "vram", "order", "peers")


def check_gpus(pci: Path = _PCI_FOLDER) -> Iterator[CheckLine]:
    try:
        listing = query_gpus()
    except MachineError as error:
        yield _no_driver_row(error, pci)
        yield from skipped_rows(_GPU_ROWS, phrase("Skipped: no GPU driver responds."))
        return
    evidence = [phrase("NVML: driver {version}", version=listing.driver)]
    if listing.simulated:
        evidence.append(phrase("simulated (RANKDECK_NVML)"))
    yield make_row(
        "driver", Verdict.OK, phrase("Driver {version} responds.", version=listing.driver), *evidence
    )
    if not listing.gpus:
        yield from skipped_rows(_GPU_ROWS, phrase("Skipped: the driver reports no GPUs."))
        return
    yield _gpus_row(listing)
    yield _vram_row(listing.gpus)
    yield _order_row(listing.gpus, os.environ)
    yield _peers_row(listing)


def _no_driver_row(error: MachineError, pci: Path) -> CheckLine:
    """Return the row for a missing driver: skipped if the machine has no NVIDIA card, failed if it has
    one."""
    cards = nvidia_cards(pci)
    evidence = [str(error.message)]
    if cards is None:
        evidence.append(phrase("{folder} cannot be read", folder=pci))
    elif cards:
        evidence.append(
            phrase("NVIDIA cards on the PCI bus: {places}", places=join_phrases(cards, COMMA_TEMPLATE))
        )
    else:
        evidence.append(phrase("no NVIDIA card on the PCI bus ({folder})", folder=pci))
    # With any other code a driver is installed and does not work, whatever the PCI bus shows.
    if error.problem.code != "no-driver":
        return make_row(
            "driver", Verdict.FAILED, error.message, *evidence[1:], fix=error.advice, command="nvidia-smi"
        )
    if not cards:
        return skipped_rows(["driver"], phrase("No NVIDIA driver and no NVIDIA card were found."), *evidence)[
            0
        ]
    finding = phrase("There is an NVIDIA card, but no driver for it.")
    fix = phrase("Install NVIDIA's driver, or start the container with GPUs (docker run --gpus all).")
    return make_row("driver", Verdict.FAILED, finding, *evidence, fix=fix)


def nvidia_cards(pci: Path) -> list[str] | None:
    """Return the PCI addresses of NVIDIA's display and compute devices; None if the bus cannot be read."""
    try:
        devices = sorted(pci.iterdir())
    except OSError:
        return None
    # A card's audio and USB functions have NVIDIA's vendor too, so the device class counts as well.
    return [
        device.name
        for device in devices
        if text_or_empty(device / "vendor") == _NVIDIA_VENDOR
        and text_or_empty(device / "class").startswith(_DISPLAY_CLASS)
    ]


def _gpus_row(listing: GpuListing) -> CheckLine:
    lost = [gpu for gpu in listing.gpus if gpu.is_lost]
    evidence: list[str] = [
        phrase(
            "GPU {index}: {name}, {used} of {total} used",
            index=gpu.index,
            name=gpu.name,
            used=_format_size(gpu.used_bytes),
            total=_format_size(gpu.total_bytes),
        )
        for gpu in listing.gpus
    ]
    evidence += [notice.phrase_of(notice.message) for notice in listing.notices]
    if lost:
        finding = phrase(
            "No response from {gpus}.",
            gpus=join_phrases((f"GPU {gpu.index}" for gpu in lost), COMMA_TEMPLATE),
        )
        fix = phrase("Restart the machine; if this happens again, check the kernel log for Xid errors.")
        return make_row("gpus", Verdict.FAILED, finding, *evidence, fix=fix, command="dmesg | grep -i xid")
    faulty = [gpu for gpu in listing.gpus if gpu.ecc_errors]
    if faulty:
        evidence += [
            phrase("GPU {index}: {count} uncorrected errors", index=gpu.index, count=gpu.ecc_errors)
            for gpu in faulty
        ]
        finding = phrase(
            "Uncorrected memory errors on {gpus}.",
            gpus=join_phrases((f"GPU {gpu.index}" for gpu in faulty), COMMA_TEMPLATE),
        )
        fix = phrase("Reset each affected GPU; if the errors return, have it replaced.")
        return make_row("gpus", Verdict.WARNING, finding, *evidence, fix=fix, command="nvidia-smi -q -d ECC")
    names = join_phrases(dict.fromkeys(gpu.name for gpu in listing.gpus), COMMA_TEMPLATE)
    return make_row(
        "gpus", Verdict.OK, phrase("{count}: {names}.", count=len(listing.gpus), names=names), *evidence
    )


def _vram_row(gpus: Sequence[GpuStatus]) -> CheckLine:
    """Return the row about processes that compute on GPUs and belong to no living run of Rankdeck."""
    evidence, commands = [], []
    for gpu in gpus:
        for process in gpu.compute_processes:
            if _is_of_live_run(process):
                continue
            evidence.append(_format_process(gpu, process))
            # Only what an ended run left behind gets a kill command: any other process may be the user's own
            # work.
            if not process.foreign and _ended_run_of(process.pid) is not None:
                commands.append(f"kill {process.pid}")
        # The memory of a leased GPU belongs to the run that holds the lease, even if the driver does not list
        # its processes.
        if gpu.unaccounted_bytes is not None and lease_holder(gpu.uuid) is None:
            evidence.append(
                phrase(
                    "GPU {index}: {size} is in use, but not by any process that the driver lists (NVML)",
                    index=gpu.index,
                    size=format_bytes(gpu.unaccounted_bytes),
                )
            )
    unknown = [gpu.index for gpu in gpus if "processes" in gpu.states]
    if unknown and not evidence:
        return skipped_rows(["vram"], phrase("The driver does not report which processes use its GPUs."))[0]
    if not evidence:
        return make_row(
            "vram",
            Verdict.OK,
            phrase("No process outside active runs holds VRAM."),
            phrase("NVML: processes of every GPU"),
        )
    finding = phrase("Other processes hold VRAM.")
    fix = phrase("Stop processes left behind by programs that have ended.")
    if commands:
        finding = phrase("Processes left behind by an ended run hold VRAM.")
    return make_row("vram", Verdict.WARNING, finding, *evidence, fix=fix, command="; ".join(commands) or None)


def _format_process(gpu: GpuStatus, process: ProcessUse) -> str:
    facts = {"index": gpu.index, "pid": process.pid, "size": _format_size(process.used_bytes)}
    if process.foreign:
        return phrase("GPU {index}: {size} held by process {pid} outside this container (NVML)", **facts)
    run, age_s = _ended_run_of(process.pid), _age_s(process.pid)
    started = (
        phrase("start time unknown")
        if age_s is None
        else phrase("started {age} ago", age=format_duration(age_s))
    )
    facts |= {"name": process.name, "started": started}
    if run is not None:
        template = (
            "GPU {index}: {size} held by {name} ({pid}, {started}) of {run}, which is over (NVML, /proc)"
        )
        return phrase(template, run=run, **facts)
    if _is_suspended(process.pid):
        return phrase(
            "GPU {index}: {size} held by {name} ({pid}, suspended, {started}) (NVML, /proc)", **facts
        )
    return phrase("GPU {index}: {size} held by {name} ({pid}, {started}) (NVML, /proc)", **facts)


def _run_of(pid: int) -> RunDir | None:
    """Return the run, alive or ended, that a process belongs to; None if no such run is known."""
    try:
        run = psutil.Process(pid).environ().get("RANKDECK_RUN")
    except psutil.Error:
        return None
    # The variable is inherited by everything that a rank starts, and may name a run that has been deleted.
    return RunDir(Path(run)) if run and Path(run, "guard.lock").is_file() else None


def _ended_run_of(pid: int) -> str | None:
    """Return the name of the ended run that left the process `pid` behind; None if there is no such run."""
    run = _run_of(pid)
    return None if run is None or run.is_alive() else run.name


def _is_of_live_run(process: ProcessUse) -> bool:
    run = None if process.foreign else _run_of(process.pid)
    return run is not None and run.is_alive()


def _age_s(pid: int) -> float | None:
    try:
        return time.time() - psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _is_suspended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _order_row(gpus: Sequence[GpuStatus], environment: Mapping[str, str]) -> CheckLine:
    """Return the row about device order: by default, CUDA puts the fastest GPU first, whereas nvidia-smi
    sorts GPUs by PCI bus."""
    # A MIG instance is no further model: its GPU is in the list too.
    models = dict.fromkeys(gpu.name for gpu in gpus if gpu.parent is None)
    device_order = environment.get(_DEVICE_ORDER)
    evidence = [
        f"{_DEVICE_ORDER}={device_order}"
        if device_order is not None
        else phrase("{variable} is not set", variable=_DEVICE_ORDER),
        phrase("GPU models: {names} (NVML)", names=join_phrases(models, COMMA_TEMPLATE)),
    ]
    if len(models) < 2 or device_order == _PCI_BUS_ID:
        return make_row(
            "order", Verdict.OK, phrase("CUDA numbers GPUs in the same order as nvidia-smi."), *evidence
        )
    finding = phrase("CUDA may number the GPUs differently from nvidia-smi: their models differ.")
    fix, command = phrase("Make CUDA number GPUs in PCI bus order."), f"export {_DEVICE_ORDER}={_PCI_BUS_ID}"
    return make_row("order", Verdict.WARNING, finding, *evidence, fix=fix, command=command)


def _peers_row(listing: GpuListing) -> CheckLine:
    gpus = [gpu for gpu in listing.gpus if gpu.parent is None and not gpu.is_lost]
    if len(gpus) < 2:
        return skipped_rows(["peers"], phrase("Skipped: this check needs two GPUs."))[0]
    if listing.simulated:
        return skipped_rows(["peers"], phrase("Skipped: these GPUs are simulated."))[0]
    try:
        # The listing came from another process, so NVML is not initialized in this one.
        pynvml.nvmlInit()
        handles = {gpu.index: pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus}
        apart = [
            (first, other, status)
            for first, other in combinations(handles, 2)
            if (status := _p2p_status(handles[first], handles[other])) != pynvml.NVML_P2P_STATUS_OK
        ]
    except pynvml.NVMLError as error:
        return skipped_rows(
            ["peers"], phrase("The driver does not report peer access: {error}.", error=error)
        )[0]
    num_pairs = len(gpus) * (len(gpus) - 1) // 2
    if not apart:
        finding = phrase("Every GPU can read every other GPU's memory directly.")
        pairs = phrase("nvmlDeviceGetP2PStatus: {count} pairs", count=num_pairs)
        return make_row("peers", Verdict.OK, finding, pairs)
    evidence = [
        phrase(
            "GPU {one} and GPU {other}: {why} (nvmlDeviceGetP2PStatus)",
            one=first,
            other=other,
            why=_p2p_reason(status),
        )
        for first, other, status in apart
    ]
    finding = phrase(
        "{count} of {pairs} GPU pairs communicate through host memory, which is slower.",
        count=len(apart),
        pairs=num_pairs,
    )
    return make_row(
        "peers",
        Verdict.WARNING,
        finding,
        *evidence,
        fix=phrase("Check how the GPUs are connected."),
        command="nvidia-smi topo -m",
    )


def _p2p_status(first: object, other: object) -> int:
    return int(pynvml.nvmlDeviceGetP2PStatus(first, other, _P2P_READ))


def _p2p_reason(status: int) -> str:
    reasons = {
        # The misspelling is NVML's own.
        pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED: phrase("the chipset does not support it"),
        pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: phrase("the GPU does not support it"),
        pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: phrase("the I/O hub topology does not support it"),
        pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: phrase("the driver's settings disable it"),
        pynvml.NVML_P2P_STATUS_NOT_SUPPORTED: phrase("it is not supported"),
    }
    return reasons.get(status, phrase("status {number}", number=status))


def _format_size(num_bytes: int | None) -> str:
    return phrase("an unknown amount") if num_bytes is None else format_bytes(num_bytes)
