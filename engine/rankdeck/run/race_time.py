"""How long a race takes: said before it starts, and of what is left while it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from rankdeck.base.phrases import marked, phrase
from rankdeck.base.units import format_duration
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.race import Race

_STARTING_S = {"virtual": 5.0, "gpu": 12.0}
"""About how long an entry takes before its first step."""
_ABOUT, _AT_LEAST = marked("about {time}"), marked("at least {time}")


def expected_s(lines: Sequence[PlanLine], steps: int) -> tuple[float, bool]:
    """(how long a race of these takes, whether that is the least): on a CPU nobody knows what steps take."""
    timed = [line.step.middle_s for line in lines if line.step is not None]
    is_gpu = bool(timed)
    starting_s = _STARTING_S["gpu" if is_gpu else "virtual"]
    again_s = timed[0] if timed else 0.0
    return (len(lines) + 1) * starting_s + steps * (sum(timed) + again_s), len(timed) < len(lines)


def expected_text(lines: Sequence[PlanLine], steps: int) -> str:
    """'about 3 min', or 'at least 1 min 25 s' where step times are not known."""
    seconds, is_least = expected_s(lines, steps)
    return phrase(_AT_LEAST if is_least else _ABOUT, time=format_duration(seconds))


def remaining_text(race: Race) -> str:
    """What is left, at the pace of the entries that completed; as expected before there is one."""
    waiting = [entry for entry in race.entries if not entry.is_over]
    took_s = [entry.measured.seconds for entry in race.entries if entry.measured is not None]
    if not took_s:
        return expected_text([entry.predicted for entry in waiting], race.steps)
    repeats = any(entry.repeats is not None for entry in race.entries)
    left_s = sum(took_s) / len(took_s) * (len(waiting) + (0 if repeats else 1))
    return phrase(_ABOUT, time=format_duration(left_s))
