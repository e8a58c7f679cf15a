"""Which lines of a plan to mark: the cheapest, and what to take and why. Read plan_lines.py before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.plan_lines import AT_MOST, FITS, TIGHT, PlanLine, is_uncertain

EQUALLY_FAST_RATIO = 1.1
"""Predictions whose middles are no further apart than this factor cannot tell which is faster."""
_ONLY_ONE_REASON = (tr_noop("It fits with room."), tr_noop("As far as is known it fits with room."))
"""Why a line is recommended: what is predicted for it is sure, or a bound of which more is not known."""
_SURE_REASON = (
    tr_noop("It fits with room, which is sure of no other."),
    tr_noop("As far as is known it fits with room, which is sure of no other."),
)
_ONLY_FIT_REASON = (
    tr_noop("It fits with room, which no other does."),
    tr_noop("As far as is known it fits with room, which no other does."),
)
_SIMPLEST_REASON = (
    tr_noop("It fits with room, step times are not known, and it is the simplest."),
    tr_noop("As far as is known it fits with room, step times are not known, and it is the simplest."),
)
_SIMPLEST_PARALLEL_REASON = (
    tr_noop(
        "It fits with room, step times are not known, and it is the simplest in which all devices work at "
        "once."
    ),
    tr_noop(
        "As far as is known it fits with room, step times are not known, and it is the simplest in which all "
        "devices work at once."
    ),
)
_FASTEST_REASON = (
    tr_noop("It fits with room, and no other that does is predicted to be faster."),
    tr_noop("As far as is known it fits with room, and no other that does is predicted to be faster."),
)
_SIMPLEST_OF_FASTEST_REASON = (
    tr_noop("It fits with room, and of the fastest that do (within 10 %) it is the simplest."),
    tr_noop(
        "As far as is known it fits with room, and of the fastest that do (within 10 %) it is the simplest."
    ),
)
_Rows = Sequence[tuple[int, PlanLine]]
_LEFT_OUT_REASON = tr_noop("{reason} pipeline-async is left out: it trains something else than one device.")


class PlanMarks(msgspec.Struct, frozen=True):
    """Places of lines in a list: `cheapest` needs the least of its fullest device, `recommended` is what to
    take and `reason` says why in a sentence; None where no line has figures, or nothing fits."""

    cheapest: int | None
    recommended: int | None
    reason: str = ""


def mark_lines(lines: Iterable[PlanLine]) -> PlanMarks:
    """Which of the lines to mark; lines of advice are left out.

    Of those that fit with room the fastest by the prediction, and of equally fast ones the simplest. Where
    times are not known, the simplest in which all devices work at once. Where memory is tight under all that
    fit, the one that needs the least. What only may fit (a bound) is taken where nothing is sure to, what
    trains otherwise where nothing else was asked for. The reason holds for the rows as they are shown.
    """
    asked = [(place, line) for place, line in enumerate(lines) if not line.changes]
    known = [(place, line) for place, line in asked if line.devices and line.strategy in STRATEGIES]
    cheapest = min(known, key=lambda item: _needed_bytes(item[1]))[0] if known else None
    exact = [item for item in asked if not has_stale_weights(item[1])] or asked
    marks = _mark_lines(cheapest, exact, [item for item in known if item in exact])
    if not marks.reason or all(item in exact for item in known):
        return marks
    return msgspec.structs.replace(marks, reason=phrase(_LEFT_OUT_REASON, reason=marks.reason))


def has_stale_weights(line: PlanLine) -> bool:
    """Whether a run of it ends with other weights than one device by design."""
    return line.strategy in STRATEGIES and STRATEGIES[line.strategy].is_stale


def _mark_lines(cheapest: int | None, asked: _Rows, known: _Rows) -> PlanMarks:
    sure = [item for item in known if item[1].verdict == FITS and not is_uncertain(item[1])]
    fits = sure or [item for item in known if item[1].verdict == FITS]
    if not fits:
        tight = [item for item in known if item[1].verdict == TIGHT]
        return _smallest_of_tight(cheapest, tight) if tight else PlanMarks(cheapest, None)
    if len(fits) == 1:
        ((place, line),) = fits
        may_fit = any(is_uncertain(other) for _, other in asked if other is not line)
        why = _ONLY_ONE_REASON if len(asked) == 1 else _SURE_REASON if may_fit else _ONLY_FIT_REASON
        return PlanMarks(cheapest, place, _reason_text(line, why))
    timed = [(place, line, line.step.middle_s) for place, line in fits if line.step is not None]
    if not timed:
        # One device after another is as slow as one alone.
        place, line = min(
            fits, key=lambda item: (STRATEGIES[item[1].strategy].planning.is_sequential, *complexity(item[1]))
        )
        why = _SIMPLEST_PARALLEL_REASON if len(line.devices) > 1 else _SIMPLEST_REASON
        return PlanMarks(cheapest, place, _reason_text(line, why))
    fastest_s = min(middle_s for _, _, middle_s in timed)
    close = [(place, line) for place, line, middle_s in timed if middle_s <= EQUALLY_FAST_RATIO * fastest_s]
    place, line = min(close, key=lambda item: complexity(item[1]))
    return PlanMarks(
        cheapest,
        place,
        _reason_text(line, _FASTEST_REASON if len(close) == 1 else _SIMPLEST_OF_FASTEST_REASON),
    )


def _reason_text(line: PlanLine, why: tuple[str, str]) -> str:
    return phrase(why[line.is_bound and line.bound != AT_MOST])


def _smallest_of_tight(cheapest: int | None, tight: _Rows) -> PlanMarks:
    sure = [item for item in tight if not is_uncertain(item[1])]
    place, _ = min(sure or tight, key=lambda item: _needed_bytes(item[1]))
    return PlanMarks(
        cheapest,
        place,
        phrase("Memory is tight under all that fit; this one needs the least.")
        if sure
        else phrase("Memory is tight, and none is sure to fit; this one needs the least."),
    )


def _needed_bytes(line: PlanLine) -> int:
    """What is shown of a line: the bytes of its fullest device."""
    assert line.fullest_device is not None
    return line.fullest_device.total_bytes


def complexity(line: PlanLine) -> tuple[int, bool, int]:
    """What sorts lines from the simplest on: options that are set come first; one thread that drives several
    devices is no simplification."""
    options = len(STRATEGIES[line.strategy].non_default_options(line.options))
    drives_several = STRATEGIES[line.strategy].planning.has_one_thread and len(line.devices) > 1
    return options, drives_several, list(STRATEGIES).index(line.strategy)
