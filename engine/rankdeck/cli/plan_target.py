"""From `--devices` and `--capacity` to what a plan is for: named GPUs, this machine's own, or a rehearsal."""

from __future__ import annotations

from dataclasses import replace

import psutil

from rankdeck.base.cgroups import tightest
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.base.units import parse_bytes
from rankdeck.config import RunConfig
from rankdeck.config.devices import parse_devices
from rankdeck.config.gpu_models import gpu_model, parse_planned
from rankdeck.launch.choose import free_gpus, selected_gpus
from rankdeck.planner.targets import Target, TargetDevice
from rankdeck.telemetry.listing import GpuStatus, list_gpus


def target_of(config: RunConfig, devices: str | None, capacity: str | None) -> Target:
    """What to plan for; `devices` None takes the configuration's.

    Raises:
        ConfigError: the capacity is no size.
        DeviceError: the devices cannot be understood, or are not there.
        MachineError: this machine's GPUs are asked for, and there is no driver.
    """
    target = _target(config, devices or config.devices.use)
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
    words = phrase("{devices} of {capacity}", devices=target.words, capacity=capacity)
    return replace(target, words=words, devices=sized)


def _target(config: RunConfig, text: str) -> Target:
    planned = parse_planned(text)
    if planned is not None:
        return Target(
            f"{len(planned)} x {planned[0].name}",
            tuple(TargetDevice(model.name, model.total_bytes, 0, model) for model in planned),
            like_cuda=True,
        )
    selection = parse_devices(text)
    if selection.kind == "cpu":
        return _rehearsal(config, selection.count or 1)
    if selection.kind == "gpu":
        return _own(selected_gpus(list_gpus(), selection.gpus))
    free = free_gpus()
    return _own(free) if free else _rehearsal(config, 2)


def _rehearsal(config: RunConfig, count: int) -> Target:
    capacity = config.capacity_bytes
    words = phrase("{count} virtual devices", count=count) if count > 1 else phrase("1 virtual device")
    devices = tuple(TargetDevice(f"Virtual {index}", capacity) for index in range(count))
    return Target(words, devices, like_cuda=False, host_bytes=_free_host_bytes())


def _free_host_bytes() -> int:
    """Memory that this machine, or the container that this is, has left."""
    free = psutil.virtual_memory().available
    group = tightest("memory")
    return free if group is None else min(free, group.left)


def _own(gpus: list[GpuStatus]) -> Target:
    """This machine's GPUs as they are now: what other processes hold is not there for the run."""
    devices = tuple(
        TargetDevice(gpu.name, gpu.total_bytes, gpu.used_bytes or 0, gpu_model(gpu.name, gpu.total_bytes))
        for gpu in gpus
    )
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    return Target(f"{len(gpus)} x {', '.join(names)}, as they are now", devices, like_cuda=True)
