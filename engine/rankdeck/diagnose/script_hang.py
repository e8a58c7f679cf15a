"""Warn about a user's own script that hangs: which rank hangs and where, and what the other ranks are doing.

The usual duration of a script's phases is unknown, so Rankdeck never ends the script. Read hang.py first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.diagnose.child_processes import ChildProcess, with_children
from rankdeck.diagnose.hang import (
    COMPUTING_CORES,
    HangState,
    awaited_call,
    beat_location,
    find_laggard,
    format_ranks,
    hang_warning,
)
from rankdeck.events import RankFailed
from rankdeck.run.hang_warning import WORKS_ALONE

_READING_BYTES_PER_S = 1 << 20
"""Bytes per second, read or written, above which a rank counts as reading."""
_LEFT_TEXTS = {
    (False, False): tr_noop("Rank {rank} exited with status 0 while other ranks were still waiting for it."),
    (True, False): tr_noop(
        "Rank {rank} exited with status 0 {place} while other ranks were still waiting for it."
    ),
    (False, True): tr_noop(
        "Rank {rank} exited with status 0 while rank {other} was still waiting for it ({file}, line {line})."
    ),
    (True, True): tr_noop(
        "Rank {rank} exited with status 0 {place} while rank {other} was still waiting for it "
        "({file}, line {line})."
    ),
}
"""Texts, keyed by (whether the rank's last step is known, whether the line of another rank is known)."""
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
"""Texts, keyed by (whether the exited rank's location is known, whether the other ranks' locations are)."""


def script_hang_warning(
    hang_state: HangState,
    now_s: float,
    run: str,
    children: Mapping[int, Sequence[ChildProcess]] | None = None,
) -> Problem:
    """Return the warning that a script hangs or has lost a rank; its advice contains the command that stops
    `run`. `children`: each rank's loader workers and other children."""
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
    elif (alone := working_rank(hang_state)) is not None:
        return _works_alone(hang_state, alone, seconds, run)
    warning = with_children(hang_warning(hang_state, now_s, advice), hang_state.stacks, children or {})
    return warning if len(beats) > 1 else warning.replace_fields(rank=None)


def rank_left_problem(rank: int, beat: Beat | None, waiting: RankFailed | None) -> Problem:
    """Return the problem that `rank` exited with status 0 while the others waited for it. `waiting`: the
    failure of a rank that waited; it names the line in which that rank waited."""
    place = {} if beat is None else {"place": beat_location(beat)}
    line: dict[str, object] = {}
    if waiting is not None and waiting.problem.path is not None and waiting.problem.line is not None:
        line = {"other": waiting.rank, "file": waiting.problem.path, "line": waiting.problem.line}
    message = phrase(_LEFT_TEXTS[bool(place), bool(line)], rank=rank, **place, **line)
    advice = phrase(
        "A collective waits for every rank: make sure that all ranks run the same steps. A decision to stop "
        "must be the same on all ranks: all_reduce it first."
    )
    # The last lines of the rank that left explain nothing, but those of the other rank do.
    last_lines = () if waiting is None else waiting.problem.last_lines
    return Problem("rank-left", message, advice=advice, rank=rank, last_lines=last_lines)


def working_rank(hang_state: HangState) -> int | None:
    """Return the rank that computes or reads while all others wait for it; None if there is no such rank."""
    rank = find_laggard(hang_state) if len(hang_state.beats) > 1 and not hang_state.suspended else None
    if rank is None:
        return None
    is_computing = hang_state.cores.get(rank, 0.0) > COMPUTING_CORES
    return rank if is_computing or hang_state.io_rates.get(rank, 0.0) > _READING_BYTES_PER_S else None


def _works_alone(hang_state: HangState, rank: int, seconds: float, run: str) -> Problem:
    """Return a note that a rank is busy while the others wait for it, which does not count as a hang."""
    call = awaited_call(hang_state, rank)
    place = hang_state.rank_location(rank)
    arguments = {"rank": rank, "seconds": seconds, "place": place}
    if call is None:
        message = phrase(
            "Rank {rank} has been working alone for {seconds:.0f} s in {place}; the other ranks are waiting.",
            **arguments,
        )
    else:
        message = phrase(
            "Rank {rank} has been working alone for {seconds:.0f} s in {place}; the other ranks are "
            "waiting in {call}.",
            call=call.text(),
            **arguments,
        )
    advice = phrase("The rank is computing or reading. See where it is with: rankdeck stacks {run}", run=run)
    return Problem(WORKS_ALONE, message, advice=advice, rank=rank, severity="info")


def _exited_message(rank: int, beat: Beat | None, seconds: float, hang_state: HangState) -> Phrase:
    arguments: dict[str, object] = {"rank": rank, "seconds": seconds}
    if beat is not None:
        arguments["place"] = beat_location(beat)
    if hang_state.stacks:
        arguments["ranks"] = format_ranks(hang_state, hang_state.beats)
    return phrase(_EXITED_TEXTS[beat is not None, bool(hang_state.stacks)], **arguments)
