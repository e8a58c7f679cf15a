"""Format plan lines (run/plan_lines.py) for the footer, the rows of strategies and the tooltips."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rankdeck.base.errors import DeviceError
from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.devices import parse_devices
from rankdeck.run.plan_lines import (
    AT_MOST,
    CANNOT,
    DOES_NOT_FIT,
    FITS,
    MAY_FIT,
    TIGHT,
    PlanLine,
    PlannedDevice,
    StepTime,
    plan_verdict_text,
    step_time_text,
)
from rankdeck_app.language import tr, translate

_CAPACITY_TEXTS = {
    FITS: (tr_noop("Fits in {capacity}"), tr_noop("Fits in {capacity}, {taken} in use")),
    TIGHT: (tr_noop("Tight fit in {capacity}"), tr_noop("Tight fit in {capacity}, {taken} in use")),
    MAY_FIT: (tr_noop("May fit in {capacity}"), tr_noop("May fit in {capacity}, {taken} in use")),
}
"""Two texts for each verdict: for an unused device, and for a device that other processes partly use."""
_VIRTUAL_PREFIX = "Virtual "


def reason_text(line: PlanLine) -> str:
    return translate(line.reason or "", line.phrases)


def verdict_text(line: PlanLine) -> str:
    return tr(plan_verdict_text(line))


def device_label(device: PlannedDevice) -> str:
    """Return 'Virtual 0' or 'GPU 3', with the device's index on the machine or, if unknown, in the plan."""
    index = device_index(device)
    return tr("Virtual {index}", index=index) if is_virtual(device) else f"GPU {index}"


def is_virtual(device: PlannedDevice) -> bool:
    return (device.name or "").startswith(_VIRTUAL_PREFIX)


def device_index(device: PlannedDevice) -> str:
    """Return the index in the device's name ('3' in 'Virtual 3'), or else the device's index in the plan."""
    index = (device.name or "").removeprefix(_VIRTUAL_PREFIX).split(" ")[0]
    return index if index.isdecimal() else str(device.device)


def target_text(line: PlanLine) -> str:
    """Return the devices that a plan line is for, as text in the window's language."""
    return translate(line.target, line.phrases)


def requested_target_text(use: str) -> str:
    """Return a text such as '4 virtual devices' if `use` requests a number of virtual devices, and otherwise
    `use` itself."""
    try:
        selection = parse_devices(use)
    except DeviceError:
        return use
    if selection.kind != "cpu" or selection.count is None:
        return use
    count = selection.count
    return tr("{count} virtual devices", count=count) if count > 1 else tr("1 virtual device")


def strategy_name(line: PlanLine) -> str:
    card = STRATEGIES.get(line.strategy)
    return line.strategy if card is None else tr(card.title)


def options_text(label: str) -> str:
    """Return the options in a plan line's label: 'schedule = gpipe' for 'pipeline, schedule = gpipe'."""
    return label.partition(", ")[2]


def peak_text(line: PlanLine) -> str:
    fullest = line.fullest_device
    if fullest is None:
        return "–"
    sign = ("≤ " if line.bound == AT_MOST else "≥ ") if line.is_bound else ""
    return f"{sign}{format_bytes(fullest.total_bytes)}"


def free_memory_text(line: PlanLine) -> str:
    """Return how much memory is free or lacking on the fullest device; '' if the capacity is unknown."""
    fullest = line.fullest_device
    room_bytes = None if fullest is None else fullest.room_bytes
    if room_bytes is None:
        return ""
    if room_bytes < 0:
        return tr("{size} short", size=format_bytes(-room_bytes))
    return tr("{size} left", size=format_bytes(room_bytes))


def step_text(step: StepTime | None) -> str:
    return "–" if step is None else translate(step_time_text(step))


def time_text(seconds: float) -> str:
    """Return a measured median step time, such as '1.42 s' or '25.3 ms'."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def has_fit_problem(line: PlanLine) -> bool:
    return line.verdict != FITS


def estimate_texts(line: PlanLine, recommended: PlanLine | None = None) -> tuple[str, str]:
    """Return two lines for the footer: the devices' predicted memory, and whether that fits.

    If `recommended` is not None, the second line also names the recommended strategy, unless the plan line
    `line` is for that strategy and its options.
    """
    fullest = line.fullest_device
    if fullest is None:
        if line.refusal is None:
            return tr("{strategy}: not predicted", strategy=strategy_name(line)), reason_text(line)
        return tr("{strategy} cannot run", strategy=strategy_name(line)), reason_text(line)
    others = [device.total_bytes for device in line.devices if device is not fullest]
    memory_text, of_others = peak_text(line), format_bytes(median(others)) if others else ""
    number, _, unit = memory_text.rpartition(" ")
    if of_others.endswith(f" {unit}"):
        memory_text = number  # show the unit only once
    memory_text = f"{device_label(fullest)} {memory_text}"
    if others:
        memory_text = tr("{device_holds} · others {size}", device_holds=memory_text, size=of_others)
    instead = _recommendation_text(line, recommended)
    if line.verdict == DOES_NOT_FIT and (fullest.room_bytes is None or fullest.room_bytes >= 0):
        return memory_text, " · ".join(filter(None, (tr("Too much for this machine"), instead)))
    if fullest.capacity_bytes is None:
        return memory_text, instead or tr("No capacity set")
    capacity = format_bytes(fullest.capacity_bytes, 0)
    if line.verdict == DOES_NOT_FIT and not instead:
        return memory_text, tr(
            "Does not fit in {capacity}: {room}", capacity=capacity, room=free_memory_text(line)
        )
    return memory_text, " · ".join(filter(None, (_capacity_text(line, fullest, capacity), instead)))


def _capacity_text(line: PlanLine, fullest: PlannedDevice, capacity: str) -> str:
    assert fullest.capacity_bytes is not None
    if line.verdict == DOES_NOT_FIT:
        return tr("Does not fit in {capacity}", capacity=capacity)
    if line.verdict == CANNOT:
        return reason_text(line) or tr("Cannot run")
    alone, beside_others = _CAPACITY_TEXTS[plan_verdict_text(line)]
    if fullest.others_bytes <= 0.01 * fullest.capacity_bytes:
        return tr(alone, capacity=capacity)
    return tr(beside_others, capacity=capacity, taken=format_bytes(fullest.others_bytes))


def _recommendation_text(line: PlanLine, recommended: PlanLine | None) -> str:
    if recommended is None or recommended.label == line.label:
        return ""
    return f"{strategy_name(recommended)}: {peak_text(recommended)}"


@dataclass(frozen=True)
class FixPlan:
    """Predicted memory of a run with a fix; `text` describes the fix.

    `line` is None until the prediction is available; `failure` explains why there will be none.
    """

    text: str
    line: PlanLine | None = None
    failure: str = ""

    def texts(self, fullest_bytes: int) -> tuple[str, ...]:
        """Return versions of the fix's label in the chart, from the longest to the shortest.

        `fullest_bytes` is the largest memory that the chart predicts for a device with the fix; if it is 0,
        that of the plan line is used.
        """
        if self.failure:
            why_not = tr("with {fix}: {why_not}", fix=self.text, why_not=self.failure)
            return why_not, tr("with {fix}: unknown", fix=self.text)
        if self.line is None:
            return tr("with {fix}: planning…", fix=self.text), tr("planning…")
        size = format_bytes(
            fullest_bytes or (self.line.fullest_device.total_bytes if self.line.fullest_device else 0)
        )
        short = tr("with {fix}: {size} predicted", fix=self.text, size=size)
        return self._full_text(size), short, tr("{size} predicted", size=size)

    def _full_text(self, size: str) -> str:
        if self.line is None or not self.line.is_bound:
            return tr("with {fix}: {size} predicted on the fullest device", fix=self.text, size=size)
        if self.line.bound == AT_MOST:
            return tr("with {fix}: at most {size} predicted on the fullest device", fix=self.text, size=size)
        return tr("with {fix}: at least {size} predicted on the fullest device", fix=self.text, size=size)
