"""From what is known of a strategy's step to what its page draws and says: plain functions, no widgets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config.catalog import OptionField, StrategyCard
from rankdeck.run.movement import Timeline
from rankdeck.run.plan_lines import PlanLine
from rankdeck_app.language import tr
from rankdeck_app.state.plan_words import device_label, step_text, target_text
from rankdeck_app.state.step_movement import Options, StepMovement
from rankdeck_app.widgets.form import shown
from rankdeck_app.widgets.phase_colors import BUBBLE, IDLE, phase_label
from rankdeck_app.widgets.step_layout import StepFigure

HINT = marked("Point at a block or an arrow, or Tab to the drawing and walk with the arrow keys.")


def said_of(field: OptionField) -> str:
    """What an option does, its default if it has one, and what can be chosen."""
    default = shown(field.default)
    parts = (
        tr(field.text),
        tr("Default: {value}.", value=default) if default else "",
        tr("Choices: {values}.", values=", ".join(map(shown, field.choices))) if field.choices else "",
    )
    return " ".join(filter(None, parts))


def variant_label(variant: Options) -> str:
    """'sync = ring'; what is configured has no options of its own."""
    settings = itertools.starmap(format_setting, variant.items())
    return ", ".join(settings) or tr("as configured")


def figure(step: StepMovement, card: StrategyCard) -> StepFigure:
    """The step, or why there is none."""
    if step.line is None or step.timeline is None:
        return StepFigure(absence=_absence(step, card), is_awaited=step.is_asking)
    formula = tr("{strategy} sends: {what}", strategy=tr(card.title), what=tr(card.sends))
    has_bubble = step.timeline.is_pipeline and not step.overlaps
    return StepFigure(
        labels(step.line, step.timeline), step.timeline, formula, gap=BUBBLE if has_bubble else IDLE
    )


def _absence(step: StepMovement, card: StrategyCard) -> str:
    if step.is_asking:
        return tr("Working out a step under {strategy}…", strategy=tr(card.title))
    return "" if step.problem else tr("Not drawn yet")


def labels(line: PlanLine, timeline: Timeline) -> tuple[str, ...]:
    names = {device.device: device_label(device) for device in line.devices}
    return tuple(
        names.get(place, tr("Device {place}", place=place)) for place in range(len(timeline.intervals))
    )


def subtitle(step: StepMovement) -> tuple[str, ...]:
    """What moves in all, as `rankdeck plan --movement` says it, for which devices, and how long a step is
    predicted to take where that is known."""
    if step.line is None or step.timeline is None:
        return ("",)
    target = tr("for {devices}", devices=target_text(step.line))
    moves = tr("moves {what}", what=_moved(step.timeline))
    time = () if step.line.step is None else (tr("{time} a step", time=step_text(step.line.step)),)
    whole = " · ".join([target, moves, *time])
    return whole, f"{target} · {moves}", moves, target


def _moved(timeline: Timeline) -> str:
    """'all-gather 14.1 MiB in 9, reduce-scatter 11.1 MiB in 5': of all devices together."""
    moved = [
        tr(
            "{what} {size} in {count}",
            what=phase_label(name),
            size=format_bytes(moves.num_bytes),
            count=moves.count,
        )
        for name, moves in timeline.moves().items()
    ]
    return ", ".join(moved) or tr("nothing")


def lengths(step: StepMovement) -> str:
    """What lengths mean, and what is left out."""
    if step.timeline is None:
        return ""
    if step.timeline.is_pipeline:
        words = tr(
            "Predicted: the order is that of the engine's own step. Blocks are as long as their operations, "
            "and what moves has no length; lengths are no times."
        )
    else:
        words = tr(
            "Predicted: the order is that of the engine's own step. Blocks are as long as their operations, "
            "what moves as long as its bytes; lengths are no times."
        )
    overlap = tr("Steps overlap: what a device takes was sent to it a step before.")
    rest = tr("A device waits for what this step does not send, so the rest of its step is left out.")
    return " ".join([words, *[overlap] * step.overlaps, *[rest] * (not step.timeline.is_whole)])


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
