"""Of many threads the one that tells most, and of its frames the person's own first."""

from __future__ import annotations

from rankdeck.diagnose.stacks import Frame, is_debugged, parse_stack, where

STACKS = """Thread 0x00007f0000000001 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/home/me/mine.py", line 11 in loss
  File "/lib/train.py", line 140 in _step
"""
THREADED = """Thread 0x00007f0000000001 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007f0000000003 (most recent call first):
  File "/home/me/mine.py", line 11 in loss

Current thread 0x00007f0000000002 (most recent call first):
  File "/env/lib/python3.11/{file}", line 331 in {function}
"""
REDUCE = (
    Frame("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame("/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 81, "wrapper"),
    Frame("/p/train.py", 30, "main"),
)


def test_the_current_thread_of_a_report_is_read() -> None:
    assert parse_stack(STACKS) == [
        Frame("/home/me/mine.py", 11, "loss"),
        Frame("/lib/train.py", 140, "_step"),
    ]
    assert parse_stack(STACKS + STACKS.replace("line 11", "line 12"))[0].line == 12
    assert parse_stack("") == []


def test_where_the_main_thread_waits_for_others_of_its_process_theirs_is_told() -> None:
    joining = THREADED.format(file="concurrent/futures/_base.py", function="wait")
    assert parse_stack(joining)[0].function == "loss"
    collective = THREADED.format(file="site-packages/torch/distributed/d.py", function="all_reduce")
    assert parse_stack(collective)[0].function == "all_reduce"


def test_the_persons_own_line_comes_first_with_what_it_called() -> None:
    assert where(REDUCE) == "main (/p/train.py, line 30), in a call of all_reduce"
    assert where(REDUCE[2:]) == "main (/p/train.py, line 30)"
    assert where(REDUCE[:1]) == REDUCE[0].words()


def test_a_debugger_is_seen_in_the_stack() -> None:
    assert is_debugged(
        [Frame("/lib/python3.11/cmd.py", 126, "cmdloop"), Frame("/lib/python3.11/pdb.py", 1, "_")]
    )
    assert not is_debugged(REDUCE)
