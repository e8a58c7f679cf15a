"""A person's own script that stands still -> a warning that says which rank, where, and what the others do.

Nothing is known of how long its phases take, and nothing ends because of this. Read hang.py before.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.diagnose.hang import HangState, beat_location, find_laggard, format_ranks, hang_warning

_EXITED_TEXTS = {
    (False, False): tr_noop(
        "rank {rank} exited with status 0, and the others make no progress for {seconds:.0f} s."
    ),
    (True, False): tr_noop(
        "rank {rank} exited with status 0 {place}, and the others make no progress for {seconds:.0f} s."
    ),
    (False, True): tr_noop(
        "rank {rank} exited with status 0, and the others make no progress for {seconds:.0f} s, {ranks}."
    ),
    (True, True): tr_noop(
        "rank {rank} exited with status 0 {place}, and the others make no progress for {seconds:.0f} s, "
        "{ranks}."
    ),
}
"""By whether it is known where it was, and where the others are."""


def script_hang_warning(standing: HangState, now_s: float, run: str) -> Problem:
    """The warning."""
    beats = standing.beats
    seconds = now_s - max(beat.at_s for beat in beats.values())
    if standing.exited:
        rank, beat = next(iter(standing.exited.items()))
        advice = phrase(
            "A collective waits for every rank. Rankdeck ends no script for that. Stop it with: "
            "rankdeck stop {run}",
            run=run,
        )
        message = _exited_message(rank, beat, seconds, standing)
        return Problem("rank-left", message, advice=advice, rank=rank, severity="warning")
    advice = phrase("Rankdeck ends no script for that. Stop it with: rankdeck stop {run}", run=run)
    if len(beats) > 1 and find_laggard(standing) is None:
        advice = phrase(
            "Do they call the same collectives? Rankdeck ends no script for that. Stop it with: "
            "rankdeck stop {run}",
            run=run,
        )
    told = hang_warning(standing, now_s, advice)
    return told if len(beats) > 1 else told.replace_fields(rank=None)


def _exited_message(rank: int, beat: Beat | None, seconds: float, standing: HangState) -> Phrase:
    told: dict[str, object] = {"rank": rank, "seconds": seconds}
    if beat is not None:
        told["place"] = beat_location(beat)
    if standing.stacks:
        told["ranks"] = format_ranks(standing, standing.beats)
    return phrase(_EXITED_TEXTS[beat is not None, bool(standing.stacks)], **told)
