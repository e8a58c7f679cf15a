"""Heartbeats, stacks and calls -> the rank that everybody waits for, in words.

While a run works, every rank beats. When nobody has beaten for a while, one rank has not arrived and the
others wait for it. It is the one that has not come to a collective where the others are; without such records
the one that is behind: in an earlier step, or in the same step the only one whose stack waits for nobody, or
in a phase that the others have left. Whoever says that it is inside a collective waits for whoever is in
none. Or nobody is missing, but they are in different collectives. One rank alone waits for nobody: it is told
where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import CHECK, CHECK_STEP, FIRST_STEP, NOT_BEGUN, STEP, VERIFYING, Beat
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.diagnose.exceptions import name
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.diagnose.network import LossyNetwork, lossy_network
from rankdeck.diagnose.own_code import is_own
from rankdeck.diagnose.stacks import CollectiveCall, Frame, current, differing, is_waiting, missing, where

COMPUTING = 0.2
"""Of a core: whoever uses more than that computes."""
_RANKS = (
    marked("{a}"),
    marked("{a}, {b}"),
    marked("{a}, {b}, {c}"),
    marked("{a}, {b}, {c}, {d}"),
    marked("{a}, {b}, {c}, {d} and {more} more"),
)
"""How many ranks are told, by their number."""
_NUM_TOLD = 4
_INSIDE = "collective "
"""So begin the phases that observer/collectives.py tells."""


@dataclass(frozen=True)
class Standing:
    """What is known when no rank makes progress.

    `beats` are of those that live, `left` the steps that ranks were in that have exited with status 0 (None
    before their first heartbeat), `stacks` the threads that tell most, innermost frame first, `calls` the
    collectives that each has come to. `cores`: how many each has used since it made progress. `work`: the
    microbatch that each has begun last, of a pipeline. `hosts`: where each is, in a run over several.
    `last_lines` are those of their logs.
    """

    beats: Mapping[int, Beat]
    stacks: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    suspended: Sequence[int] = ()
    left: Mapping[int, Beat | None] = field(default_factory=dict)
    calls: Mapping[int, Sequence[CollectiveCall]] = field(default_factory=dict)
    cores: Mapping[int, float] = field(default_factory=dict)
    work: Mapping[int, Phrase] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    last_lines: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def is_waited(self) -> bool:
        """Whether a rank is known to wait for another."""
        return any(map(is_waiting, self.stacks.values())) or missing(self.calls) is not None

    @property
    def is_at_odds(self) -> bool:
        """Whether ranks are known to be in different collectives."""
        return bool(differing(self.calls))

    @property
    def lossy_network(self) -> LossyNetwork | None:
        """What all of them wait for, where it is none of them."""
        if self.beats.keys() - self.stacks.keys() or not all(map(is_waiting, self.stacks.values())):
            return None
        return None if self.is_at_odds else lossy_network(self.calls, self.hosts)

    @property
    def is_computing(self) -> bool:
        return any(cores > COMPUTING for cores in self.cores.values())

    def place_of(self, rank: int) -> Phrase:
        """Where a rank is, after 'in'."""
        frames, call = self.stacks.get(rank), current(self.calls.get(rank, ()))
        if frames and call is not None and is_waiting(frames):
            return phrase("{place}: {call}", place=_own(frames).words(), call=call.words())
        return where(frames) if frames else place(self.beats[rank])


def find_laggard(standing: Standing) -> int | None:
    """The rank that the others wait for, or None where nothing tells it from them."""
    beats, stacks = standing.beats, standing.stacks
    if len(standing.suspended) == 1:
        return standing.suspended[0]
    if len(beats) < 2 or standing.is_at_odds:
        return None
    away = [rank for rank, frames in stacks.items() if not is_waiting(frames)]
    absent = missing(standing.calls)
    if absent is not None:
        # Who is missing in one place may wait in another, for whoever waits nowhere.
        late = [rank for rank in absent[0] if rank in away or rank not in stacks]
        late = late or [rank for rank in away if current(standing.calls.get(rank, ())) is None]
        return late[0] if len(late) == 1 else None
    first_step = min(beat.step for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.step == first_step]
    behind = [rank for rank in behind if not beats[rank].phase.startswith(_INSIDE)] or behind
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


def suspicion(standing: Standing, now_s: float, advice: Phrase) -> Problem:
    """The warning while nobody makes progress. `advice` says what becomes of the run."""
    rank = _told_of(standing)
    told = {"seconds": now_s - max(beat.at_s for beat in standing.beats.values())}
    call = None if rank is None else _waited_for(standing, rank)
    if rank is None:
        message = phrase("No progress for {seconds:.0f} s: {ranks}.", ranks=_everybody(standing), **told)
    elif len(standing.beats) == 1:
        message = phrase("No progress for {seconds:.0f} s: {stands}.", stands=_stands(rank, standing), **told)
    elif call is None:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}, while the others wait.",
            stands=_stands(rank, standing),
            **told,
        )
    else:
        message = phrase(
            "No progress for {seconds:.0f} s: {stands}, while the others wait in {call}.",
            stands=_stands(rank, standing),
            call=call.words(),
            **told,
        )
    code = "rank-suspended" if standing.suspended else "hang-suspected"
    return _with_log(Problem(code, message, advice=advice, rank=rank, severity="warning"), standing)


def hang(standing: Standing, now_s: float, rank: int | None = None) -> Problem:
    """The cause of a run that ended because nobody made progress; `rank` is whom the others waited for."""
    rank = _told_of(standing) if rank is None else rank
    if rank is None:
        seconds = now_s - max(beat.at_s for beat in standing.beats.values())
        message = phrase(
            "There was no progress for {seconds:.0f} s: {ranks}.",
            seconds=seconds,
            ranks=_everybody(standing),
        )
        network = standing.lossy_network
        advice = phrase("Have every rank call the same collectives, in the same order.")
        advice = advice if network is None else network.advice()
        return _with_log(Problem("hang", message, advice=advice), standing)
    beat, call = standing.beats.get(rank), _waited_for(standing, rank)
    told = {"seconds": 0.0 if beat is None else now_s - beat.at_s, "stands": _stands(rank, standing)}
    if len(standing.beats) == 1 and beat is not None:
        message = phrase("It made no progress for {seconds:.0f} s: {stands}.", **told)
    elif call is None:
        message = phrase(
            "It did not arrive where the other ranks wait, without progress for {seconds:.0f} s: {stands}.",
            **told,
        )
    else:
        message = phrase(
            "It did not arrive where the other ranks wait, in {call}, without progress for "
            "{seconds:.0f} s: {stands}.",
            call=call.words(),
            **told,
        )
    advice = phrase("Look at what it does there. If it is only slow, raise launch.timeout_s.")
    if rank in standing.suspended:
        advice = phrase("Somebody suspended the process; let it run, or start again.")
    return _with_log(Problem("hang", message, advice=advice, rank=rank), standing)


def _with_log(problem: Problem, standing: Standing) -> Problem:
    """With the error that a log ends with: a rank goes on, and waits, when a process that reads data for it
    has died of that."""
    for rank in sorted(standing.last_lines) if problem.rank is None else [problem.rank]:
        lines = standing.last_lines.get(rank, ())
        named = name("", lines[-1]) if lines else None
        if named is None or named.code == COMMUNICATION:
            continue
        message = phrase(
            "{message} The last line of rank {rank}'s log: {line}",
            message=problem.said("message"),
            rank=rank,
            line=lines[-1],
        )
        next_step = named.advice(of_script=any(beat.is_after for beat in standing.beats.values()))
        advice = phrase("{next_step} {advice}", next_step=next_step or "", advice=problem.said("advice"))
        return problem.but(message=message, advice=advice if next_step else problem.advice)
    return problem


def _told_of(standing: Standing) -> int | None:
    """The laggard, or the only rank that there is."""
    return next(iter(standing.beats)) if len(standing.beats) == 1 else find_laggard(standing)


def _waited_for(standing: Standing, rank: int) -> CollectiveCall | None:
    """The collective that the others are in."""
    absent = missing(standing.calls)
    if absent is not None:
        return absent[1]
    others = (current(calls) for other, calls in standing.calls.items() if other != rank)
    return next((call for call in others if call is not None), None)


def _everybody(standing: Standing) -> Phrase:
    """Of nobody in particular: that all wait, for each other or for the network, or that they are not in the
    same collective."""
    different, network = differing(standing.calls), standing.lossy_network
    if network is not None:
        return network.words()
    if not different:
        return phrase("every rank waits, {ranks}", ranks=everybodys(standing, standing.beats))
    return phrase("the ranks are in different collectives, {ranks}", ranks=called(different, standing.stacks))


def everybodys(standing: Standing, ranks: Iterable[int]) -> Phrase:
    """'rank 0 in ..., rank 1 in ...'."""
    return _listed([_of_rank(rank, standing) for rank in sorted(ranks)])


def called(calls: Mapping[int, CollectiveCall], stacks: Mapping[int, Sequence[Frame]]) -> Phrase:
    """'rank 0 in ...: all_reduce number 7 (3 Float), rank 1 ...'."""
    return _listed([_of_call(rank, call, stacks.get(rank, ())) for rank, call in sorted(calls.items())])


def _of_call(rank: int, call: CollectiveCall, frames: Sequence[Frame]) -> Phrase:
    if not frames:
        return phrase("rank {rank} in {call}", rank=rank, call=call.words())
    told = {"rank": rank, "place": _own(frames).words(), "call": call.words()}
    return phrase("rank {rank} in {place}: {call}", **told)


def _own(frames: Sequence[Frame]) -> Frame:
    """The innermost of a person's own code."""
    return next((frame for frame in frames if is_own(frame.file)), frames[0])


def _listed(words: Sequence[Phrase]) -> Phrase:
    told = dict(zip("abcd", words, strict=False))
    more: dict[str, int] = {"more": len(words) - _NUM_TOLD} if len(words) > _NUM_TOLD else {}
    return phrase(_RANKS[len(told) + len(more) - 1], **told, **more)


def _of_rank(rank: int, standing: Standing) -> Phrase:
    if rank in standing.suspended:
        at = place(standing.beats[rank])
        return phrase("rank {rank} {place}, suspended by a signal (SIGSTOP)", rank=rank, place=at)
    if rank in standing.stacks:
        at = standing.place_of(rank)
        if rank in standing.work:
            return phrase(
                "rank {rank} in {place} after it began {work}", rank=rank, place=at, work=standing.work[rank]
            )
        return phrase("rank {rank} in {place}", rank=rank, place=at)
    return phrase("rank {rank} {place}", rank=rank, place=place(standing.beats[rank]))


def _stands(rank: int, standing: Standing) -> Phrase:
    """Where a rank is, as a clause of its own, and at which microbatch."""
    stands, work = _stands_in_step(rank, standing), standing.work.get(rank)
    if work is None:
        return stands
    return phrase("{stands}, and the last that it began is {work}", stands=stands, work=work)


def _stands_in_step(rank: int, standing: Standing) -> Phrase:
    beat, frames = standing.beats.get(rank), standing.stacks.get(rank)
    if beat is None:
        if rank in standing.suspended:
            return phrase("it has not begun, suspended by a signal (SIGSTOP)")
        return phrase("it has not begun")
    at = place(beat)
    if rank in standing.suspended:
        return phrase("it stands {place}, suspended by a signal (SIGSTOP)", place=at)
    if frames:
        return phrase("it stands {place}, in {function}", place=at, function=where(frames))
    return phrase("it stands {place}", place=at)


def place(beat: Beat) -> Phrase:
    """'in step 20', 'in "evaluation" of step 20', or 'in "loading data"' before the first step; of a script
    'after step 20', 'in "backward" after step 20'."""
    step, phase = beat.step, beat.phase
    if phase == NOT_BEGUN:
        return phrase("at its very start")
    if phase in CHECK:
        return phrase("in the check before the first step")
    if phase in (STEP, FIRST_STEP) or (beat.is_after and phase == "script"):
        if not beat.is_after:
            return phrase("in step {step}", step=step)
        return phrase("after step {step}", step=step) if step else phrase("after its start")
    if not step:
        return phrase('in "{phase}"', phase=phase)
    if beat.is_after:
        return phrase('in "{phase}" after step {step}', phase=phase, step=step)
    return phrase('in "{phase}" of step {step}', phase=phase, step=step)


# How long ranks may make no progress before that is told, and before it ends their run.
#
# What a run has shown to take long may take three times as long. What happens once, or writes to a disk,
# has a limit of its own; nothing is ended before twice the time after which it was told.

STEP_S = 15.0
OTHER_S = 60.0
"""The first step and all before it, an evaluation, a save."""
COMPILE_S = 300.0
"""The first step where torch.compile is at work."""
_SLOW = 3


@dataclass(frozen=True)
class Patience:
    """`timeout_s` is launch.timeout_s: a run is never ended sooner, and steps are told of within half of
    it."""

    timeout_s: float
    compiles: bool = False

    def until_told_s(self, beats: Mapping[int, Beat], slowest_s: Mapping[int, float]) -> float:
        """Of those that the others wait for, the rank with the longest limit. `slowest_s`: the longest that
        each was in its phase so far."""
        return max(self._of(beat, slowest_s.get(rank, 0.0)) for rank, beat in waited_for(beats).items())

    def until_ended_s(self, until_told_s: float) -> float:
        return max(self.timeout_s, 2 * until_told_s)

    def _of(self, beat: Beat, slowest_s: float) -> float:
        own_s = OTHER_S
        if beat.step > 0 if beat.is_after else beat.phase in (STEP, CHECK_STEP):
            own_s = min(STEP_S, self.timeout_s / 2)
        elif beat.phase == FIRST_STEP and self.compiles:
            own_s = COMPILE_S
        return max(own_s, _SLOW * slowest_s)


def waited_for(beats: Mapping[int, Beat]) -> Mapping[int, Beat]:
    """Who is in the earliest step, and there in the step itself, after which it evaluates and saves; in the
    check before the first one whoever takes a step of it. Of a script's phases nothing is known: all of
    them."""
    if any(beat.is_after for beat in beats.values()):
        return beats
    first = min(beat.step for beat in beats.values())
    there = {rank: beat for rank, beat in beats.items() if beat.step == first}
    taken = STEP
    if all(beat.phase in (VERIFYING, CHECK_STEP) for beat in there.values()):
        taken = CHECK_STEP
    return {rank: beat for rank, beat in there.items() if beat.phase == taken} or there
