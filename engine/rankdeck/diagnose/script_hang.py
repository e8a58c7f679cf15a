"""A person's own script that stands still -> a warning that says which rank, where, and what the others do.

Nothing is known of how long its phases take, and nothing ends because of this. Read hang.py before.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.diagnose.hang import Standing, everybodys, find_laggard, place, suspicion

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
        message = _left(rank, beat, seconds, standing)
        return Problem("rank-left", message, advice=advice, rank=rank, severity="warning")
    advice = phrase("Rankdeck ends no script for that. Stop it with: rankdeck stop {run}", run=run)
    if len(beats) > 1 and find_laggard(standing) is None:
        advice = phrase(
            "Do they call the same collectives? Rankdeck ends no script for that. Stop it with: "
            "rankdeck stop {run}",
            run=run,
        )
    told = suspicion(standing, now_s, advice)
    return told if len(beats) > 1 else told.but(rank=None)


def _left(rank: int, beat: Beat | None, seconds: float, standing: Standing) -> Phrase:
    told: dict[str, object] = {"rank": rank, "seconds": seconds}
    if beat is not None:
        told["place"] = place(beat)
    if standing.stacks:
        told["ranks"] = everybodys(standing, standing.beats)
    return phrase(_LEFT[beat is not None, bool(standing.stacks)], **told)
