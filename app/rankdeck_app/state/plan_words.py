"""A plan in words: what the footer, the rows and the tooltips say of an answer."""

from __future__ import annotations

from statistics import median

from rankdeck.base.units import format_bytes
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.plan_lines import (
    CANNOT,
    DOES_NOT_FIT,
    FITS,
    MOST,
    PlanLine,
    PlannedDevice,
    StepTime,
    step_words,
    words_of,
)


def device_label(device: PlannedDevice) -> str:
    """'Virtual 0'; 'GPU 3' of this machine's own, whose names begin with their index; else by place."""
    name = device.name or ""
    if name.startswith("Virtual "):
        return name
    index = name.split(" ")[0]
    return f"GPU {index if index.isdecimal() else device.device}"


def strategy_name(line: PlanLine) -> str:
    card = STRATEGIES.get(line.strategy)
    return line.strategy if card is None else card.title


def options_text(label: str) -> str:
    """The options in a label: 'schedule = gpipe'."""
    return label.partition(", ")[2]


def peak_text(line: PlanLine) -> str:
    fullest = line.fullest
    if fullest is None:
        return "–"
    sign = ("≤ " if line.bound == MOST else "≥ ") if line.is_bound else ""
    return f"{sign}{format_bytes(fullest.total_bytes)}"


def room_text(line: PlanLine) -> str:
    """What is left on the fullest device, or lacks; '' where no capacity is known."""
    fullest = line.fullest
    room_bytes = None if fullest is None else fullest.room_bytes
    if room_bytes is None:
        return ""
    return f"lacks {format_bytes(-room_bytes)}" if room_bytes < 0 else f"{format_bytes(room_bytes)} left"


def step_text(step: StepTime | None) -> str:
    return "–" if step is None else step_words(step)


def time_text(seconds: float) -> str:
    """'1.42 s', '25.3 ms': a median of steps that were measured."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def is_trouble(line: PlanLine) -> bool:
    return line.verdict != FITS


def estimate(line: PlanLine, recommended: PlanLine | None = None) -> tuple[str, str]:
    """Two lines for the footer: what the devices would hold, and whether that fits.

    With all strategies known the second one names the recommended one, where it is another.
    """
    fullest = line.fullest
    if fullest is None:
        return f"{strategy_name(line)} cannot run so", line.reason or ""
    others = [device.total_bytes for device in line.devices if device is not fullest]
    holds, of_others = peak_text(line), format_bytes(median(others)) if others else ""
    number, _, unit = holds.rpartition(" ")
    if of_others.endswith(f" {unit}"):
        holds = number  # the unit is said once
    holds = f"{device_label(fullest)} {holds}{f' · others {of_others}' if others else ''}"
    instead = _instead(line, recommended)
    if line.verdict == DOES_NOT_FIT and (fullest.room_bytes is None or fullest.room_bytes >= 0):
        return holds, " · ".join(filter(None, ("Too much for this machine", instead)))
    if fullest.capacity_bytes is None:
        return holds, instead or "No capacity set"
    verdict = _verdict(line, fullest)
    if line.verdict == DOES_NOT_FIT and not instead:
        verdict += f": {room_text(line)}"
    return holds, " · ".join(filter(None, (verdict, instead)))


def _verdict(line: PlanLine, fullest: PlannedDevice) -> str:
    assert fullest.capacity_bytes is not None
    capacity = format_bytes(fullest.capacity_bytes, 0)
    if line.verdict == DOES_NOT_FIT:
        return f"Does not fit in {capacity}"
    if line.verdict == CANNOT:
        return line.reason or "Cannot run so"
    word = words_of(line).capitalize()
    taken = fullest.others_bytes > 0.01 * fullest.capacity_bytes
    return f"{word} in {capacity}{f', {format_bytes(fullest.others_bytes)} taken' if taken else ''}"


def _instead(line: PlanLine, recommended: PlanLine | None) -> str:
    if recommended is None or recommended.label == line.label:
        return ""
    return f"{strategy_name(recommended)}: {peak_text(recommended)}"
