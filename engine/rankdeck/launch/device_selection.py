"""Resolve a device selection ("auto", "gpu:0,2", "cpu:4") to the devices of a run.

Users name GPUs by nvidia-smi's index; a run stores UUIDs. A GPU that another run has leased is refused. A GPU
that another program's compute process uses is accepted with a warning. `auto` chooses neither.

The caller's CUDA_VISIBLE_DEVICES limits `auto` and `gpu:all`. A GPU named explicitly is used whatever the
variable says, because users name GPUs by what nvidia-smi shows. Indices in the variable follow CUDA's order,
which is the same as nvidia-smi's only with CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are the same model. As
in CUDA, everything after the first entry that names no GPU is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankdeck.base.errors import DeviceError, MachineError, Problem, did_you_mean, format_choices
from rankdeck.base.files import lease_holder, lease_path
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.events import DeviceInfo, ProcessUse
from rankdeck.telemetry.gpu_status import GpuRefusal, GpuStatus
from rankdeck.telemetry.listing import list_gpus

VISIBLE_DEVICES_ENV = "CUDA_VISIBLE_DEVICES"
_USED_GPU_ADVICE = tr_noop("Expect less free memory and lower speed, or choose another GPU.")
_USED_GPU_TEXTS = {
    (True, True): tr_noop("{gpu} is also used by {process} (pid {pid}), which holds {size} of its memory."),
    (True, False): tr_noop(
        "{gpu} is also used by {process} (pid {pid}), which holds an unknown amount of its memory."
    ),
    (False, True): tr_noop(
        "{gpu} is also used by a process in another namespace (pid {pid}), which holds {size} of its memory."
    ),
    (False, False): tr_noop(
        "{gpu} is also used by a process in another namespace (pid {pid}), which holds an "
        "unknown amount of its memory."
    ),
}
"""Warnings, keyed by whether the process's name is known and whether its memory use is known."""
_SINGLE_TEXTS = (
    tr_noop('The strategy "single" uses only {device}; the other device stays unused.'),
    tr_noop('The strategy "single" uses only {device}; the other {rest} devices stay unused.'),
)
_STAGES_TEXTS = (
    tr_noop("strategy.cuts makes {count} stages, each on one device; the other device stays unused."),
    tr_noop("strategy.cuts makes {count} stages, each on one device; the other {rest} devices stay unused."),
)


@dataclass
class ChosenDevices:
    """A run's devices in the order of their indices in the run, the leases to hold, and warnings."""

    devices: list[DeviceInfo]
    leases: list[Path] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def choose_devices(config: RunConfig) -> ChosenDevices:
    """Return the configured devices that the run will use, with warnings if other programs use them.

    Raises:
        DeviceError, MachineError: as in `resolve_devices`.
    """
    return drop_idle_devices(config, resolve_devices(config))


def resolve_devices(config: RunConfig) -> ChosenDevices:
    """Return all configured devices, with warnings if other programs use them.

    Raises:
        DeviceError: a device does not exist, or another run holds it.
        MachineError: GPUs are named and there is no driver.
    """
    selection = config.selection
    if selection.kind == "cpu":
        return _virtual_devices(config, selection.count or 1)
    if selection.kind == "gpu":
        return _gpu_devices(selected_gpus(list_gpus(), selection.gpus))
    free = free_gpus()
    return _gpu_devices(free) if free else _virtual_devices(config, 2)


def choose_script_devices(config: ScriptConfig) -> ChosenDevices:
    """Return the devices of a user's script.

    Named devices are leased. Without a selection, the devices visible to the script are only monitored; if
    another run has leased one of them, the result has a warning about it.

    Raises:
        DeviceError: a device does not exist, or another run has leased it.
        MachineError: GPUs are named, but there is no driver.
    """
    selection = config.selection
    if selection is None:
        return _visible_script_devices(config.script.ranks, {**os.environ, **config.script.environment})
    if selection.kind == "gpu":
        return _gpu_devices(selected_gpus(list_gpus(), selection.gpus))
    if selection.kind == "auto" and (free := free_gpus()):
        return _gpu_devices(free)
    return _cpu_devices(config.script.ranks)


def _visible_script_devices(num_ranks: int, environment: Mapping[str, str]) -> ChosenDevices:
    warnings: list[Problem] = []
    try:
        visible = visible_gpus(list_gpus(), environment)
        # A GPU without a usable UUID is still listed: the script may use it by its index.
        gpus = [gpu for gpu in visible if not (gpu.simulated or gpu.is_lost or gpu.mig or gpu.parent)]
    except MachineError:
        gpus = []
    except DeviceError as error:
        # CUDA will show the script some GPUs, only which ones is unknown: no reason to refuse it.
        warnings, gpus = [msgspec.structs.replace(error.problem, severity="warning")], []
    if not gpus:
        choice = _cpu_devices(num_ranks)
        choice.warnings.extend(warnings)
        return choice
    choice = ChosenDevices([])
    for index, gpu in enumerate(gpus):
        holder = lease_holder(gpu.uuid)
        if holder:
            busy = busy_error(holder, gpu).problem
            choice.warnings.append(msgspec.structs.replace(busy, severity="warning"))
        _add_gpu(choice, index, gpu)
    # Devices that the user did not name are watched and not leased.
    choice.leases.clear()
    return choice


def _cpu_devices(num_ranks: int) -> ChosenDevices:
    return ChosenDevices([DeviceInfo(index, f"CPU {index}", "virtual") for index in range(num_ranks)])


def busy_error(holder: str, gpu: GpuStatus | None = None) -> DeviceError:
    """Return the error to raise if another run uses `gpu` or, if `gpu` is None, one of the chosen GPUs."""
    run = Path(holder).name
    if gpu is None:
        message = phrase("One of the chosen GPUs is used by the run {run}.", run=run)
    else:
        message = phrase("{gpu} is used by the run {run}.", gpu=_gpu_name(gpu), run=run)
    advice = phrase("Stop it with rankdeck stop {run}, or choose other devices.", run=run)
    return DeviceError(message, code="device-busy", advice=advice)


def _gpu_name(gpu: GpuStatus) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _virtual_devices(config: RunConfig, count: int) -> ChosenDevices:
    capacity = config.capacity_bytes
    return ChosenDevices(
        [DeviceInfo(index, f"Virtual {index}", "virtual", None, capacity) for index in range(count)]
    )


def _gpu_devices(gpus: Sequence[GpuStatus]) -> ChosenDevices:
    choice = ChosenDevices([])
    for index, gpu in enumerate(gpus):
        holder = lease_holder(gpu.uuid)
        if holder:
            raise busy_error(holder, gpu)
        _add_gpu(choice, index, gpu)
    return choice


def _add_gpu(choice: ChosenDevices, index: int, gpu: GpuStatus) -> None:
    choice.warnings.extend(_used_warning(gpu, process) for process in gpu.compute_processes)
    if gpu.unaccounted_bytes is not None:
        choice.warnings.append(_hidden_warning(gpu, gpu.unaccounted_bytes))
    choice.devices.append(DeviceInfo(index, gpu.name, "gpu", gpu.uuid, gpu.total_bytes, gpu.driver_bytes))
    choice.leases.append(lease_path(gpu.uuid))


def free_gpus() -> list[GpuStatus]:
    """Return the GPUs that `auto` chooses: those that are neither in use nor leased. Empty without a
    driver."""
    try:
        gpus = list_gpus()
    except MachineError:
        return []
    there = visible_gpus(gpus, os.environ)
    return [gpu for gpu in there if gpu.is_available and not lease_holder(gpu.uuid)]


def selected_gpus(gpus: list[GpuStatus], names: Sequence[str]) -> list[GpuStatus]:
    """Return the GPUs whose indices or UUIDs are `names`; if `names` is empty, all usable GPUs.

    Raises:
        DeviceError: a name matches no GPU, or no run can use the GPU.
    """
    return _find_gpus(gpus, names) if names else _whole_gpus(gpus)


def _find_gpus(gpus: list[GpuStatus], names: Sequence[str]) -> list[GpuStatus]:
    """Return the GPUs whose indices or UUIDs are `names`."""
    _check_any(gpus)
    by_name = {str(gpu.index): gpu for gpu in gpus if gpu.parent is None} | {gpu.uuid: gpu for gpu in gpus}
    named = []
    for name in names:
        if name not in by_name:
            there = format_choices(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)
            raise DeviceError(
                phrase("There is no GPU {name}.", name=name),
                code="unknown-device",
                advice=did_you_mean(name, [gpu.uuid for gpu in gpus])
                or phrase("This machine has {gpus}.", gpus=there),
            )
        named.append(by_name[name])
    if len({gpu.uuid for gpu in named}) < len(named):
        raise DeviceError(phrase("A GPU is listed twice."), advice=phrase("List each GPU only once."))
    for gpu in named:
        _check_usable(gpu, gpus)
    if len(named) > 1 and any(gpu.parent is not None for gpu in named):
        raise DeviceError(
            phrase("A run can use only one MIG instance: CUDA makes only one visible to a process."),
            advice=phrase("Choose one instance, or whole GPUs."),
        )
    return named


def _whole_gpus(gpus: list[GpuStatus]) -> list[GpuStatus]:
    """Return the usable GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    _check_any(gpus)
    visible = visible_gpus(gpus, os.environ)
    if not visible:
        raise DeviceError(
            plural_phrase(
                tr_noop("{variable}={value} hides the only GPU."),
                tr_noop("{variable}={value} hides all {n} GPUs."),
                len(gpus),
                variable=VISIBLE_DEVICES_ENV,
                value=os.environ.get(VISIBLE_DEVICES_ENV),
            ),
            advice=phrase("Unset it, or choose GPUs with --devices gpu:0."),
        )
    usable = [gpu for gpu in visible if gpu.is_in_gpu_all]
    if not usable:
        _check_usable(visible[0], gpus)
    return usable


def _check_any(gpus: Sequence[GpuStatus]) -> None:
    if not gpus:
        raise DeviceError(phrase("This machine has no GPU."), advice=phrase("Rehearse on CPU: cpu:2."))


def _check_usable(gpu: GpuStatus, gpus: Sequence[GpuStatus]) -> None:
    """Check that a rank can use the GPU.

    Raises:
        DeviceError: no rank can use it.
    """
    refusal = gpu.refusal
    if refusal is GpuRefusal.SIMULATED:
        message = phrase("These GPUs are simulated (RANKDECK_NVML): nothing can run on them.")
        advice = phrase("Unset RANKDECK_NVML, or rehearse on virtual devices: --devices cpu:2.")
    elif refusal is GpuRefusal.LOST:
        message = phrase("{gpu} is lost: the driver can no longer reach it.", gpu=_gpu_name(gpu))
        advice = phrase("Choose another GPU. This one may need a reset, or the machine a reboot.")
    elif refusal is GpuRefusal.DUPLICATE_UUID:
        message = phrase(
            "{gpu} has no unique UUID: the driver reports another GPU's UUID or none, so the "
            "GPUs cannot be distinguished.",
            gpu=_gpu_name(gpu),
        )
        advice = phrase("Choose another GPU. List the reported UUIDs with: nvidia-smi -L")
    elif refusal is GpuRefusal.MIG_ENABLED:
        message = phrase(
            "{gpu} is split into MIG instances and cannot be used as a whole.", gpu=_gpu_name(gpu)
        )
        instances = [instance.uuid for instance in gpus if instance.parent == gpu.uuid]
        if instances:
            advice = phrase(
                "Choose one of its instances: gpu:{instances}.", instances=format_choices(instances)
            )
        else:
            advice = phrase("It has no MIG instance yet; create one first.")
    else:
        return
    raise DeviceError(message, code="device-unusable", advice=advice)


def _used_warning(gpu: GpuStatus, process: ProcessUse) -> Problem:
    size = None if process.used_bytes is None else format_bytes(process.used_bytes)
    message = phrase(
        _USED_GPU_TEXTS[bool(process.name), size is not None],
        gpu=_gpu_name(gpu),
        process=process.name,
        pid=process.pid,
        size=size,
    )
    return Problem("device-used", message, advice=phrase(_USED_GPU_ADVICE), severity="warning")


def _hidden_warning(gpu: GpuStatus, hidden_bytes: int) -> Problem:
    return Problem(
        "device-used",
        phrase(
            "{size} of {gpu} is in use by processes that the driver does not list, most likely "
            "in another container.",
            size=format_bytes(hidden_bytes),
            gpu=_gpu_name(gpu),
        ),
        advice=phrase(_USED_GPU_ADVICE),
        severity="warning",
    )


def drop_idle_devices(config: RunConfig, chosen: ChosenDevices) -> ChosenDevices:
    """Return only the devices that the run will use, with a warning if this leaves out devices that were
    named.

    The strategy `single` uses one device. A one-process pipeline with configured cuts uses one device per
    stage.
    """
    cuts = config.strategy.options.get("cuts")
    if config.strategy_spec.one_device:
        count, message, code, config_path = 1, _SINGLE_TEXTS, "one-device", "strategy.use"
        advice = phrase("Choose ddp or dp to use all devices.")
    elif config.strategy_spec.one_process and cuts:
        count, message, code, config_path = len(cuts) + 1, _STAGES_TEXTS, "fewer-stages", "strategy.cuts"
        advice = phrase("Add one cut for each unused device, or remove strategy.cuts.")
    else:
        return chosen
    rest = len(chosen.devices) - count
    if rest <= 0:
        return chosen
    text = plural_phrase(*message, rest, device=chosen.devices[0].name, count=count, rest=rest)
    warning = Problem(code, text, path=config_path, advice=advice, severity="warning")
    # With `auto` the user has not named the devices that are left out.
    warnings = [] if config.selection.kind == "auto" else [warning]
    return ChosenDevices(chosen.devices[:count], chosen.leases[:count], [*chosen.warnings, *warnings])


def visible_gpus(gpus: Sequence[GpuStatus], environment: Mapping[str, str]) -> list[GpuStatus]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, in its order; all GPUs if it is not set.

    Raises:
        DeviceError: the variable has indices in CUDA's own order, which is unknown here.
    """
    text = environment.get(VISIBLE_DEVICES_ENV)
    if text is None:
        return list(gpus)
    visible: list[GpuStatus] = []
    for entry in (entry.strip() for entry in text.split(",")):
        if entry.isdecimal():
            _check_order(text, gpus, environment)
            matching = [gpu for gpu in gpus if gpu.parent is None and gpu.index == int(entry)]
        else:
            # CUDA accepts an unambiguous prefix of a UUID.
            matching = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        # As in CUDA, an invalid entry ends the list.
        if len(matching) != 1:
            break
        visible.append(matching[0])
    return visible


def _check_order(text: str, gpus: Sequence[GpuStatus], environment: Mapping[str, str]) -> None:
    models = {gpu.name for gpu in gpus if gpu.parent is None}
    if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise DeviceError(
            phrase(
                "{variable}={value} uses CUDA's own order, which is unknown here because the "
                "GPUs are different models.",
                variable=VISIBLE_DEVICES_ENV,
                value=text,
            ),
            code="visible-devices",
            advice=phrase(
                "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or choose GPUs by their nvidia-smi indices: "
                "--devices gpu:0,1."
            ),
        )
