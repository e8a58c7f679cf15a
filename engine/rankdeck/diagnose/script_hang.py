"""Warn about a user's own script that hangs: which rank hangs and where, and what the other ranks are doing.

The usual duration of a script's phases is unknown, so Rankdeck never ends the script. Read hang.py first.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.diagnose.hang import HangState, beat_location, find_laggard, format_ranks, hang_warning

_EXITED_TEXTS = {
    (False, False): tr_noop(
        "Rank {rank} exited with status 0, but the other ranks have made no progress for {seconds:.0f} s."
    ),
    (True, False): tr_noop(
        "Rank {rank} exited with status 0 {place}, but the other ranks have made no progress "
        "for {seconds:.0f} s."
    ),
    (False, True): tr_noop(
        "Rank {rank} exited with status 0, but the other ranks have made no progress for "
        "{seconds:.0f} s: {ranks}."
    ),
    (True, True): tr_noop(
        "Rank {rank} exited with status 0 {place}, but the other ranks have made no progress "
        "for {seconds:.0f} s: {ranks}."
    ),
}
"""Texts by (whether the exited rank's location is known, whether the other ranks' locations are known)."""


def script_hang_warning(hang_state: HangState, now_s: float, run: str) -> Problem:
    """Return the warning that a script hangs or has lost a rank; its advice contains the command that stops
    `run`."""
    beats = hang_state.beats
    seconds = now_s - max(beat.at_s for beat in beats.values())
    if hang_state.exited:
        rank, beat = next(iter(hang_state.exited.items()))
        advice = phrase(
            "A collective waits for every rank, and Rankdeck does not stop scripts that hang. "
            "Stop the run with: rankdeck stop {run}",
            run=run,
        )
        message = _exited_message(rank, beat, seconds, hang_state)
        return Problem("rank-left", message, advice=advice, rank=rank, severity="warning")
    advice = phrase(
        "Rankdeck does not stop scripts that hang. Stop the run with: rankdeck stop {run}", run=run
    )
    if len(beats) > 1 and find_laggard(hang_state) is None:
        advice = phrase(
            "Check that all ranks call the same collectives; Rankdeck does not stop scripts "
            "that hang. Stop the run with: rankdeck stop {run}",
            run=run,
        )
    warning = hang_warning(hang_state, now_s, advice)
    return warning if len(beats) > 1 else warning.replace_fields(rank=None)


def _exited_message(rank: int, beat: Beat | None, seconds: float, hang_state: HangState) -> Phrase:
    arguments: dict[str, object] = {"rank": rank, "seconds": seconds}
    if beat is not None:
        arguments["place"] = beat_location(beat)
    if hang_state.stacks:
        arguments["ranks"] = format_ranks(hang_state, hang_state.beats)
    return phrase(_EXITED_TEXTS[beat is not None, bool(hang_state.stacks)], **arguments)
