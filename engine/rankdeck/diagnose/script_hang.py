"""A person's own script that stands still -> a warning that says which rank, where, and what the others do.

Nothing is known of how long its phases take, and nothing ends because of this. Read hang.py before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.diagnose.hang import Frame, find_laggard, place
from rankdeck.diagnose.own_code import is_own

_RANKS = (
    marked("{a}"),
    marked("{a}, {b}"),
    marked("{a}, {b}, {c}"),
    marked("{a}, {b}, {c}, {d}"),
    marked("{a}, {b}, {c}, {d} and {more} more"),
)
"""How many ranks are told, by their number."""
_LEFT = {
    (False, False): marked(
        "rank {rank} exited with status 0, and the others make no progress for {seconds:.0f} s."
    ),
    (True, False): marked(
        "rank {rank} exited with status 0 {place}, and the others make no progress for {seconds:.0f} s."
    ),
    (False, True): marked(
        "rank {rank} exited with status 0, and the others make no progress for {seconds:.0f} s, {ranks}."
    ),
    (True, True): marked(
        "rank {rank} exited with status 0 {place}, and the others make no progress for {seconds:.0f} s, "
        "{ranks}."
    ),
}
"""By whether it is known where it was, and where the others are."""
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
    seconds = now_s - max(beat.at_s for beat in beats.values())
    if standing.left:
        rank, beat = next(iter(standing.left.items()))
        advice = phrase(
            "A collective waits for every rank. Rankdeck ends no script for that. Stop it with: "
            "rankdeck stop {run}",
            run=run,
        )
        return _warning("rank-left", _left(rank, beat, seconds, standing), advice, rank)
    several = len(beats) > 1
    laggard = find_laggard(beats, standing.suspended, standing.stacks) if several else next(iter(beats))
    if laggard is None:
        message = phrase(
            "No progress for {seconds:.0f} s: every rank waits, {ranks}.",
            seconds=seconds,
            ranks=_everybody(standing),
        )
        advice = phrase(
            "Do they call the same collectives? Rankdeck ends no script for that. Stop it with: "
            "rankdeck stop {run}",
            run=run,
        )
        return _warning("hang-suspected", message, advice, None)
    stands = _stands(laggard, standing)
    message = phrase("No progress for {seconds:.0f} s: {stands}.", seconds=seconds, stands=stands)
    if several:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}, while the others wait.",
            seconds=seconds,
            stands=stands,
        )
    advice = phrase("Rankdeck ends no script for that. Stop it with: rankdeck stop {run}", run=run)
    return _warning("hang-suspected", message, advice, laggard if several else None)


def _warning(code: str, message: Phrase, advice: Phrase, rank: int | None) -> Problem:
    return Problem(code, message, advice=advice, rank=rank, severity="warning")


def _left(rank: int, beat: Beat | None, seconds: float, standing: Standing) -> Phrase:
    told: dict[str, Any] = {"rank": rank, "seconds": seconds}
    if beat is not None:
        told["place"] = place(beat)
    if standing.stacks:
        told["ranks"] = _everybody(standing)
    return phrase(_LEFT[beat is not None, bool(standing.stacks)], **told)


def _stands(rank: int, standing: Standing) -> Phrase:
    where_it_is, frames = place(standing.beats[rank]), standing.stacks.get(rank)
    if rank in standing.suspended:
        return phrase("it stands {place}, suspended by a signal (SIGSTOP)", place=where_it_is)
    if frames:
        return phrase("it stands {place}, in {function}", place=where_it_is, function=where(frames))
    return phrase("it stands {place}", place=where_it_is)


def _everybody(standing: Standing) -> Phrase:
    ranks = sorted(standing.beats)
    told = dict(zip("abcd", (_of_rank(rank, standing) for rank in ranks), strict=False))
    more = {"more": len(ranks) - _NUM_TOLD} if len(ranks) > _NUM_TOLD else {}
    return phrase(_RANKS[len(told) + len(more) - 1], **told, **more)


def _of_rank(rank: int, standing: Standing) -> Phrase:
    frames = standing.stacks.get(rank)
    if frames:
        return phrase("rank {rank} in {function}", rank=rank, function=where(frames))
    return phrase("rank {rank} {place}", rank=rank, place=place(standing.beats[rank]))


def where(frames: Sequence[Frame] | None) -> str:
    """The innermost function, and the line of the person's own code that it was called from."""
    if not frames:
        return ""
    own = next((frame for frame in frames if is_own(frame.file)), None)
    if own is None or own == frames[0]:
        return frames[0].words()
    return phrase("{function}, called by {caller}", function=frames[0].function, caller=own.words())
