"""Find the rank that all others wait for, from heartbeats, stacks and collective calls, and describe it.

While a run makes progress, every rank sends heartbeats. When none has arrived for a while, one rank is late
and the others wait for it. The flight recorders name the rank that has not reached the collective in which
the others wait. Without recorders, the late rank is the one in the earliest step. If several ranks are in
that step, the late rank is the only one whose stack does not show it waiting for other ranks, or the one in a
phase that the others have left. A rank that reports being inside a collective waits for ranks that are in no
collective. If the ranks are in different collectives, no single rank is late. If a run has a single rank, the
message only describes where that rank is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import CHECK_PHASES, CHECK_STEP, FIRST_STEP, NOT_STARTED, STEP, VERIFYING, Beat
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.exceptions import match_rule
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.diagnose.network import LossyNetwork, find_lossy_network
from rankdeck.diagnose.rank_lists import join_ranks
from rankdeck.diagnose.stacks import (
    CollectiveCall,
    Frame,
    current_call,
    find_mismatch,
    find_missing_ranks,
    format_location,
    is_waiting,
)
from rankdeck.diagnose.user_code import is_user_file

COMPUTING_CORES = 0.2
"""Share of a core above which a rank counts as computing."""
_COLLECTIVE_PREFIX = "collective "
"""Prefix of the phases that observer/collectives.py reports."""


@dataclass(frozen=True)
class HangState:
    """Facts about the ranks when none makes progress, keyed by rank.

    `beats`: last heartbeats of living ranks. `exited`: last heartbeats of ranks that exited with status 0
    (None before their first heartbeat). `stacks`: the most informative thread's stack, innermost frame first.
    `calls`: collectives that the rank has reached. `cores`, `io_rates`: cores used and bytes moved per second
    since the rank last made progress. `microbatches`: the microbatch that a pipeline rank started last.
    `hosts`: the rank's host, in a run on several hosts. `last_lines`: the end of the rank's log.
    """

    beats: Mapping[int, Beat]
    stacks: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    suspended: Sequence[int] = ()
    exited: Mapping[int, Beat | None] = field(default_factory=dict)
    calls: Mapping[int, Sequence[CollectiveCall]] = field(default_factory=dict)
    cores: Mapping[int, float] = field(default_factory=dict)
    io_rates: Mapping[int, float] = field(default_factory=dict)
    # Not part of the heartbeat's phase: the oldest heartbeat would then blame the rank that waits with the
    # earlier microbatch.
    microbatches: Mapping[int, Phrase] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    last_lines: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def has_waiting_rank(self) -> bool:
        """Whether a rank is known to be waiting for another rank."""
        return any(map(is_waiting, self.stacks.values())) or find_missing_ranks(self.calls) is not None

    @property
    def has_collective_mismatch(self) -> bool:
        """Whether ranks are known to be in different collectives."""
        return bool(find_mismatch(self.calls))

    @property
    def lossy_network(self) -> LossyNetwork | None:
        """The lossy network to blame for the hang; None unless all ranks are waiting and the network may be
        the cause."""
        # Blame the network only if every rank's stack is known and waits.
        if self.beats.keys() - self.stacks.keys() or not all(map(is_waiting, self.stacks.values())):
            return None
        return None if self.has_collective_mismatch else find_lossy_network(self.calls, self.hosts)

    @property
    def is_computing(self) -> bool:
        return any(cores > COMPUTING_CORES for cores in self.cores.values())

    def rank_location(self, rank: int) -> Phrase:
        """Return where a rank is, as text that follows 'in'."""
        frames, call = self.stacks.get(rank), current_call(self.calls.get(rank, ()))
        if frames and call is not None and is_waiting(frames):
            return phrase("{place}: {call}", place=_innermost_user_frame(frames).text(), call=call.text())
        return format_location(frames) if frames else beat_location(self.beats[rank])


def find_laggard(hang_state: HangState) -> int | None:
    """Return the rank that the others wait for, or None if it cannot be identified."""
    beats, stacks = hang_state.beats, hang_state.stacks
    # A suspended rank explains the hang, whatever stacks and heartbeats say.
    if len(hang_state.suspended) == 1:
        return hang_state.suspended[0]
    if len(beats) < 2 or hang_state.has_collective_mismatch:
        return None
    away = [rank for rank, frames in stacks.items() if not is_waiting(frames)]
    absent = find_missing_ranks(hang_state.calls)
    if absent is not None:
        # A rank missing from one collective may wait in another, for a rank that waits nowhere.
        late = [rank for rank in absent[0] if rank in away or rank not in stacks]
        late = late or [rank for rank in away if current_call(hang_state.calls.get(rank, ())) is None]
        return late[0] if len(late) == 1 else None
    first_step = min(beat.step for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.step == first_step]
    # Ranks inside a collective wait for those in none.
    behind = [rank for rank in behind if not beats[rank].phase.startswith(_COLLECTIVE_PREFIX)] or behind
    late = [rank for rank in behind if rank in away]
    if len(late) == 1 and all(rank in stacks for rank in behind):
        return late[0]
    if len(behind) > 1:
        phases = {beats[rank].phase for rank in behind}
        if len(phases) > 1 or len(behind) < len(beats):
            oldest = min(behind, key=lambda rank: beats[rank].at_s)
            behind = [rank for rank in behind if beats[rank].phase == beats[oldest].phase]
    if len(behind) == 1:
        return behind[0]
    late = [rank for rank in behind if rank in away]
    return late[0] if len(late) == 1 else None


def hang_warning(hang_state: HangState, now_s: float, advice: Phrase) -> Problem:
    """Return the warning that no rank makes progress. `advice` is about what will happen to the run."""
    rank = _blamed_rank(hang_state)
    arguments = {"seconds": now_s - max(beat.at_s for beat in hang_state.beats.values())}
    call = None if rank is None else awaited_call(hang_state, rank)
    if rank is None:
        message = phrase(
            "No progress for {seconds:.0f} s: {ranks}.", ranks=_all_ranks_text(hang_state), **arguments
        )
    elif len(hang_state.beats) == 1:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}.", stands=_rank_status(rank, hang_state), **arguments
        )
    elif call is None:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}, while the other ranks are waiting.",
            stands=_rank_status(rank, hang_state),
            **arguments,
        )
    else:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}, while the other ranks are waiting in {call}.",
            stands=_rank_status(rank, hang_state),
            call=call.text(),
            **arguments,
        )
    code = "rank-suspended" if hang_state.suspended else "hang-suspected"
    return _with_log_error(Problem(code, message, advice=advice, rank=rank, severity="warning"), hang_state)


def hang_problem(hang_state: HangState, now_s: float, rank: int | None = None) -> Problem:
    """Return the problem of a run that was ended for lack of progress. `rank` is the rank that the others
    waited for; if None, it is determined from `hang_state`."""
    rank = _blamed_rank(hang_state) if rank is None else rank
    if rank is None:
        seconds = now_s - max(beat.at_s for beat in hang_state.beats.values())
        message = phrase(
            "There was no progress for {seconds:.0f} s: {ranks}.",
            seconds=seconds,
            ranks=_all_ranks_text(hang_state),
        )
        network = hang_state.lossy_network
        advice = phrase("Have every rank call the same collectives, in the same order.")
        advice = advice if network is None else network.advice()
        return _with_log_error(Problem("hang", message, advice=advice), hang_state)
    beat, call = hang_state.beats.get(rank), awaited_call(hang_state, rank)
    arguments = {
        "seconds": 0.0 if beat is None else now_s - beat.at_s,
        "stands": _rank_status(rank, hang_state),
    }
    if len(hang_state.beats) == 1 and beat is not None:
        message = phrase("It made no progress for {seconds:.0f} s: {stands}.", **arguments)
    elif call is None:
        message = phrase(
            "It made no progress for {seconds:.0f} s while the other ranks waited for it: {stands}.",
            **arguments,
        )
    else:
        message = phrase(
            "It made no progress for {seconds:.0f} s while the other ranks waited for it in "
            "{call}: {stands}.",
            call=call.text(),
            **arguments,
        )
    advice = phrase("Check what the rank is doing there. If it is only slow, raise launch.timeout_s.")
    if rank in hang_state.suspended:
        advice = phrase("A signal suspended the process. Resume it (kill -CONT), or start the run again.")
    return _with_log_error(Problem("hang", message, advice=advice, rank=rank), hang_state)


def _with_log_error(problem: Problem, hang_state: HangState) -> Problem:
    """Return the problem; if a rank's log ends with a recognized error, add that error and its advice.

    The error can explain a hang: if a process that reads data died of it, its rank waits for data forever."""
    for rank in sorted(hang_state.last_lines) if problem.rank is None else [problem.rank]:
        lines = hang_state.last_lines.get(rank, ())
        named = match_rule("", lines[-1]) if lines else None
        if named is None or named.code == COMMUNICATION:
            continue
        message = phrase(
            "{message} The last line of rank {rank}'s log: {line}",
            message=problem.as_phrase("message"),
            rank=rank,
            line=lines[-1],
        )
        next_step = named.advice(for_script=any(beat.is_step_complete for beat in hang_state.beats.values()))
        advice = phrase("{next_step} {advice}", next_step=next_step or "", advice=problem.as_phrase("advice"))
        return problem.replace_fields(message=message, advice=advice if next_step else problem.advice)
    return problem


def _blamed_rank(hang_state: HangState) -> int | None:
    """Return the only rank with a heartbeat or, if there are several, the laggard; None if it is unknown."""
    return next(iter(hang_state.beats)) if len(hang_state.beats) == 1 else find_laggard(hang_state)


def awaited_call(hang_state: HangState, rank: int) -> CollectiveCall | None:
    """Return the collective in which the ranks other than `rank` are waiting; None if it is unknown."""
    absent = find_missing_ranks(hang_state.calls)
    if absent is not None:
        return absent[1]
    others = (current_call(calls) for other, calls in hang_state.calls.items() if other != rank)
    return next((call for call in others if call is not None), None)


def _all_ranks_text(hang_state: HangState) -> Phrase:
    """Describe a hang of all ranks: they wait for each other or for the network, or are in different
    collectives."""
    different, network = find_mismatch(hang_state.calls), hang_state.lossy_network
    if network is not None:
        return network.text()
    if not different:
        return phrase("every rank is waiting, with {ranks}", ranks=format_ranks(hang_state, hang_state.beats))
    return phrase(
        "the ranks are in different collectives, with {ranks}",
        ranks=format_calls(different, hang_state.stacks),
    )


def format_ranks(hang_state: HangState, ranks: Iterable[int]) -> Phrase:
    """Format ranks with their locations: 'rank 0 in ..., rank 1 in ...'."""
    return join_ranks([_format_rank(rank, hang_state) for rank in sorted(ranks)])


def format_calls(calls: Mapping[int, CollectiveCall], stacks: Mapping[int, Sequence[Frame]]) -> Phrase:
    """Format calls by rank: 'rank 0 in all_reduce number 7 (3 Float) at ..., rank 1 ...'."""
    return join_ranks(
        [_format_call(rank, call, stacks.get(rank, ())) for rank, call in sorted(calls.items())]
    )


def _format_call(rank: int, call: CollectiveCall, frames: Sequence[Frame]) -> Phrase:
    if not frames:
        return phrase("rank {rank} in {call}", rank=rank, call=call.text())
    arguments = {"rank": rank, "place": _innermost_user_frame(frames).text(), "call": call.text()}
    return phrase("rank {rank} in {call} at {place}", **arguments)


def _innermost_user_frame(frames: Sequence[Frame]) -> Frame:
    """Return the innermost frame in the user's own code or, if there is none, the innermost frame."""
    return next((frame for frame in frames if is_user_file(frame.file)), frames[0])


def _format_rank(rank: int, hang_state: HangState) -> Phrase:
    if rank in hang_state.suspended:
        at = beat_location(hang_state.beats[rank])
        return phrase("rank {rank} {place}, suspended by a signal (SIGSTOP)", rank=rank, place=at)
    if rank in hang_state.stacks:
        at = hang_state.rank_location(rank)
        if rank in hang_state.microbatches:
            return phrase(
                "rank {rank} in {place} after starting {work}",
                rank=rank,
                place=at,
                work=hang_state.microbatches[rank],
            )
        return phrase("rank {rank} in {place}", rank=rank, place=at)
    return phrase("rank {rank} {place}", rank=rank, place=beat_location(hang_state.beats[rank]))


def _rank_status(rank: int, hang_state: HangState) -> Phrase:
    """Return a complete clause about where a rank is, with its microbatch."""
    location, work = _rank_location_clause(rank, hang_state), hang_state.microbatches.get(rank)
    if work is None:
        return location
    return phrase("{stands}, after starting {work}", stands=location, work=work)


def _rank_location_clause(rank: int, hang_state: HangState) -> Phrase:
    beat, frames = hang_state.beats.get(rank), hang_state.stacks.get(rank)
    if beat is None:
        if rank in hang_state.suspended:
            return phrase("it has not started and is suspended by a signal (SIGSTOP)")
        return phrase("it has not started")
    at = beat_location(beat)
    if rank in hang_state.suspended:
        return phrase("it is {place}, suspended by a signal (SIGSTOP)", place=at)
    if frames:
        return phrase("it is {place}, in {function}", place=at, function=format_location(frames))
    return phrase("it is {place}", place=at)


def beat_location(beat: Beat) -> Phrase:
    """Return where a heartbeat places a rank: 'in step 20', 'in "evaluation" of step 20', or before the first
    step 'in "loading data"'; for a script 'after step 20' or 'in "backward" after step 20'."""
    step, phase = beat.step, beat.phase
    if phase == NOT_STARTED:
        return phrase("at startup")
    if phase in CHECK_PHASES:
        return phrase("in the check before the first step")
    if phase in (STEP, FIRST_STEP) or (beat.is_step_complete and phase == "script"):
        if not beat.is_step_complete:
            return phrase("in step {step}", step=step)
        return phrase("after step {step}", step=step) if step else phrase("after startup")
    if not step:
        return phrase('in "{phase}"', phase=phase)
    if beat.is_step_complete:
        return phrase('in "{phase}" after step {step}', phase=phase, step=step)
    return phrase('in "{phase}" of step {step}', phase=phase, step=step)


# How long ranks may make no progress before a warning, and before the run is ended. A phase may take three
# times as long as it ever did in this run. Phases that happen once, or write to a disk, have their own limit.
# A run is never ended before twice the time after which the warning came.

STEP_WARNING_S = 15.0
PHASE_WARNING_S = 60.0
"""Time without progress after which a warning is due before or in the first step, in an evaluation, or in a
save."""
COMPILE_WARNING_S = 300.0
"""Time without progress after which a warning is due in the first step with torch.compile."""
_SLOW_FACTOR = 3


@dataclass(frozen=True)
class HangTimeouts:
    """Times without progress after which a warning is due, and after which the run is ended.

    The run is never ended before `timeout_s` (launch.timeout_s) has passed without progress. A warning about
    a step is due after at most half of `timeout_s`, unless earlier steps were slow.
    """

    timeout_s: float
    compiles: bool = False

    def warning_after_s(self, beats: Mapping[int, Beat], slowest_s: Mapping[int, float]) -> float:
        """Return the time without progress after which a warning is due: the longest of the times for the
        ranks that the others wait for. `beats` are the last heartbeats.

        `slowest_s`: for each rank, the longest time that its current phase has taken so far.
        """
        return max(
            self._phase_limit_s(beat, slowest_s.get(rank, 0.0)) for rank, beat in awaited_ranks(beats).items()
        )

    def stop_after_s(self, until_told_s: float) -> float:
        return max(self.timeout_s, 2 * until_told_s)

    def _phase_limit_s(self, beat: Beat, slowest_s: float) -> float:
        own_s = PHASE_WARNING_S
        # A script's steps are known only once they are complete, a configured run's while they run.
        if beat.step > 0 if beat.is_step_complete else beat.phase in (STEP, CHECK_STEP):
            own_s = min(STEP_WARNING_S, self.timeout_s / 2)
        elif beat.phase == FIRST_STEP and self.compiles:
            own_s = COMPILE_WARNING_S
        return max(own_s, _SLOW_FACTOR * slowest_s)


def awaited_ranks(beats: Mapping[int, Beat]) -> Mapping[int, Beat]:
    """Return the heartbeats of the ranks that the others wait for.

    The others wait for the ranks in the earliest step that have not reached the evaluation or save after it.
    During the check before the first step, they wait for the ranks that run a step of the check. Nothing is
    known about a script's phases, so all of its ranks are returned.
    """
    if any(beat.is_step_complete for beat in beats.values()):
        return beats
    first = min(beat.step for beat in beats.values())
    there = {rank: beat for rank, beat in beats.items() if beat.step == first}
    taken = STEP
    if all(beat.phase in (VERIFYING, CHECK_STEP) for beat in there.values()):
        taken = CHECK_STEP
    return {rank: beat for rank, beat in there.items() if beat.phase == taken} or there
