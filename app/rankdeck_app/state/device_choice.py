"""Which devices the next run is for: of the configuration, or of the script, whichever Launch would start.

One set of cards serves both, so it reads and writes this and need not know which of the two it is. Over
several hosts each of them has a choice of its own.
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
    """Where a configuration names the devices of a host, or of all."""
    return ("hosts", "devices", host) if host else DEVICES_PATH


class DeviceChoice(QObject):
    """`use` in the words of config/devices.py; of one of the configuration's hosts, or of all that say
    nothing of their own."""

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
        """The hosts of the configuration, once each; none where it is of this one alone, as a script is."""
        named = [] if self._script.is_chosen else self._draft.value(HOSTS_PATH)
        return list(dict.fromkeys(filter(None, map(str, named)))) if isinstance(named, list) else []

    @property
    def use(self) -> object:
        """None where nothing is said; not always text: a configuration can say anything."""
        return self._script.form.devices if self.is_for_script else self.get_use(self.host)

    def get_use(self, host: str) -> object:
        """What the configuration says of a host."""
        own = self._draft.value(devices_path(host)) if host else None
        return own if own is not None else self._draft.value(DEVICES_PATH)

    def set_use(self, use: str) -> None:
        if self.is_for_script:
            self._script.set_fields(devices=use)
        else:
            # What all have is said once.
            is_of_all = bool(self.host) and use == self._draft.value(DEVICES_PATH)
            self._draft.set_value(devices_path(self.host), None if is_of_all else use)


def default_devices(strategy: str, gpus: Sequence[GpuStatus]) -> str:
    """What a configuration that names no devices runs on, when it is opened in the app: GPUs where there are
    any. Where `auto` would take none of them, those that nobody uses are chosen, and the form says why they
    cannot be used.
    """
    if any(gpu.is_available for gpu in gpus):
        return "auto"
    there = [gpu for gpu in gpus if gpu.parent is None and gpu.lost_at is None]
    if there:
        free = [str(gpu.index) for gpu in there if gpu.is_free]
        return f"gpu:{','.join(free)}" if free else NO_DEVICES_CHOSEN
    return "cpu:1" if strategy == "single" else REHEARSAL_DEVICES


# Whether the GPUs that are asked for are there, said before anything starts: what the engine refuses.


def find_gpu_problem(use: object, gpus: Gpus, *, can_rehearse: bool = True) -> Problem | None:
    """Why a host cannot bring the GPUs that `use` asks for; None as well where nobody knows yet. What
    `can_rehearse` can train on virtual devices instead.
    """
    try:
        selection = parse_devices(str(use or "auto"))
    except DeviceError:
        return None
    if selection.kind != "gpu" or not gpus.is_known:
        return None
    if not gpus.devices:
        advice = tr("Switch Devices to Rehearsal.") if can_rehearse else tr("Switch Devices to No GPUs.")
        return Problem("no-gpu", f"{gpus.reason}.", path="devices.use", advice=advice)
    named = {str(gpu.index): gpu for gpu in gpus.physical_gpus} | {gpu.uuid: gpu for gpu in gpus.devices}
    missing = [name for name in selection.gpus if name not in named]
    if missing:
        there = ", ".join(str(gpu.index) for gpu in gpus.physical_gpus)
        message, advice = (
            tr("There is no GPU {gpu}.", gpu=missing[0]),
            tr("There are {gpus}.", gpus=there),
        )
        return Problem("no-gpu", message, path="devices.use", advice=advice)
    if selection.gpus:
        return _find_refusal([named[name] for name in selection.gpus])
    # As the engine does: all that can be used, and where there is none, why the first cannot.
    return _find_refusal([gpu for gpu in gpus.physical_gpus if gpu.is_in_gpu_all] or gpus.physical_gpus[:1])


def _find_refusal(gpus: Sequence[GpuStatus]) -> Problem | None:
    """What the engine would refuse these GPUs for."""
    for gpu in gpus:
        match gpu.refusal:
            case None:
                continue
            case GpuRefusal.SIMULATED:
                message = tr("These GPUs are simulated (RANKDECK_NVML): nothing can run on them.")
                advice = tr("Switch Devices to Rehearsal.")
                return Problem("no-gpu", message, path="devices.use", advice=advice)
            case GpuRefusal.LOST:
                message = tr("{gpu} is lost: it answers no more.", gpu=gpu.label)
                advice = tr("Choose others.")
            case GpuRefusal.DUPLICATE_UUID:
                message = tr("{gpu} has no UUID of its own: no run can take it.", gpu=gpu.label)
                advice = tr("Choose others. See what the driver says of them: nvidia-smi -L")
            case GpuRefusal.MIG_ENABLED:
                message = tr("{gpu} is split into MIG instances.", gpu=gpu.label)
                advice = tr("Choose one of its instances.")
            case GpuRefusal.LEASED:
                message = tr("{gpu} is used by the run {run}.", gpu=gpu.label, run=gpu.run_name)
                advice = tr("Stop that run, or choose other GPUs.")
        return Problem("device-busy", message, path="devices.use", advice=advice)
    return None
