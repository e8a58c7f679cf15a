"""Find the one cause of a failed run, not its consequences, from everything known about the run's ranks.

When one rank ends, the others fail within milliseconds with closed connections, so the first exit code is
often one of theirs. Failures are therefore ranked by how certain it is that they came first:

    a signal that Rankdeck did not send  >  an exception that is not about other ranks  >  a silent exit
    >  a rank that did not arrive (the oldest heartbeat)  >  a closed connection or a timeout

If ranks called different collectives, no rank failed first: gloo aborts one rank, and the other ranks lose
their connection to it.

Read exceptions.py and hang.py first.
"""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import STEP, Beat, parse_lost_lines
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.diagnose.exceptions import (
    UNKNOWN_ERROR,
    cpu_limit_advice,
    is_communication_error,
    is_timeout,
    match_disk_error,
    match_rule,
)
from rankdeck.diagnose.hang import HangState, beat_location, find_laggard, hang_problem
from rankdeck.diagnose.mismatch import mismatch_problem
from rankdeck.diagnose.rank_evidence import RankEvidence

EXIT_STOPPED = 130
_LOST_CONNECTION = re.compile(r"(?:EOFError|Connection\w+Error|BrokenPipeError)\b")
KILLED_EARLY_TEXT = tr_noop("The process was killed by {signal} before its first heartbeat.")
SIGNAL_ADVICE = tr_noop("The signal came from outside Rankdeck.")
SIGKILL_ADVICE = tr_noop(
    "The signal came from outside Rankdeck. The kernel also sends it when memory runs out (see dmesg)."
)


@dataclass(frozen=True)
class Cause:
    """The cause of a failed run: the one problem, and the run's exit code."""

    problem: Problem
    exit_code: int


def find_cause(
    ranks: Sequence[RankEvidence], now_s: float, oom_kills: int = 0, *, disk_error: str = ""
) -> Cause:
    """Find the cause of a failed run.

    `oom_kills`: number of processes that the kernel killed for lack of memory. `disk_error`: the system's
    error text if writes to the run's disk fail.
    """
    signalled = [rank for rank in ranks if _is_signalled(rank)]
    if signalled:
        # Of several signalled ranks, the one furthest behind ended first.
        return _signal_cause(min(signalled, key=_progress), oom_kills)
    raised = [rank for rank in ranks if rank.failure is not None and not rank.failure.is_communication]
    if raised:
        return _exception_cause(min(raised, key=_failed_at), ranks)
    wordless = [rank for rank in ranks if rank.failure is None and _has_failed(rank) and not _is_victim(rank)]
    if wordless:
        # A rank that got SIGTERM comes first: the others only stop together with it.
        first = next((rank for rank in wordless if rank.was_asked_to_stop), wordless[0])
        return _silent_exit_cause(first, disk_error)
    if (mismatch := mismatch_problem(ranks)) is not None:
        return Cause(mismatch, 1)
    return _hang_cause(ranks, now_s) or _communication_cause(ranks)


def _is_signalled(rank: RankEvidence) -> bool:
    """Check whether a signal ended the rank without being the consequence of another failure.

    Two cases are such consequences: NCCL's watchdog aborts ranks whose collectives timed out, and a C++
    thread aborts a Python process that was already exiting for another reason.
    """
    if rank.exit_code is None or rank.exit_code >= 0 or rank.has_finished or _is_victim(rank):
        return False
    has_said_why = rank.failure is not None and not rank.failure.is_communication
    return not (has_said_why and rank.exit_code == -signal.SIGABRT)


def _is_victim(rank: RankEvidence) -> bool:
    # A kill or a segfault is the rank's own end, even if its log also reports lost peers.
    return rank.exit_code not in (-signal.SIGKILL, -signal.SIGSEGV) and is_communication_error(
        "\n".join(rank.last_lines)
    )


def _has_failed(rank: RankEvidence) -> bool:
    return rank.exit_code is not None and not rank.has_finished


def _progress(rank: RankEvidence) -> tuple[int, float]:
    # A rank without a heartbeat is the furthest behind.
    return (-1, 0.0) if rank.beat is None else (rank.beat.step, rank.beat.at_s)


def _failed_at(rank: RankEvidence) -> tuple[float, int]:
    return (rank.failure.t if rank.failure is not None else 0.0, rank.rank)


def _signal_cause(rank: RankEvidence, oom_kills: int) -> Cause:
    number = -(rank.exit_code or 0)
    try:
        sent: str = signal.Signals(number).name
    except ValueError:
        sent = phrase("signal {number}", number=number)
    code, advice = "rank-killed", phrase(SIGNAL_ADVICE)
    message = phrase(KILLED_EARLY_TEXT, signal=sent)
    if rank.beat:
        message = phrase(
            "The process was killed by {signal} {place}.", signal=sent, place=beat_location(rank.beat)
        )
    if number == signal.SIGKILL and oom_kills:
        code = "out-of-memory"
        advice = phrase(
            "The machine ran out of memory. Use fewer devices, a smaller model or a smaller "
            "train.global_batch."
        )
    # At the hard limit of CPU time the kernel sends SIGKILL (setrlimit(2)), which looks like any other kill.
    elif number == signal.SIGKILL and (spent := cpu_limit_advice(_children_cpu_s())) is not None:
        problem = Problem("cpu-time", message, advice=spent, rank=rank.rank, last_lines=rank.last_lines)
        return Cause(problem, 3)
    elif number == signal.SIGKILL:
        advice = phrase(SIGKILL_ADVICE)
    # The kernel sends SIGBUS for a page of a mapped file that a full tmpfs cannot allocate.
    elif number == signal.SIGBUS:
        advice = phrase("Usually /dev/shm is full: set data.workers = 0, or make /dev/shm larger.")
    elif number == signal.SIGXCPU:
        advice = phrase("The process exceeded its CPU time limit: see ulimit -t.")
    elif number in (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        code = "rank-crashed"
        advice = phrase(
            "Native code crashed: see the last lines of the rank's log, and try without your own extensions."
        )
    problem = Problem(code, message, advice=advice, rank=rank.rank, last_lines=rank.last_lines)
    return Cause(problem, 1)


def _children_cpu_s() -> float:
    """Return the total CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _exception_cause(rank: RankEvidence, ranks: Sequence[RankEvidence]) -> Cause:
    failure = rank.failure
    assert failure is not None
    problem = _with_resource_error(failure.problem, rank.resource_error)
    says_more = any(line not in problem.text() for line in rank.last_lines)
    if not problem.last_lines and failure.exit_code == 1 and says_more:
        # Only for exit code 1: problems with the input or the machine are in the message, and the log repeats
        # them.
        problem = msgspec.structs.replace(problem, last_lines=rank.last_lines)
    same = [
        other
        for other in ranks
        if other.failure is not None
        and _problem_identity(other.failure.problem) == _problem_identity(failure.problem)
    ]
    if len(same) == len(ranks) > 1:
        # If every rank reports the same problem, no single rank is to blame.
        problem = msgspec.structs.replace(problem, rank=None)
    return Cause(problem, failure.exit_code)


def _with_resource_error(problem: Problem, lack: str) -> Problem:
    """Return the problem, with the log's resource error (`lack`) added if the problem is a lost connection.

    A rank whose data-reading processes died reports only a closed connection.
    """
    named = (
        match_rule("", lack)
        if problem.code == UNKNOWN_ERROR and _LOST_CONNECTION.match(problem.message)
        else None
    )
    if named is None:
        return problem
    message = phrase(
        "{message} An earlier line of the rank's log: {line}", message=problem.as_phrase("message"), line=lack
    )
    return problem.replace_fields(code=named.code, message=message, advice=named.advice())


def _problem_identity(problem: Problem) -> tuple[str, str]:
    return problem.code, problem.message


def _silent_exit_cause(rank: RankEvidence, disk: str) -> Cause:
    code = rank.exit_code or 0
    # Only 1 to 3 are exit codes of a failed run; any other number comes from user code.
    runs_code = code if code in (1, 2, 3) else 1
    beat = rank.beat
    # A rank that could not write its last events reports this instead of its phase, and "lost 3 lines" is no
    # location for a message.
    if beat is not None and (lost := parse_lost_lines(beat.phase)) is not None:
        disk, beat = disk or lost[1], beat._replace(phase=STEP)
    if disk:
        message, fault = _lost_output_message(disk, code, beat), match_disk_error(disk)
        advice = fault.advice()
        return Cause(Problem(fault.code, message, advice=advice, rank=rank.rank), runs_code)
    message = _silent_exit_message(code, rank.beat, rank.last_lines)
    if code == 0:
        message = _early_exit_message(rank.beat)
    if code == EXIT_STOPPED:
        message = phrase("The process was asked to stop (SIGTERM) by something outside Rankdeck.")
    named = match_rule("", rank.last_lines[-1]) if rank.last_lines and code else None
    problem = Problem(
        "rank-exited" if named is None else named.code,
        message,
        advice=(named and named.advice()) or phrase("Its full output is in the rank's log."),
        rank=rank.rank,
        last_lines=rank.last_lines,
    )
    return Cause(problem, runs_code)


def _early_exit_message(beat: Beat | None) -> Phrase:
    if beat is None:
        return phrase("The process exited with status 0 before its work was done. Was os._exit called?")
    return phrase(
        "The process exited with status 0 {place}, before its work was done. Was os._exit called?",
        place=beat_location(beat),
    )


def _lost_output_message(disk: str, code: int, beat: Beat | None) -> Phrase:
    if beat is None:
        return phrase(
            "{disk}: the process exited with status {code}, and its output was lost.", disk=disk, code=code
        )
    return phrase(
        "{disk}: the process exited with status {code} {place}, and its output was lost.",
        disk=disk,
        code=code,
        place=beat_location(beat),
    )


def _silent_exit_message(code: int, beat: Beat | None, last_lines: Sequence[str]) -> Phrase:
    if beat is None:
        message = phrase("The process exited with status {code} without an error message.", code=code)
    else:
        message = phrase(
            "The process exited with status {code} {place} without an error message.",
            code=code,
            place=beat_location(beat),
        )
    if not last_lines:
        return message
    return phrase("{message} Its last line: {line}", message=message, line=last_lines[-1])


def _hang_cause(ranks: Sequence[RankEvidence], now_s: float) -> Cause | None:
    """Return a cause that names the rank that did not arrive, if ranks timed out or all ranks are still
    alive.

    If no single rank is to blame, the cause names the calls in which the ranks wait.
    """
    victims = [rank for rank in ranks if _has_failed(rank)]
    if victims and not any(is_timeout(_last_message(rank)) for rank in victims):
        return None
    hang_state = HangState(
        {rank.rank: rank.beat for rank in ranks if rank.beat is not None},
        {rank.rank: rank.frames for rank in ranks if rank.frames},
        [rank.rank for rank in ranks if rank.is_suspended],
        calls={rank.rank: rank.calls for rank in ranks if rank.calls},
        microbatches={rank.rank: rank.microbatch for rank in ranks if rank.microbatch},
        hosts={rank.rank: rank.host for rank in ranks if rank.host},
        last_lines={rank.rank: rank.last_lines for rank in ranks if rank.exit_code is None},
    )
    waiting = [rank.rank for rank in ranks if rank.exit_code is None]
    laggard = find_laggard(hang_state)
    # All other ranks have ended with a timeout, so they waited for the only one that is alive.
    if laggard is None and len(waiting) == 1 and not hang_state.has_collective_mismatch:
        laggard = waiting[0]
    if laggard is None:
        is_known = hang_state.has_collective_mismatch or not victims
        return Cause(hang_problem(hang_state, now_s), 1) if is_known and hang_state.beats else None
    last_lines = next(rank.last_lines for rank in ranks if rank.rank == laggard)
    return Cause(hang_problem(hang_state, now_s, laggard).replace_fields(last_lines=last_lines), 1)


def _last_message(rank: RankEvidence) -> str:
    return rank.failure.problem.message if rank.failure is not None else "\n".join(rank.last_lines)


def _communication_cause(ranks: Sequence[RankEvidence]) -> Cause:
    failed = [rank for rank in ranks if rank.failure is not None]
    if failed:
        first = min(failed, key=_failed_at)
        assert first.failure is not None
        return Cause(first.failure.problem, 1)
    fallen = next((rank for rank in ranks if _has_failed(rank)), None)
    if fallen is None:
        return Cause(Problem("failed", phrase("The ranks ended without an error message.")), 1)
    message = phrase("The connection to the other ranks failed.")
    if fallen.last_lines:
        message = phrase("The connection to the other ranks failed: {line}", line=fallen.last_lines[-1])
    problem = Problem(
        "communication",
        message,
        advice=phrase("See the last lines of the rank's log."),
        rank=fallen.rank,
        last_lines=fallen.last_lines,
    )
    return Cause(problem, 1)
