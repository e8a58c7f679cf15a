"""From what is known of a strategy's step to what its page draws and says: plain functions, no widgets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rankdeck.base.units import format_setting
from rankdeck.config.catalog import OptionField, StrategyCard
from rankdeck.run.movement import Timeline
from rankdeck.run.plan_lines import PlanLine, step_words
from rankdeck_app.state.plan_words import device_label
from rankdeck_app.state.step_movement import Options, StepMovement
from rankdeck_app.widgets.form import shown
from rankdeck_app.widgets.phase_colors import BUBBLE, IDLE
from rankdeck_app.widgets.step_layout import StepFigure

HINT = "Point at a block or an arrow, or Tab to the drawing and walk with the arrow keys."
_LENGTHS = (
    "Predicted: the order is that of the engine's own step. Blocks are as long as their operations, {}; "
    "lengths are no times."
)
_OF_BYTES, _OF_ORDER = "what moves as long as its bytes", "and what moves has no length"


def said_of(field: OptionField) -> str:
    """What an option does, its default if it has one, and what can be chosen."""
    default = shown(field.default)
    parts = (
        field.text,
        f"Default: {default}." if default else "",
        f"Choices: {', '.join(map(shown, field.choices))}." if field.choices else "",
    )
    return " ".join(filter(None, parts))


def variant_label(variant: Options) -> str:
    """'sync = ring'; what is configured has no options of its own."""
    settings = itertools.starmap(format_setting, variant.items())
    return ", ".join(settings) or "as configured"


def figure(step: StepMovement, card: StrategyCard) -> StepFigure:
    """The step, or why there is none."""
    if step.line is None or step.timeline is None:
        return StepFigure(absence=_absence(step, card))
    formula = f"{card.title} sends: {card.sends}"
    has_bubble = step.timeline.is_pipeline and not step.overlaps
    return StepFigure(
        labels(step.line, step.timeline), step.timeline, formula, gap=BUBBLE if has_bubble else IDLE
    )


def _absence(step: StepMovement, card: StrategyCard) -> str:
    if step.is_asking:
        return f"Working out a step under {card.title}…"
    return "" if step.problem else "Not drawn yet"


def labels(line: PlanLine, timeline: Timeline) -> tuple[str, ...]:
    names = {device.device: device_label(device) for device in line.devices}
    return tuple(names.get(place, f"Device {place}") for place in range(len(timeline.intervals)))


def subtitle(step: StepMovement) -> tuple[str, ...]:
    """What moves in all, as `rankdeck plan --movement` says it, for which devices, and how long a step is
    predicted to take where that is known."""
    if step.line is None or step.timeline is None:
        return ("",)
    target, moves = f"for {step.line.target}", f"moves {step.timeline.in_words()}"
    time = () if step.line.step is None else (f"{step_words(step.line.step)} a step",)
    whole = " · ".join([target, moves, *time])
    return whole, f"{target} · {moves}", moves, target


def lengths(step: StepMovement) -> str:
    """What lengths mean, and what is left out."""
    if step.timeline is None:
        return ""
    words = _LENGTHS.format(_OF_ORDER if step.timeline.is_pipeline else _OF_BYTES)
    if step.overlaps:
        words += " Steps overlap: what a device takes was sent to it a step before."
    if not step.timeline.is_whole:
        words += " A device waits for what this step does not send, so the rest of its step is left out."
    return words


def csv_rows(step: StepMovement) -> Iterator[Sequence[object]]:
    """One row per block and per transfer; begin and end are shares of the step as it is drawn."""
    yield (
        "device", "what", "begin", "end", "operations", "stage", "microbatch", "bytes", "from", "to", "among",
    )  # fmt: skip
    if step.line is None or step.timeline is None:
        return
    names = labels(step.line, step.timeline)
    for name, row in zip(names, step.timeline.intervals, strict=True):
        for one in row:
            part = one.part
            times = (f"{one.start:.6f}", f"{one.end:.6f}")
            yield (name, part.name, *times, part.flops, part.stage, part.microbatch, None, None, None, None)
    for line in step.timeline.lines:
        source = None if line.source is None else names[line.source]
        target = None if line.target is None else names[line.target]
        group = ", ".join(names[member] for member in line.group)
        times = (f"{line.left:.6f}", f"{line.at:.6f}")
        yield (None, line.name, *times, None, None, None, line.num_bytes, source, target, group)
