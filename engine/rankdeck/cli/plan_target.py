"""Resolve `--devices` and `--capacity` to a plan's target: GPU models, existing GPUs, or virtual devices."""

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
    """Return the devices to plan for; if `devices` is None, those of the configuration.

    Raises:
        ConfigError: the capacity is not a size.
        DeviceError: the device selection is malformed, or a selected GPU is missing or unusable.
        MachineError: GPUs are requested, but a machine has no driver or does not answer.
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
            phrase("The value of --capacity is not valid: {why}.", why=error.args[0]),
            code="wrong-value",
            path="rehearsal.capacity",
            advice=phrase("Write a size, as in 24GiB."),
        ) from None
    sized = tuple(replace(device, total_bytes=total_bytes) for device in target.devices)
    target_name = phrase("{devices} ({capacity} per device)", devices=target.name, capacity=capacity)
    return replace(target, name=target_name, devices=sized)


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
    # The same choice as `auto` makes at launch: free GPUs, else two virtual devices.
    free = free_gpus()
    return _gpu_target(free) if free else _rehearsal_target(config, 2)


def _multi_host_target(config: RunConfig) -> Target:
    """Return the devices of all hosts of a run, in their current state, as one target."""
    uses = {name: config.hosts.devices.get(name, config.devices.use) for name in config.hosts.use}
    # Hosts with virtual devices are not asked: the configuration has their number.
    elsewhere = [
        name for name, use in uses.items() if parse_devices(use).kind != "cpu" and not is_local_host(name)
    ]
    host_gpus = read_host_gpus(elsewhere) if elsewhere else {}
    targets = [
        _host_target(config, name, use, host_gpus[name]) if name in host_gpus else _local_target(config, use)
        for name, use in uses.items()
    ]
    target_name = ", ".join(f"{name}: {target.name}" for name, target in zip(uses, targets, strict=True))
    devices = tuple(device for target in targets for device in target.devices)
    by_host = {name: target.num_devices for name, target in zip(uses, targets, strict=True)}
    return Target(
        target_name, devices, like_cuda=any(target.like_cuda for target in targets), by_host=by_host
    )


def _host_target(
    config: RunConfig, host: str, use: str, gpus_or_error: list[GpuStatus] | MachineError
) -> Target:
    """Build a host's target from the GPUs that the host reports, as `_local_target` does for this machine.

    `use` is the host's device selection. An error in place of the GPUs is raised, unless `use` is auto.
    """
    selection = parse_devices(use)
    gpus = gpus_or_error if isinstance(gpus_or_error, list) else []
    # Before the error is raised: like this machine, a host without a driver rehearses under `auto`.
    if selection.kind == "auto":
        free = [gpu for gpu in gpus if gpu.is_available]
        return _gpu_target(free) if free else _rehearsal_target(config, 2)
    if isinstance(gpus_or_error, MachineError):
        raise gpus_or_error
    try:
        # The host's own CUDA_VISIBLE_DEVICES counts, and not the one in this environment.
        usable = [gpu for gpu in gpus if gpu.is_in_gpu_all]
        return _gpu_target(usable if usable and not selection.gpus else selected_gpus(gpus, selection.gpus))
    except DeviceError as error:
        message = phrase("{host}: {reason}", host=host, reason=error.message)
        raise DeviceError(message, code=error.code, advice=error.advice) from None


def _rehearsal_target(config: RunConfig, count: int) -> Target:
    capacity = config.capacity_bytes
    name = phrase("{count} virtual devices", count=count) if count > 1 else phrase("1 virtual device")
    devices = tuple(TargetDevice(f"Virtual {index}", capacity) for index in range(count))
    return Target(name, devices, like_cuda=False, host_bytes=_free_host_bytes())


def _free_host_bytes() -> int:
    """Return this machine's available memory, or the cgroup's remaining memory if that is less."""
    free = psutil.virtual_memory().available
    group = tightest_limit("memory")
    return free if group is None else min(free, group.remaining)


def _gpu_target(gpus: list[GpuStatus]) -> Target:
    """Return the target for GPUs in their current state; memory already in use counts as unavailable."""
    devices = tuple(TargetDevice.of_gpu(gpu, gpu.used_bytes or 0) for gpu in gpus)
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    state = "in their current state" if len(gpus) > 1 else "in its current state"
    return Target(f"{len(gpus)} x {', '.join(names)} {state}", devices, like_cuda=True)


# The GPUs of other hosts, as `rankdeck devices` reports them there.

_HOSTS_TIMEOUT_S = 30.0


def read_host_gpus(names: Sequence[str]) -> dict[str, list[GpuStatus] | MachineError]:
    """Return each host's GPUs, or the error that explains why they cannot be listed.

    Raises:
        ConfigError: a name is not a valid host name.
        MachineError: a host cannot be reached.
    """
    with RemoteHosts(names, lambda host, text: None) as hosts:
        hosts.connect()
        hosts.raise_errors()
        # Started on all hosts before waiting for any, so that the slowest host alone sets the time.
        commands = [host.start_command(["devices", "--json"]) for host in hosts.all]
        hosts.poll_until(
            lambda: all(ran.exit_code is not None or ran.host.error for ran in commands), _HOSTS_TIMEOUT_S
        )
        hosts.raise_errors()
        return {ran.host.name: _parse_gpus(ran) for ran in commands}


def _parse_gpus(ran: RemoteCommand) -> list[GpuStatus] | MachineError:
    host = ran.host.name
    try:
        if ran.exit_code == 0:
            return parse_gpu_rows(parse_json(bytes(ran.out)))
        problem = ran.result().problems[0]
    except (ValueError, IndexError, msgspec.ValidationError):
        why = phrase("the host did not report its devices")
        return MachineError(phrase("{host}: {reason}", host=host, reason=why), code="no-devices")
    message = phrase("{host}: {reason}", host=host, reason=problem.message)
    return MachineError(message, code=problem.code, advice=problem.advice)
