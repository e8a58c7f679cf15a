"""Heartbeats and stacks -> the rank that everybody waits for.

While a run works, every rank beats. When nobody has beaten for a while, one rank has not arrived and the
others wait for it. It is the one that is behind: in an earlier step, or in the same step in a phase that the
others have left. Whoever says that it is inside a collective waits for whoever is in none. Where all are in
the same phase, stacks tell: a rank that waits for others is inside a collective, the one that they wait for
is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase, phrase

PATIENCE_S = 10.0
WARM_UP_PATIENCE_S = 60.0  # before the first step a rank may well load or compile alone
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?P<current>Current thread|Thread|Stack) .*$", re.MULTILINE)
_INSIDE = "collective "
"""So begin the phases that observer/collectives.py tells."""
_WAITING_FILES = ("torch/distributed/",)
_WAITING_FUNCTIONS = ("_engine_run_backward", "synchronize", "barrier", "all_reduce")


@dataclass(frozen=True)
class Frame:
    """Where a thread stands."""

    file: str
    line: int
    function: str

    def words(self) -> Phrase:
        return phrase(
            "{function} ({file}, line {line})", function=self.function, file=self.file, line=self.line
        )


def is_still(
    beats: Mapping[int, Beat],
    now_s: float,
    longest_gap_s: float,
    patience_s: float = PATIENCE_S,
    least: int = 2,
) -> bool:
    """Whether no rank of `least` or more has made progress for too long; a run of slow steps is given more
    time."""
    if len(beats) < least:
        return False
    warming_up = min(beat.step for beat in beats.values()) < 1
    patience_s = WARM_UP_PATIENCE_S if warming_up else max(patience_s, 3 * longest_gap_s)
    return now_s - max(beat.at_s for beat in beats.values()) > patience_s


def find_laggard(
    beats: Mapping[int, Beat],
    suspended: Sequence[int] = (),
    stacks: Mapping[int, Sequence[Frame]] | None = None,
) -> int | None:
    """The rank that the others wait for, or None where nothing tells it from them.

    `suspended` are ranks that a signal has stopped; `stacks` the main threads, innermost frame first.
    """
    if len(suspended) == 1:
        return suspended[0]
    if len(beats) < 2:
        return None
    first_step = min(beat.step for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.step == first_step]
    behind = [rank for rank in behind if not beats[rank].phase.startswith(_INSIDE)] or behind
    if len(behind) > 1:
        phases = {beats[rank].phase for rank in behind}
        if len(phases) > 1 or len(behind) < len(beats):
            oldest = min(behind, key=lambda rank: beats[rank].at_s)
            behind = [rank for rank in behind if beats[rank].phase == beats[oldest].phase]
    if len(behind) == 1:
        return behind[0]
    away = [rank for rank in behind if stacks and rank in stacks and not is_waiting(stacks[rank])]
    return away[0] if len(away) == 1 else None


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether a thread is inside a collective or a backward pass, where ranks wait for each other."""
    return any(
        any(part in frame.file for part in _WAITING_FILES) or frame.function in _WAITING_FUNCTIONS
        for frame in frames[:3]
    )


def parse_stack(text: str) -> list[Frame]:
    """The thread that faulthandler's last report calls current (the main one), innermost frame first."""
    threads = list(_THREAD.finditer(text))
    current = [index for index, match in enumerate(threads) if match["current"] != "Thread"]
    if not current:
        return []
    start = threads[current[-1]].end()
    end = threads[current[-1] + 1].start() if current[-1] + 1 < len(threads) else len(text)
    frames = _FRAME.finditer(text, start, end)
    return [Frame(match["file"], int(match["line"]), match["function"]) for match in frames]


def suspicion(
    rank: int, beats: Mapping[int, Beat], now_s: float, *, suspended: bool, frames: Sequence[Frame] = ()
) -> Problem:
    """The warning while the others still wait."""
    return Problem(
        "hang-suspected",
        phrase(
            "No progress for {seconds:.0f} s: {stands}, while the others wait.",
            seconds=_age_s(beats, rank, now_s),
            stands=stands(beats.get(rank), suspended, frames),
        ),
        advice=phrase("The run ends by itself when launch.timeout_s is over; or stop it now."),
        rank=rank,
        severity="warning",
    )


def hang(
    rank: int, beats: Mapping[int, Beat], now_s: float, *, suspended: bool, frames: Sequence[Frame] = ()
) -> Problem:
    """The cause of a run that ended because the others waited too long."""
    return Problem(
        "hang",
        phrase(
            "It did not arrive where the other ranks waited: for {seconds:.0f} s {stands}.",
            seconds=_age_s(beats, rank, now_s),
            stands=stands(beats.get(rank), suspended, frames),
        ),
        advice=phrase("Somebody suspended the process; let it run, or start again.")
        if suspended
        else phrase("Look at what it does there. If it is only slow, raise launch.timeout_s."),
        rank=rank,
    )


def stands(beat: Beat | None, suspended: bool, frames: Sequence[Frame] = ()) -> Phrase:
    """Where a rank is, as a clause of its own."""
    if beat is None:
        if suspended:
            return phrase("it has not begun, suspended by a signal (SIGSTOP)")
        if frames:
            return phrase("it has not begun, in {function}", function=frames[0].words())
        return phrase("it has not begun")
    where = place(beat)
    if suspended:
        return phrase("it has been {place}, suspended by a signal (SIGSTOP)", place=where)
    if frames:
        return phrase("it has been {place}, in {function}", place=where, function=frames[0].words())
    return phrase("it has been {place}", place=where)


def place(beat: Beat) -> Phrase:
    """'in step 20', 'in "evaluation" of step 20', or 'in "loading data"' before the first step; of a script
    'after step 20', 'in "backward" after step 20'."""
    step, phase = beat.step, beat.phase
    if phase == "step" or (beat.is_after and phase == "script"):
        if not beat.is_after:
            return phrase("in step {step}", step=step)
        return phrase("after step {step}", step=step) if step else phrase("after its start")
    if not step:
        return phrase('in "{phase}"', phase=phase)
    if beat.is_after:
        return phrase('in "{phase}" after step {step}', phase=phase, step=step)
    return phrase('in "{phase}" of step {step}', phase=phase, step=step)


def _age_s(beats: Mapping[int, Beat], rank: int, now_s: float) -> float:
    beat = beats.get(rank)
    return 0.0 if beat is None else max(0.0, now_s - beat.at_s)
