"""A script that stands still: who did not arrive, or what everybody waits in."""

from __future__ import annotations

from rankdeck.base.heartbeat import Beat
from rankdeck.diagnose.hang import HangState
from rankdeck.diagnose.script_hang import script_hang_warning
from rankdeck.diagnose.stacks import Frame

_REDUCE = (
    Frame("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame("/apps/rankdeck/observer/collectives.py", 148, "call"),
    Frame("/p/train.py", 30, "main"),
)
_OWN = (Frame("/p/train.py", 44, "evaluate"), Frame("/p/train.py", 31, "main"))
_BEATS = {0: Beat(7, "step", 100.0, is_step_complete=True), 1: Beat(7, "step", 99.0, is_step_complete=True)}


def test_the_rank_outside_a_collective_is_blamed() -> None:
    problem = script_hang_warning(HangState(_BEATS, {0: _REDUCE, 1: _OWN}), 120.0, "run-1")
    assert (problem.rank, problem.severity) == (1, "warning")
    assert problem.message == (
        "No progress for 20 s: it is after step 7, in evaluate (/p/train.py, line 44), "
        "while the other ranks are waiting."
    )


def test_all_waiting_ranks_are_listed() -> None:
    problem = script_hang_warning(HangState(_BEATS, {0: _REDUCE, 1: _REDUCE}), 120.0, "run-1")
    assert problem.rank is None
    assert (
        "every rank is waiting, with rank 0 in main (/p/train.py, line 30), in a call to all_reduce, rank 1"
        in problem.message
    )
    assert "the same collectives" in (problem.advice or "")


def test_long_rank_lists_are_shortened() -> None:
    beats = {rank: Beat(7, "step", 100.0) for rank in range(9)}
    problem = script_hang_warning(HangState(beats, dict.fromkeys(beats, _REDUCE)), 120.0, "run-1")
    assert "rank 3 in" in problem.message and problem.message.endswith("and 5 more.")


def test_a_suspended_process_is_named() -> None:
    problem = script_hang_warning(HangState(_BEATS, {0: _REDUCE}, suspended=[1]), 120.0, "run-1")
    assert problem.rank == 1 and "suspended by a signal" in problem.message
