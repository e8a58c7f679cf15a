"""Which ready run to suggest on this machine: one that shows what the app is for, within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdeck.config.presets import PresetCard
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.state.script_draft import NONE_CHOSEN

REHEARSAL = "cpu:4"


@dataclass(frozen=True)
class Suggestion:
    """A preset, the devices for it, and one sentence for the welcome page."""

    preset: PresetCard
    devices: str
    text: str


def suggest(presets: Sequence[PresetCard], gpus: Sequence[GpuStatus]) -> Suggestion | None:
    """gpt-dp: on the free GPUs where there are two or more, else in rehearsal on four virtual devices. None
    when the presets are not there.
    """
    preset = next((card for card in presets if card.name == "gpt-dp"), None)
    if preset is None:
        return None
    free = [gpu for gpu in gpus if gpu.is_for_auto]
    if len(free) > 1:
        devices = f"gpu:{','.join(str(gpu.index) for gpu in free)}"
        text = tr(
            "{preset} on {num_gpus} GPUs: watch GPU 0 lead while the others idle.",
            preset=tr(preset.title),
            num_gpus=len(free),
        )
        return Suggestion(preset, devices, text)
    text = tr(
        "{preset} in rehearsal on 4 virtual devices: real training on the CPU; watch device 0 lead.",
        preset=tr(preset.title),
    )
    return Suggestion(preset, REHEARSAL, text)


def default_devices(strategy: str, gpus: Sequence[GpuStatus]) -> str:
    """What a configuration that names no devices runs on, when it is opened in the app: GPUs where there are
    any. Where `auto` would take none of them, those that nobody uses are chosen, and the form says why they
    cannot be used.
    """
    if any(gpu.is_for_auto for gpu in gpus):
        return "auto"
    there = [gpu for gpu in gpus if gpu.parent is None and gpu.lost_at is None]
    if there:
        free = [str(gpu.index) for gpu in there if gpu.is_free]
        return f"gpu:{','.join(free)}" if free else NONE_CHOSEN
    return "cpu:1" if strategy == "single" else REHEARSAL
