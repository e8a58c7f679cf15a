"""Describe a mismatch that ended the ranks: they called different collectives, or with different shapes.

The problem names a line of code for each side. For a rank that lost its connections, this line is in the
rank's traceback; for a rank that gloo aborted, it is in the stack that faulthandler wrote. Read stacks.py
first and cause.py next.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.exceptions import match_rule
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.diagnose.rank_lists import join_ranks
from rankdeck.diagnose.stacks import CollectiveCall, Frame, find_mismatch
from rankdeck.diagnose.user_code import code_owner, is_user_file

MISMATCH = "collectives-differ"
_WRAPPER_FILES = ("torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py")


def mismatch_problem(ranks: Sequence[RankEvidence]) -> Problem | None:
    """Return the problem if ranks called collectives that do not match; otherwise None.

    The evidence is that gloo aborted a rank, or that the recorded calls of the failed ranks differ.
    """
    aborted = next(
        (rank for rank in ranks if rank.exit_code == -signal.SIGABRT and _has_collective_mismatch(rank)), None
    )
    calls = {rank.rank: rank.calls for rank in ranks if rank.failure is not None and rank.calls}
    different = find_mismatch(calls)
    if aborted is None and not different:
        return None
    # gloo's abort proves the mismatch, so the newest calls are quoted even where the recorders show no
    # difference.
    if aborted is not None:
        different = {rank: rank_calls[-1] for rank, rank_calls in calls.items()}
    sides = [
        _format_side(rank, different.get(rank.rank))
        for rank in sorted(ranks, key=lambda rank: rank.rank)
        if rank.rank in different or rank is aborted
    ]
    message = phrase("Ranks called different collectives, or the same collective with different shapes.")
    if any(side.arguments.keys() > {"rank"} for side in sides):
        message = phrase(
            "Ranks called different collectives, or the same collective with different shapes: {ranks}.",
            ranks=join_ranks([side for side in sides if side.arguments.keys() > {"rank"}]),
        )
    last_lines = () if aborted is None else aborted.last_lines
    advice = _advice([line for rank in ranks if (line := _code_line(rank)) is not None])
    return Problem(MISMATCH, message, advice=advice, last_lines=last_lines)


def _format_side(rank: RankEvidence, call: CollectiveCall | None) -> Phrase:
    """Return text such as 'rank 0 in all_reduce number 7 (3 Float) at train.py, line 30'."""
    arguments = {"rank": rank.rank}
    line = _code_line(rank)
    if call is not None and line is not None:
        file, number = line
        return phrase(
            "rank {rank} in {call} at {file}, line {line}",
            **arguments,
            call=call.text(),
            file=file,
            line=number,
        )
    if call is not None:
        return phrase("rank {rank} in {call}", **arguments, call=call.text())
    if rank.frames:
        return phrase("rank {rank} in {place}", **arguments, place=_format_call_site(rank.frames))
    return phrase("rank {rank}", **arguments)


def _format_call_site(frames: Sequence[Frame]) -> Phrase:
    """Return the innermost line of user code, and the function that this line called."""
    depth = next((depth for depth, frame in enumerate(frames) if is_user_file(frame.file)), 0)
    # Frames of the observer and of torch's wrappers are between the line and what it called.
    callees = (frame for frame in reversed(frames[:depth]) if not frame.file.endswith(_WRAPPER_FILES))
    callee = next((frame for frame in callees if code_owner(frame.file) != "Rankdeck"), None)
    if callee is None:
        return frames[depth].text()
    return phrase("{place}, in a call to {function}", place=frames[depth].text(), function=callee.function)


def _code_line(rank: RankEvidence) -> tuple[str, int] | None:
    """Return the file and line of the user's own code that called the collective; None if unknown."""
    frame = next((frame for frame in rank.frames if is_user_file(frame.file)), None)
    if frame is not None:
        return frame.file, frame.line
    # A rank that ended by an exception has a traceback instead of a stack.
    problem = rank.failure.problem if rank.failure is not None else None
    if problem is None or problem.path is None or problem.line is None:
        return None
    return problem.path, problem.line


def _advice(lines: Sequence[tuple[str, int]]) -> Phrase:
    # Different lines: a branch. The same line: only the tensors can differ.
    if len(lines) > 1 and len(set(lines)) > 1:
        return phrase(
            "The ranks are at different lines: run both lines on every rank. A call that communicates, such "
            "as gathering a state dict, must not be inside `if rank == 0`; only the write to the file may be."
        )
    if len(lines) > 1:
        return phrase(
            "The ranks are at the same line: pass tensors of the same shape and dtype on every rank, or pad "
            "them to the largest."
        )
    return phrase("Have every rank call the same collectives, in the same order, with the same shapes.")


def _has_collective_mismatch(rank: RankEvidence) -> bool:
    named = match_rule("", "\n".join(rank.last_lines))
    return named is not None and named.code == MISMATCH
