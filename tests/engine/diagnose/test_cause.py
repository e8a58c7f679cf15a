"""One cause for a failed run, and never a victim."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from itertools import permutations

import pytest

from rankdeck.base.errors import DataError, Problem
from rankdeck.base.heartbeat import Beat, failed_phase
from rankdeck.diagnose.cause import find_cause
from rankdeck.diagnose.exceptions import describe_exception
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.diagnose.stacks import CollectiveCall, Frame
from rankdeck.events import RankFailed

CLOSED = "[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30350"
TIMEOUT = (
    "[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 14000ms for recv operation"
)
BEAT = Beat(20, "step", 100.0)


def failure_from(error: Exception, rank: int, t: float) -> RankFailed:
    failure = describe_exception(error, rank)
    failure.t = t
    return failure


def victim(rank: int, text: str = CLOSED, t: float = 10.0) -> RankEvidence:
    return RankEvidence(
        rank, 1, failure=failure_from(RuntimeError(text), rank, t), beat=BEAT, last_lines=(text,)
    )


def survivor(rank: int) -> RankEvidence:
    return RankEvidence(rank, None, beat=BEAT)


def cause_of(*ranks: RankEvidence, oom_kills: int = 0) -> Problem:
    """The problem, which must not depend on the order of ranks."""
    problems = {find_cause(list(order), 130.0, oom_kills).problem for order in permutations(ranks)}
    assert len(problems) == 1
    return problems.pop()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "rank-killed"),
        (signal.SIGSEGV, "rank-crashed"),
        (signal.SIGABRT, "rank-crashed"),
        (signal.SIGBUS, "rank-killed"),
        (signal.SIGTERM, "rank-killed"),
    ],
)
def test_an_external_signal_is_the_cause(number: signal.Signals, code: str) -> None:
    problem = cause_of(victim(0), RankEvidence(1, -number, beat=BEAT), victim(2), survivor(3))
    assert (problem.rank, problem.code) == (1, code)
    assert number.name in problem.message and "step 20" in problem.message


def test_the_earliest_of_several_killed_ranks_is_the_cause() -> None:
    leading, trailing = (RankEvidence(rank, -9, beat=Beat(20 - rank, "step", 100.0)) for rank in (0, 1))
    assert cause_of(leading, trailing, survivor(2)).rank == 1


def test_a_kill_by_the_oom_killer_is_out_of_memory() -> None:
    assert cause_of(victim(0), RankEvidence(1, -9), oom_kills=1).code == "out-of-memory"


def test_an_exception_outranks_earlier_lost_connections() -> None:
    culprit = RankEvidence(
        1, 1, failure=failure_from(ValueError("bad batch 17"), 1, 11.0), last_lines=("the last",)
    )
    problem = cause_of(victim(0, t=10.0), culprit, victim(2, t=10.5))
    assert problem.rank == 1 and problem.message.startswith("ValueError: bad batch 17")


def test_a_resource_error_in_the_log_outranks_a_lost_connection() -> None:
    lack = "OSError: [Errno 24] Too many open files"
    lost = RankEvidence(1, 1, failure=failure_from(EOFError(), 1, 11.0), resource_error=lack)
    problem = cause_of(victim(0), lost)
    assert (problem.rank, problem.code) == (1, "too-many-files") and problem.message.endswith(lack)
    assert problem.advice is not None and "ulimit -n" in problem.advice
    culprit = RankEvidence(1, 1, failure=failure_from(ValueError("bad"), 1, 11.0), resource_error=lack)
    assert cause_of(victim(0), culprit).code == "rank-exception"


def test_an_unwritten_failure_names_the_system_error() -> None:
    beat = Beat(20, failed_phase(3, errno.EFBIG), 100.0)
    problem = cause_of(RankEvidence(0, 1, beat=beat, last_lines=("r",)))
    assert problem.code == "file-too-large"
    assert problem.message == (
        "File too large: the process exited with status 1 in step 20, and its output was lost."
    )


def test_a_signal_outranks_an_exception() -> None:
    culprit = RankEvidence(0, 1, failure=failure_from(ValueError("bad batch 17"), 0, 9.0))
    assert cause_of(culprit, RankEvidence(1, -9)).rank == 1


def test_a_rank_aborted_after_its_exception_is_the_cause() -> None:
    said_why = RankEvidence(1, -signal.SIGABRT, failure=failure_from(ValueError("bad batch 17"), 1, 9.0))
    problem = cause_of(victim(0, TIMEOUT), said_why)
    assert (problem.rank, "bad batch 17" in problem.message) == (1, True)


def test_a_rank_aborted_by_the_watchdog_is_not_the_cause() -> None:
    line = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) ran for 60001 ms"
    aborted = RankEvidence(0, -signal.SIGABRT, beat=Beat(21, "step", 101.0), last_lines=(line,))
    problem = cause_of(aborted, RankEvidence(1, None, beat=BEAT))
    assert (problem.rank, problem.code) == (1, "hang")


MISMATCH_LINES = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble."
    "length <= op.nbytes. 28 vs 12. Received data size doesn't match expected size. Is there a distributed "
    "collective mismatch in your code?",
)


def in_call(rank: RankEvidence, shape: str, number: int = 7) -> RankEvidence:
    return replace(rank, calls=[CollectiveCall("0", number, "all_reduce", shape, is_finished=True)])


def test_an_abort_by_gloo_for_a_mismatch_is_not_a_crash() -> None:
    aborted = RankEvidence(0, -signal.SIGABRT, beat=BEAT, last_lines=MISMATCH_LINES)
    problem = cause_of(aborted, in_call(victim(1), "7 Float"), survivor(2))
    assert (problem.rank, problem.code) == (None, "collectives-differ")
    assert problem.message.endswith("with different shapes: rank 1 in all_reduce number 7 (7 Float).")
    assert problem.last_lines == MISMATCH_LINES
    assert cause_of(aborted, survivor(1)).message.endswith("with different shapes.")
    culprit = RankEvidence(1, 1, failure=failure_from(ValueError("bad batch 17"), 1, 11.0))
    assert "bad batch 17" in cause_of(replace(aborted, exit_code=1), culprit).message


def test_ranks_in_different_collectives_are_listed() -> None:
    problem = cause_of(in_call(victim(0), "3 Float"), in_call(victim(1), "7 Float"))
    assert (problem.rank, problem.code) == (None, "collectives-differ")
    assert (
        "rank 0 in all_reduce number 7 (3 Float), rank 1 in all_reduce number 7 (7 Float)" in problem.message
    )
    assert cause_of(in_call(victim(0), "3 Float"), in_call(victim(1), "3 Float")).code == "communication"
    assert cause_of(in_call(victim(0), "3 Float"), in_call(victim(1), "7 Float", 8)).code == "communication"


def test_a_missing_rank_is_named_with_its_location() -> None:
    frames = (Frame("mine.py", 11, "loss"),)
    late = RankEvidence(1, None, beat=BEAT, frames=frames)
    problem = cause_of(victim(0, TIMEOUT), late, victim(2, TIMEOUT))
    assert (problem.rank, problem.code) == (1, "hang")
    assert "30 s" in problem.message and "loss (mine.py, line 11)" in problem.message


def test_the_oldest_heartbeat_decides_when_all_ranks_failed() -> None:
    slow = RankEvidence(
        1,
        1,
        failure=failure_from(RuntimeError(TIMEOUT), 1, 12.0),
        beat=Beat(19, "step", 99.0),
        last_lines=(TIMEOUT,),
    )
    problem = cause_of(victim(0, TIMEOUT), slow, victim(2, TIMEOUT))
    assert (problem.rank, problem.code) == (1, "hang")


def test_a_suspended_rank_is_the_cause() -> None:
    problem = cause_of(victim(0, TIMEOUT), RankEvidence(1, None, beat=BEAT, is_suspended=True), survivor(2))
    assert (problem.rank, problem.code) == (1, "hang") and "SIGSTOP" in problem.message


def test_a_closed_connection_is_the_last_resort() -> None:
    problem = cause_of(victim(0, t=10.0), victim(1, t=11.0), survivor(2))
    assert (problem.rank, problem.code) == (0, "communication")


def test_a_silent_exit_shows_the_last_log_line() -> None:
    problem = cause_of(victim(0), RankEvidence(1, 7, last_lines=("first", "the last thing")))
    assert (problem.rank, problem.code) == (1, "rank-exited")
    assert "7" in problem.message and "the last thing" in problem.message
    assert problem.last_lines == ("first", "the last thing")


def test_the_last_log_line_can_name_a_silent_exit() -> None:
    last = "7 event lines could not be written: File too large"
    problem = cause_of(RankEvidence(0, 1, beat=BEAT, last_lines=(last,)), survivor(1))
    assert problem.code == "file-too-large" and "ulimit -f" in (problem.advice or "")
    assert problem.message.endswith(last)


def test_a_cpu_time_limit_gives_ulimit_advice() -> None:
    problem = cause_of(RankEvidence(1, -signal.SIGXCPU, beat=BEAT), survivor(0))
    assert problem.code == "rank-killed" and "ulimit -t" in (problem.advice or "")


@pytest.mark.parametrize(
    ("disk", "code"),
    [
        (os.strerror(errno.ENOSPC), "disk-full"),
        (os.strerror(errno.EROFS), "disk-error"),
        ("What no rule knows", "disk-error"),
    ],
)
def test_a_silent_exit_with_a_failed_disk_is_a_disk_error(disk: str, code: str) -> None:
    ranks = [survivor(0), RankEvidence(1, 1, beat=Beat(50, "saving weights", 100.0))]
    problem = find_cause(ranks, 130.0, disk_error=disk).problem
    assert (problem.code, problem.rank) == (code, 1) and problem.advice
    assert problem.message.startswith(disk) and '"saving weights" of step 50' in problem.message


def test_the_same_error_on_all_ranks_names_no_rank() -> None:
    ranks = [
        RankEvidence(rank, 2, failure=failure_from(DataError("data.args.path is empty."), rank, 10.0 + rank))
        for rank in range(3)
    ]
    cause = find_cause(ranks, 130.0)
    assert cause.exit_code == 2
    assert cause.problem.rank is None and cause.problem.message == "data.args.path is empty."
    assert find_cause(ranks[:1], 130.0).problem.rank == 0


def test_the_cause_sets_the_exit_code() -> None:
    assert find_cause([RankEvidence(0, -9)], 0.0).exit_code == 1
    assert find_cause([RankEvidence(0, 3)], 0.0).exit_code == 3
    assert find_cause([RankEvidence(0, 7)], 0.0).exit_code == 1
    assert find_cause([survivor(0), survivor(1)], 0.0).exit_code == 1
