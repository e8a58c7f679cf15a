"""From `--devices` and `--capacity` to what a plan is for: named GPUs, this machine's own, or a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import psutil

from rankdeck.base.cgroups import tightest_limit
from rankdeck.base.errors import ConfigError, DeviceError, MachineError
from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import phrase
from rankdeck.base.units import parse_bytes
from rankdeck.config import RunConfig
from rankdeck.config.devices import parse_devices
from rankdeck.config.gpu_models import parse_planned_gpus
from rankdeck.launch.device_selection import free_gpus, selected_gpus
from rankdeck.planner.candidates import Target, TargetDevice
from rankdeck.remote.hosts import RemoteCommand, RemoteHosts
from rankdeck.remote.ssh import is_local_host
from rankdeck.telemetry.gpu_status import GpuStatus, parse_gpu_rows
from rankdeck.telemetry.listing import list_gpus


def resolve_target(config: RunConfig, devices: str | None, capacity: str | None) -> Target:
    """What to plan for; `devices` None takes the configuration's.

    Raises:
        ConfigError: the capacity is no size.
        DeviceError: the devices cannot be understood, or are not there.
        MachineError: GPUs are asked for where there is no driver, or of a host that does not answer.
    """
    if devices is None and config.hosts.use:
        target = _multi_host_target(config)
    else:
        target = _local_target(config, devices or config.devices.use)
    if capacity is None:
        return target
    try:
        total_bytes = parse_bytes(capacity)
    except ValueError as error:
        raise ConfigError(
            phrase("--capacity: {why}.", why=error.args[0]),
            code="wrong-value",
            path="rehearsal.capacity",
            advice=phrase("As in 24GiB."),
        ) from None
    sized = tuple(replace(device, total_bytes=total_bytes) for device in target.devices)
    words = phrase("{devices} of {capacity}", devices=target.name, capacity=capacity)
    return replace(target, name=words, devices=sized)


def _local_target(config: RunConfig, text: str) -> Target:
    planned = parse_planned_gpus(text)
    if planned is not None:
        return Target(
            f"{len(planned)} x {planned[0].name}",
            tuple(TargetDevice(model.name, model.total_bytes, 0, model) for model in planned),
            like_cuda=True,
        )
    selection = parse_devices(text)
    if selection.kind == "cpu":
        return _rehearsal_target(config, selection.count or 1)
    if selection.kind == "gpu":
        return _gpu_target(selected_gpus(list_gpus(), selection.gpus))
    free = free_gpus()
    return _gpu_target(free) if free else _rehearsal_target(config, 2)


def _multi_host_target(config: RunConfig) -> Target:
    """What the hosts of a run have together, as they are now."""
    uses = {name: config.hosts.devices.get(name, config.devices.use) for name in config.hosts.use}
    elsewhere = [
        name for name, use in uses.items() if parse_devices(use).kind != "cpu" and not is_local_host(name)
    ]
    found = read_host_gpus(elsewhere) if elsewhere else {}
    parts = [
        _host_target(config, name, use, found[name]) if name in found else _local_target(config, use)
        for name, use in uses.items()
    ]
    words = ", ".join(f"{name}: {part.name}" for name, part in zip(uses, parts, strict=True))
    devices = tuple(device for part in parts for device in part.devices)
    by_host = {name: part.num_devices for name, part in zip(uses, parts, strict=True)}
    return Target(words, devices, like_cuda=any(part.like_cuda for part in parts), by_host=by_host)


def _host_target(config: RunConfig, host: str, use: str, found: list[GpuStatus] | MachineError) -> Target:
    """As `_local_target`, of what a host has told."""
    selection = parse_devices(use)
    gpus = found if isinstance(found, list) else []
    if selection.kind == "auto":
        free = [gpu for gpu in gpus if gpu.is_available]
        return _gpu_target(free) if free else _rehearsal_target(config, 2)
    if isinstance(found, MachineError):
        raise found
    try:
        # What CUDA shows is said by the environment there, and by none here.
        usable = [gpu for gpu in gpus if gpu.is_in_gpu_all]
        return _gpu_target(usable if usable and not selection.gpus else selected_gpus(gpus, selection.gpus))
    except DeviceError as error:
        words = phrase("{host}: {reason}", host=host, reason=error.message)
        raise DeviceError(words, code=error.code, advice=error.advice) from None


def _rehearsal_target(config: RunConfig, count: int) -> Target:
    capacity = config.capacity_bytes
    words = phrase("{count} virtual devices", count=count) if count > 1 else phrase("1 virtual device")
    devices = tuple(TargetDevice(f"Virtual {index}", capacity) for index in range(count))
    return Target(words, devices, like_cuda=False, host_bytes=_free_host_bytes())


def _free_host_bytes() -> int:
    """Memory that this machine, or the container that this is, has left."""
    free = psutil.virtual_memory().available
    group = tightest_limit("memory")
    return free if group is None else min(free, group.remaining)


def _gpu_target(gpus: list[GpuStatus]) -> Target:
    """This machine's GPUs as they are now: what the driver keeps and other processes hold is not there for
    the run."""
    devices = tuple(TargetDevice.of_gpu(gpu, gpu.used_bytes or 0) for gpu in gpus)
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    return Target(f"{len(gpus)} x {', '.join(names)}, as they are now", devices, like_cuda=True)


# The GPUs of other hosts, as `rankdeck devices` tells them there.

_HOSTS_TIMEOUT_S = 30.0


def read_host_gpus(names: Sequence[str]) -> dict[str, list[GpuStatus] | MachineError]:
    """Of each host its GPUs, or why they cannot be told.

    Raises: ConfigError, MachineError: no host can be called so, or one cannot be reached.
    """
    with RemoteHosts(names, lambda host, words: None) as hosts:
        hosts.connect()
        hosts.raise_errors()
        asked = [host.start_command(["devices", "--json"]) for host in hosts.all]
        hosts.poll_until(
            lambda: all(ran.exit_code is not None or ran.host.error for ran in asked), _HOSTS_TIMEOUT_S
        )
        hosts.raise_errors()
        return {ran.host.name: _parse_gpus(ran) for ran in asked}


def _parse_gpus(ran: RemoteCommand) -> list[GpuStatus] | MachineError:
    host = ran.host.name
    try:
        if ran.exit_code == 0:
            return parse_gpu_rows(parse_json(bytes(ran.out)))
        problem = ran.result().problems[0]
    except (ValueError, IndexError, msgspec.ValidationError):
        why = phrase("it did not tell its devices")
        return MachineError(phrase("{host}: {reason}", host=host, reason=why), code="no-devices")
    words = phrase("{host}: {reason}", host=host, reason=problem.message)
    return MachineError(words, code=problem.code, advice=problem.advice)
