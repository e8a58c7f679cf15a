"""Devices chosen for the next run: those of the configuration, or those of the script if Launch would start
the script.

The configuration and the script share one set of device cards, which read and write this model. In a run of
several hosts, each host has its own choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import DeviceError, Problem
from rankdeck.config.devices import parse_devices
from rankdeck.telemetry.gpu_status import GpuRefusal, GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.script_draft import NO_DEVICES_CHOSEN, ScriptDraft

DEVICES_PATH = ("devices", "use")
HOSTS_PATH = ("hosts", "use")
REHEARSAL_DEVICES = "cpu:4"


def devices_path(host: str) -> tuple[str, ...]:
    """Return the configuration key for a host's devices, or, if `host` is empty, for the devices of all
    hosts."""
    return ("hosts", "devices", host) if host else DEVICES_PATH


class DeviceChoice(QObject):
    """The chosen devices of one host, or of all hosts that have no choice of their own.

    `use` has the syntax of config/devices.py.
    """

    changed = Signal()

    def __init__(
        self, draft: Draft, script: ScriptDraft, parent: QObject | None = None, *, host: str = ""
    ) -> None:
        super().__init__(parent)
        self._draft, self._script, self.host = draft, script, host
        draft.changed.connect(self.changed)
        script.changed.connect(self.changed)

    def for_host(self, host: str, parent: QObject) -> DeviceChoice:
        return DeviceChoice(self._draft, self._script, parent, host=host)

    @property
    def is_for_script(self) -> bool:
        return self._script.is_chosen and not self.host

    @property
    def hosts(self) -> list[str]:
        """The configuration's hosts without duplicates; empty for a local run or a script."""
        named = [] if self._script.is_chosen else self._draft.value(HOSTS_PATH)
        return list(dict.fromkeys(filter(None, map(str, named)))) if isinstance(named, list) else []

    @property
    def use(self) -> object:
        """The chosen devices, or None. A configuration can contain a value of any type, so this might not be
        a string."""
        return self._script.form.devices if self.is_for_script else self.get_use(self.host)

    def get_use(self, host: str) -> object:
        """Return the devices that the configuration sets for this host, or else for all hosts."""
        host_use = self._draft.value(devices_path(host)) if host else None
        return host_use if host_use is not None else self._draft.value(DEVICES_PATH)

    def set_use(self, use: str) -> None:
        if self.is_for_script:
            self._script.set_fields(devices=use)
        else:
            # A host gets no value of its own if it equals the value for all hosts.
            is_of_all = bool(self.host) and use == self._draft.value(DEVICES_PATH)
            self._draft.set_value(devices_path(self.host), None if is_of_all else use)


def default_devices(strategy: str, gpus: Sequence[GpuStatus]) -> str:
    """Return the default devices for a configuration that is opened in the app and names no devices.

    GPUs are preferred. If there are GPUs but `auto` would use none of them, the free GPUs are chosen, and the
    form shows why a run cannot use them.
    """
    if any(gpu.is_available for gpu in gpus):
        return "auto"
    there = [gpu for gpu in gpus if gpu.parent is None and gpu.lost_at is None]
    if there:
        free = [str(gpu.index) for gpu in there if gpu.is_free]
        return f"gpu:{','.join(free)}" if free else NO_DEVICES_CHOSEN
    return "cpu:1" if strategy == "single" else REHEARSAL_DEVICES


# Check the requested GPUs before anything starts, by the engine's own rules.


def find_gpu_problem(use: object, gpus: Gpus, *, can_rehearse: bool = True) -> Problem | None:
    """Return why a host cannot provide the GPUs requested by `use`; None if it can, or if its GPUs have not
    been listed yet.

    If the host has no GPUs, the advice suggests a rehearsal if `can_rehearse` is True, and otherwise a run
    without GPUs.
    """
    try:
        # An invalid selection is not reported here, because the validation of the draft or the script reports
        # it.
        selection = parse_devices(str(use or "auto"))
    except DeviceError:
        return None
    if selection.kind != "gpu" or not gpus.is_known:
        return None
    if not gpus.devices:
        advice = tr('Set Devices to "Rehearsal".') if can_rehearse else tr('Set Devices to "No GPUs".')
        return Problem("no-gpu", f"{gpus.reason}.", path="devices.use", advice=advice)
    named = {str(gpu.index): gpu for gpu in gpus.physical_gpus} | {gpu.uuid: gpu for gpu in gpus.devices}
    missing = [name for name in selection.gpus if name not in named]
    if missing:
        there = ", ".join(str(gpu.index) for gpu in gpus.physical_gpus)
        message, advice = (
            tr("There is no GPU {gpu}.", gpu=missing[0]),
            tr("Available GPUs: {gpus}.", gpus=there),
        )
        return Problem("no-gpu", message, path="devices.use", advice=advice)
    if selection.gpus:
        return _find_refusal([named[name] for name in selection.gpus])
    # As in the engine, gpu:all means all usable GPUs; without any, the first GPU's refusal is reported.
    return _find_refusal([gpu for gpu in gpus.physical_gpus if gpu.is_in_gpu_all] or gpus.physical_gpus[:1])


def _find_refusal(gpus: Sequence[GpuStatus]) -> Problem | None:
    """Return the problem that would make the engine refuse these GPUs, or None."""
    for gpu in gpus:
        match gpu.refusal:
            case None:
                continue
            case GpuRefusal.SIMULATED:
                message = tr("These GPUs are simulated (RANKDECK_NVML): nothing can run on them.")
                advice = tr('Set Devices to "Rehearsal".')
                return Problem("no-gpu", message, path="devices.use", advice=advice)
            case GpuRefusal.LOST:
                message = tr("{gpu} is lost: it no longer responds.", gpu=gpu.label)
                advice = tr("Choose other GPUs.")
            case GpuRefusal.DUPLICATE_UUID:
                message = tr("{gpu} has no unique UUID, so no run can use it.", gpu=gpu.label)
                advice = tr("Choose other GPUs. To see what the driver reports, run: nvidia-smi -L")
            case GpuRefusal.MIG_ENABLED:
                message = tr("{gpu} is split into MIG instances.", gpu=gpu.label)
                advice = tr("Choose one of its instances.")
            case GpuRefusal.LEASED:
                message = tr("{gpu} is used by the run {run}.", gpu=gpu.label, run=gpu.run_name)
                advice = tr("Stop that run, or choose other GPUs.")
        return Problem("device-busy", message, path="devices.use", advice=advice)
    return None
