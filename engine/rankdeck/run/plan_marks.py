"""Mark lines of a plan: the cheapest line, and the recommended line with the reason. Read plan_lines.py
first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.plan_lines import AT_MOST, FITS, TIGHT, PlanLine, is_uncertain

EQUALLY_FAST_RATIO = 1.1
"""Maximum ratio of two predicted step times (middles of their ranges) that are considered equally fast."""
_ONLY_ONE_REASON = (
    tr_noop("It fits with room to spare."),
    tr_noop("As far as Rankdeck can tell, it fits with room to spare."),
)
"""Reasons for recommending the only candidate: for an exact prediction, and for a mere bound."""
_SURE_REASON = (
    tr_noop("It fits with room to spare, and no other candidate is certain to do so."),
    tr_noop(
        "As far as Rankdeck can tell, it fits with room to spare, and no other candidate is certain to do so."
    ),
)
_ONLY_FIT_REASON = (
    tr_noop("It is the only candidate that fits with room to spare."),
    tr_noop("As far as Rankdeck can tell, it is the only candidate that fits with room to spare."),
)
_SIMPLEST_REASON = (
    tr_noop("It is the simplest candidate that fits with room to spare; step times are unknown."),
    tr_noop(
        "As far as Rankdeck can tell, it is the simplest candidate that fits with room to spare; "
        "step times are unknown."
    ),
)
_SIMPLEST_PARALLEL_REASON = (
    tr_noop(
        "It is the simplest candidate that fits with room to spare and uses all devices at "
        "once; step times are unknown."
    ),
    tr_noop(
        "As far as Rankdeck can tell, it is the simplest candidate that fits with room to "
        "spare and uses all devices at once; step times are unknown."
    ),
)
_FASTEST_REASON = (
    tr_noop("No other candidate that fits with room to spare is predicted to be faster."),
    tr_noop(
        "As far as Rankdeck can tell, no other candidate that fits with room to spare "
        "is predicted to be faster."
    ),
)
_SIMPLEST_OF_FASTEST_REASON = (
    tr_noop("It is the simplest of the fastest candidates (within 10 %) that fit with room to spare."),
    tr_noop(
        "As far as Rankdeck can tell, it is the simplest of the fastest candidates (within 10 "
        "%) that fit with room to spare."
    ),
)
_Rows = Sequence[tuple[int, PlanLine]]
_LEFT_OUT_REASON = tr_noop(
    "{reason} pipeline-async is excluded: by design, its weights differ from those on one device."
)


class PlanMarks(msgspec.Struct, frozen=True):
    """Indices of the marked lines in a list of lines; None if no line is predicted or nothing fits.

    `cheapest` needs the least memory on its fullest device; `reason` explains `recommended` in a sentence.
    """

    cheapest: int | None
    recommended: int | None
    reason: str = ""


# Lines of `plan --json` are written as they are known, and the recommended one is known last: so the reader
# of all lines marks them, not the planner.
def mark_lines(lines: Iterable[PlanLine]) -> PlanMarks:
    """Choose the lines to mark; advice lines are ignored.

    Of the lines that fit with memory to spare, the one with the shortest predicted step is recommended, and
    of equally fast lines the simplest. Without step times, the simplest line in which all devices work at
    once is recommended. If memory is tight in all lines that fit, the line that needs the least is
    recommended. A line that only might fit (a bound) is chosen only if no line is sure to fit, and a strategy
    with stale weights only if no other strategy was requested. If a predicted line is excluded for its stale
    weights, the reason mentions that.
    """
    candidates = [(index, line) for index, line in enumerate(lines) if not line.changes]
    planned = [(index, line) for index, line in candidates if line.devices and line.strategy in STRATEGIES]
    cheapest = min(planned, key=lambda item: _needed_bytes(item[1]))[0] if planned else None
    exact = [item for item in candidates if not has_stale_weights(item[1])] or candidates
    marks = _mark_lines(cheapest, exact, [item for item in planned if item in exact])
    if not marks.reason or all(item in exact for item in planned):
        return marks
    return msgspec.structs.replace(marks, reason=phrase(_LEFT_OUT_REASON, reason=marks.reason))


def has_stale_weights(line: PlanLine) -> bool:
    """Check whether a run of this line, by design, ends with different weights than a run on one device."""
    return line.strategy in STRATEGIES and STRATEGIES[line.strategy].is_stale


def _mark_lines(cheapest: int | None, candidates: _Rows, planned: _Rows) -> PlanMarks:
    sure = [item for item in planned if item[1].verdict == FITS and not is_uncertain(item[1])]
    fits = sure or [item for item in planned if item[1].verdict == FITS]
    if not fits:
        tight = [item for item in planned if item[1].verdict == TIGHT]
        return _smallest_of_tight(cheapest, tight) if tight else PlanMarks(cheapest, None)
    if len(fits) == 1:
        ((index, line),) = fits
        may_fit = any(is_uncertain(other) for _, other in candidates if other is not line)
        why = _ONLY_ONE_REASON if len(candidates) == 1 else _SURE_REASON if may_fit else _ONLY_FIT_REASON
        return PlanMarks(cheapest, index, _reason_text(line, why))
    timed = [(index, line, line.step.middle_s) for index, line in fits if line.step is not None]
    if not timed:
        # If the devices work one after another, a step takes as long as on one device.
        index, line = min(
            fits, key=lambda item: (STRATEGIES[item[1].strategy].planning.is_sequential, *complexity(item[1]))
        )
        why = _SIMPLEST_PARALLEL_REASON if len(line.devices) > 1 else _SIMPLEST_REASON
        return PlanMarks(cheapest, index, _reason_text(line, why))
    fastest_s = min(middle_s for _, _, middle_s in timed)
    close = [(index, line) for index, line, middle_s in timed if middle_s <= EQUALLY_FAST_RATIO * fastest_s]
    index, line = min(close, key=lambda item: complexity(item[1]))
    return PlanMarks(
        cheapest,
        index,
        _reason_text(line, _FASTEST_REASON if len(close) == 1 else _SIMPLEST_OF_FASTEST_REASON),
    )


def _reason_text(line: PlanLine, why: tuple[str, str]) -> str:
    return phrase(why[line.is_bound and line.bound != AT_MOST])


def _smallest_of_tight(cheapest: int | None, tight: _Rows) -> PlanMarks:
    sure = [item for item in tight if not is_uncertain(item[1])]
    index, _ = min(sure or tight, key=lambda item: _needed_bytes(item[1]))
    return PlanMarks(
        cheapest,
        index,
        phrase("Memory is tight for all candidates that fit; this candidate needs the least.")
        if sure
        else phrase("Memory is tight, and no candidate is certain to fit; this candidate needs the least."),
    )


def _needed_bytes(line: PlanLine) -> int:
    """Return the number of bytes that a line's fullest device needs, which is shown for the line."""
    assert line.fullest_device is not None
    return line.fullest_device.total_bytes


def complexity(line: PlanLine) -> tuple[int, bool, int]:
    """Return a sort key that puts the simplest line first.

    The key is (number of non-default options, whether one thread drives several devices, strategy's index).
    """
    options = len(STRATEGIES[line.strategy].non_default_options(line.options))
    drives_several = STRATEGIES[line.strategy].planning.has_one_thread and len(line.devices) > 1
    return options, drives_several, list(STRATEGIES).index(line.strategy)
