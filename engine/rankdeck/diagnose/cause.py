"""Everything known of every rank at the end -> the one cause, never its victims.

When one rank goes, the others fail within milliseconds with closed connections, and a first exit code is as
often a victim's as not. So causes are ranked by what can only come first:

    a signal that nobody here sent  >  an exception that is not about other ranks  >  an exit without a word
    >  a rank that did not arrive (the oldest heartbeat)  >  a closed connection or a timeout

Where ranks called different collectives nobody went first: gloo aborts one for it, and the others lose it.

Read exceptions.py and hang.py before.
"""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import STEP, Beat, lost_lines
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.diagnose.exceptions import UNNAMED, is_communication, is_timeout, limited_time, name, name_disk
from rankdeck.diagnose.hang import Standing, called, find_laggard, hang, place
from rankdeck.diagnose.stacks import CollectiveCall, Frame, differing
from rankdeck.events import RankFailed

EXIT_STOPPED = 130
_LOST_PROCESS = re.compile(r"(?:EOFError|Connection\w+Error|BrokenPipeError)\b")
ENDED_EARLY = marked("The process was ended by {signal} before its first heartbeat.")
SENT = marked("Somebody or something outside Rankdeck sent it.")
SENT_OR_NO_MEMORY = marked(
    "Somebody or something outside Rankdeck sent it. If nobody did: the kernel does it when memory runs out "
    "(see dmesg)."
)


@dataclass(frozen=True)
class RankEvidence:
    """What is known of one rank when the run has failed.

    `exit_code` is negative for a signal, and None for a rank that was alive until it was ended by us.
    `has_finished`: it said that its work was done; then no exit status tells anything. `was_asked_to_stop`:
    it got SIGTERM, and not only another rank that it stopped with. `failure` is what the rank said itself;
    `frames` its stack, `calls` its collectives and `work` its microbatch, when a hang was suspected.
    """

    rank: int
    exit_code: int | None
    has_finished: bool = False
    was_asked_to_stop: bool = False
    failure: RankFailed | None = None
    beat: Beat | None = None
    suspended: bool = False
    last_lines: tuple[str, ...] = ()
    frames: Sequence[Frame] = ()
    calls: Sequence[CollectiveCall] = ()
    work: Phrase | None = None
    host: str = ""
    lack: str = ""
    """What its log says that the machine lacks; a process that reads data for it may have written that."""


@dataclass(frozen=True)
class Cause:
    """The one problem, and the exit code of the run."""

    problem: Problem
    exit_code: int


def find_cause(ranks: Sequence[RankEvidence], now_s: float, oom_kills: int = 0, *, disk: str = "") -> Cause:
    """The cause of a failed run. `oom_kills`: processes that the kernel ended for lack of memory; `disk`: why
    the run's disk takes nothing, in the words of the system."""
    signalled = [rank for rank in ranks if _is_signalled(rank)]
    if signalled:
        # Of several the one that was furthest behind went first.
        return _signal_cause(min(signalled, key=_progress), oom_kills)
    own = [rank for rank in ranks if rank.failure is not None and not rank.failure.is_communication]
    if own:
        return _own_cause(min(own, key=_failed_at), ranks)
    wordless = [
        rank for rank in ranks if rank.failure is None and _exited_badly(rank) and not _is_victim(rank)
    ]
    if wordless:
        first = next((rank for rank in wordless if rank.was_asked_to_stop), wordless[0])
        return _wordless_cause(first, disk)
    return _at_odds_cause(ranks) or _hang_cause(ranks, now_s) or _communication_cause(ranks)


def _is_signalled(rank: RankEvidence) -> bool:
    """Ended by a signal of its own. NCCL's watchdog aborts victims of a timeout, and a thread of C++ aborts a
    Python that was ending for a reason of its own: those do not count."""
    if rank.exit_code is None or rank.exit_code >= 0 or rank.has_finished or _is_victim(rank):
        return False
    has_said_why = rank.failure is not None and not rank.failure.is_communication
    return not (has_said_why and rank.exit_code == -signal.SIGABRT)


def _is_victim(rank: RankEvidence) -> bool:
    return rank.exit_code not in (-signal.SIGKILL, -signal.SIGSEGV) and is_communication(
        "\n".join(rank.last_lines)
    )


def _exited_badly(rank: RankEvidence) -> bool:
    return rank.exit_code is not None and not rank.has_finished


def _progress(rank: RankEvidence) -> tuple[int, float]:
    return (-1, 0.0) if rank.beat is None else (rank.beat.step, rank.beat.at_s)


def _failed_at(rank: RankEvidence) -> tuple[float, int]:
    return (rank.failure.t if rank.failure is not None else 0.0, rank.rank)


def _signal_cause(rank: RankEvidence, oom_kills: int) -> Cause:
    number = -(rank.exit_code or 0)
    try:
        sent: str = signal.Signals(number).name
    except ValueError:
        sent = phrase("signal {number}", number=number)
    code, advice = "rank-killed", phrase(SENT)
    message = phrase(ENDED_EARLY, signal=sent)
    if rank.beat:
        message = phrase("The process was ended by {signal} {place}.", signal=sent, place=place(rank.beat))
    if number == signal.SIGKILL and oom_kills:
        code = "out-of-memory"
        advice = phrase(
            "The kernel had run out of memory. Use fewer devices, a smaller model or train.global_batch."
        )
    elif number == signal.SIGKILL and (spent := limited_time(_used_by_children_s())) is not None:
        problem = Problem("cpu-time", message, advice=spent, rank=rank.rank, last_lines=rank.last_lines)
        return Cause(problem, 3)
    elif number == signal.SIGKILL:
        advice = phrase(SENT_OR_NO_MEMORY)
    elif number == signal.SIGBUS:
        advice = phrase("Most often /dev/shm is full: set data.workers = 0, or give it more room.")
    elif number == signal.SIGXCPU:
        advice = phrase("It has used up the time on a CPU that a process may have: see ulimit -t.")
    elif number in (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        code = "rank-crashed"
        advice = phrase("Native code crashed: see its last lines, and try without your own extensions.")
    problem = Problem(code, message, advice=advice, rank=rank.rank, last_lines=rank.last_lines)
    return Cause(problem, 1)


def _used_by_children_s() -> float:
    """The time on CPUs of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _own_cause(rank: RankEvidence, ranks: Sequence[RankEvidence]) -> Cause:
    failure = rank.failure
    assert failure is not None
    problem = _with_lack(failure.problem, rank.lack)
    says_more = any(line not in problem.text() for line in rank.last_lines)
    if not problem.last_lines and failure.exit_code == 1 and says_more:
        # What is wrong with the input or the machine is said once; its log says it again.
        problem = msgspec.structs.replace(problem, last_lines=rank.last_lines)
    same = [
        other
        for other in ranks
        if other.failure is not None and _text(other.failure.problem) == _text(failure.problem)
    ]
    if len(same) == len(ranks) > 1:
        # What every rank says alike is nobody's own fault.
        problem = msgspec.structs.replace(problem, rank=None)
    return Cause(problem, failure.exit_code)


def _with_lack(problem: Problem, lack: str) -> Problem:
    """A rank whose data is read by processes that have died hears of a closed connection alone."""
    named = name("", lack) if problem.code == UNNAMED and _LOST_PROCESS.match(problem.message) else None
    if named is None:
        return problem
    message = phrase("{message} Before that its log says: {line}", message=problem.said("message"), line=lack)
    return problem.but(code=named.code, message=message, advice=named.advice())


def _text(problem: Problem) -> tuple[str, str]:
    return problem.code, problem.message


def _wordless_cause(rank: RankEvidence, disk: str) -> Cause:
    code = rank.exit_code or 0
    runs_code = code if code in (1, 2, 3) else 1
    beat = rank.beat
    if beat is not None and (lost := lost_lines(beat.phase)) is not None:
        disk, beat = disk or lost[1], beat._replace(phase=STEP)
    if disk:
        message, fault = _lost_words(disk, code, beat), name_disk(disk)
        advice = fault.advice()
        return Cause(Problem(fault.code, message, advice=advice, rank=rank.rank), runs_code)
    message = _wordless(code, rank.beat, rank.last_lines)
    if code == 0:
        message = _left(rank.beat)
    if code == EXIT_STOPPED:
        message = phrase("The process was asked to stop (SIGTERM) by something outside Rankdeck.")
    named = name("", rank.last_lines[-1]) if rank.last_lines and code else None
    problem = Problem(
        "rank-exited" if named is None else named.code,
        message,
        advice=(named and named.advice()) or phrase("All that it wrote is in the rank's log."),
        rank=rank.rank,
        last_lines=rank.last_lines,
    )
    return Cause(problem, runs_code)


def _left(beat: Beat | None) -> Phrase:
    if beat is None:
        return phrase("The process left before its work was done, with exit status 0: os._exit was called?")
    return phrase(
        "The process left {place}, before its work was done, with exit status 0: os._exit was called?",
        place=place(beat),
    )


def _lost_words(disk: str, code: int, beat: Beat | None) -> Phrase:
    if beat is None:
        return phrase(
            "{disk}: the process exited with {code}, and what it said is lost.", disk=disk, code=code
        )
    return phrase(
        "{disk}: the process exited with {code} {place}, and what it said is lost.",
        disk=disk,
        code=code,
        place=place(beat),
    )


def _wordless(code: int, beat: Beat | None, last_lines: Sequence[str]) -> Phrase:
    if beat is None:
        message = phrase("The process exited with {code} without saying why.", code=code)
    else:
        message = phrase(
            "The process exited with {code} {place} without saying why.", code=code, place=place(beat)
        )
    if not last_lines:
        return message
    return phrase("{message} Its last line: {line}", message=message, line=last_lines[-1])


def _hang_cause(ranks: Sequence[RankEvidence], now_s: float) -> Cause | None:
    """The rank that did not arrive, where the others ran into a timeout or are all alive; or what all of them
    wait in, where nobody else is to blame for it."""
    victims = [rank for rank in ranks if _exited_badly(rank)]
    if victims and not any(is_timeout(_last_message(rank)) for rank in victims):
        return None
    standing = Standing(
        {rank.rank: rank.beat for rank in ranks if rank.beat is not None},
        {rank.rank: rank.frames for rank in ranks if rank.frames},
        [rank.rank for rank in ranks if rank.suspended],
        calls={rank.rank: rank.calls for rank in ranks if rank.calls},
        work={rank.rank: rank.work for rank in ranks if rank.work},
        hosts={rank.rank: rank.host for rank in ranks if rank.host},
        last_lines={rank.rank: rank.last_lines for rank in ranks if rank.exit_code is None},
    )
    waiting = [rank.rank for rank in ranks if rank.exit_code is None]
    laggard = find_laggard(standing)
    if laggard is None and len(waiting) == 1 and not standing.is_at_odds:
        laggard = waiting[0]
    if laggard is None:
        is_known = standing.is_at_odds or not victims
        return Cause(hang(standing, now_s), 1) if is_known and standing.beats else None
    last_lines = next(rank.last_lines for rank in ranks if rank.rank == laggard)
    return Cause(hang(standing, now_s, laggard).but(last_lines=last_lines), 1)


def _at_odds_cause(ranks: Sequence[RankEvidence]) -> Cause | None:
    """Collectives that do not fit together: gloo aborts a rank for that, and the others lose it; or all that
    failed lost each other there.
    """
    aborted = next((rank for rank in ranks if rank.exit_code == -signal.SIGABRT and _is_at_odds(rank)), None)
    calls = {rank.rank: rank.calls for rank in ranks if rank.failure is not None and rank.calls}
    different = differing(calls)
    if aborted is None and not different:
        return None
    if aborted is not None:
        different = {rank: made[-1] for rank, made in calls.items()}
    message = phrase("Ranks called different collectives, or the same one with other shapes.")
    if different:
        message = phrase(
            "Ranks called different collectives, or the same one with other shapes: {ranks}.",
            ranks=called(different, {}),
        )
    advice = phrase("Have every rank call the same collectives, in the same order, with the same shapes.")
    last_lines = () if aborted is None else aborted.last_lines
    return Cause(Problem("collectives-differ", message, advice=advice, last_lines=last_lines), 1)


def _is_at_odds(rank: RankEvidence) -> bool:
    named = name("", "\n".join(rank.last_lines))
    return named is not None and named.code == "collectives-differ"


def _last_message(rank: RankEvidence) -> str:
    return rank.failure.problem.message if rank.failure is not None else "\n".join(rank.last_lines)


def _communication_cause(ranks: Sequence[RankEvidence]) -> Cause:
    failed = [rank for rank in ranks if rank.failure is not None]
    if failed:
        first = min(failed, key=_failed_at)
        assert first.failure is not None
        return Cause(first.failure.problem, 1)
    fallen = next((rank for rank in ranks if _exited_badly(rank)), None)
    if fallen is None:
        return Cause(Problem("failed", phrase("The ranks ended without saying why.")), 1)
    message = phrase("The connection to the other ranks failed.")
    if fallen.last_lines:
        message = phrase("The connection to the other ranks failed: {line}", line=fallen.last_lines[-1])
    problem = Problem(
        "communication",
        message,
        advice=phrase("Its last lines say more."),
        rank=fallen.rank,
        last_lines=fallen.last_lines,
    )
    return Cause(problem, 1)
