"""A person's own script that stands still -> a warning that says which rank, where, and what the others do.

Nothing is known of how long its phases take, and nothing ends because of this. Read hang.py before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.diagnose.hang import Frame, find_laggard, place
from rankdeck.diagnose.own_code import is_own

_NUM_TOLD = 4


@dataclass(frozen=True)
class Standing:
    """What is known when no rank makes progress.

    `beats` are of those that live, `left` the steps that ranks were in that have exited with status 0 (None
    before their first heartbeat), `stacks` main threads, innermost frame first.
    """

    beats: Mapping[int, Beat]
    stacks: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    suspended: Sequence[int] = ()
    left: Mapping[int, Beat | None] = field(default_factory=dict)


def standing_still(standing: Standing, now_s: float, run: str) -> Problem:
    """The warning."""
    beats = standing.beats
    age = f"{now_s - max(beat.at_s for beat in beats.values()):.0f} s"
    advice = f"Rankdeck ends no script for that. Stop it with: rankdeck stop {run}"
    if standing.left:
        rank, beat = next(iter(standing.left.items()))
        at = f" {place(beat)}" if beat is not None else ""
        message = f"rank {rank} exited with status 0{at}, and the others make no progress for {age}"
        words = f"{message}, {_everybody(standing)}." if standing.stacks else f"{message}."
        return _warning("rank-left", words, f"A collective waits for every rank. {advice}", rank)
    several = len(beats) > 1
    laggard = find_laggard(beats, standing.suspended, standing.stacks) if several else next(iter(beats))
    if laggard is None:
        words = f"No progress for {age}: every rank waits, {_everybody(standing)}."
        return _warning("hang-suspected", words, f"Do they call the same collectives? {advice}", None)
    others = ", while the others wait" if several else ""
    words = f"No progress for {age}: {_stands(laggard, standing)}{others}."
    return _warning("hang-suspected", words, advice, laggard if several else None)


def _warning(code: str, message: str, advice: str, rank: int | None) -> Problem:
    return Problem(code, message, advice=advice, rank=rank, severity="warning")


def _stands(rank: int, standing: Standing) -> str:
    words = f"it stands {place(standing.beats[rank])}"
    if rank in standing.suspended:
        return f"{words}, suspended by a signal (SIGSTOP)"
    frames = standing.stacks.get(rank)
    return f"{words}, in {where(frames)}" if frames else words


def _everybody(standing: Standing) -> str:
    ranks = sorted(standing.beats)
    told = [f"rank {rank} {_place(rank, standing)}" for rank in ranks]
    more = f" and {len(told) - _NUM_TOLD} more" if len(told) > _NUM_TOLD else ""
    return ", ".join(told[:_NUM_TOLD]) + more


def _place(rank: int, standing: Standing) -> str:
    frames = standing.stacks.get(rank)
    return f"in {where(frames)}" if frames else place(standing.beats[rank])


def where(frames: Sequence[Frame] | None) -> str:
    """The innermost function, and the line of the person's own code that it was called from."""
    if not frames:
        return ""
    own = next((frame for frame in frames if is_own(frame.file)), None)
    if own is None or own == frames[0]:
        return frames[0].words()
    return f"{frames[0].function}, called by {own.words()}"
