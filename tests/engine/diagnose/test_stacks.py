"""Of many threads the one that tells most, and of its frames the person's own first."""

from __future__ import annotations

import pytest

from rankdeck.diagnose.stacks import Frame, format_location, is_debugged, is_waiting, parse_stack

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


def test_the_current_thread_is_parsed() -> None:
    assert parse_stack(STACKS) == [
        Frame("/home/me/mine.py", 11, "loss"),
        Frame("/lib/train.py", 140, "_step"),
    ]
    assert parse_stack(STACKS + STACKS.replace("line 11", "line 12"))[0].line == 12
    assert parse_stack("") == []


def test_a_worker_thread_is_shown_when_the_main_thread_joins_it() -> None:
    joining = THREADED.format(file="concurrent/futures/_base.py", function="wait")
    assert parse_stack(joining)[0].function == "loss"
    collective = THREADED.format(file="site-packages/torch/distributed/d.py", function="all_reduce")
    assert parse_stack(collective)[0].function == "all_reduce"


def test_user_code_on_torchs_backward_thread_is_shown() -> None:
    backward = "site-packages/torch/autograd/graph.py"
    main = THREADED.format(file=backward, function="_engine_run_backward")
    assert parse_stack(main)[0].function == "loss", "torch's own thread"
    of_python = main.replace(
        "in loss\n", 'in loss\n  File "/lib/python3.11/threading.py", line 9 in _bootstrap\n'
    )
    assert parse_stack(of_python)[0].function == "_engine_run_backward", "a thread that loads data"


TORCH = "/env/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ([(f"{TORCH}/autograd/graph.py", "_engine_run_backward"), ("/p/train.py", "main")], True),
        ([(f"{TORCH}/cuda/__init__.py", "synchronize"), ("/p/train.py", "main")], True),
        ([(f"{TORCH}/distributed/distributed_c10d.py", "barrier"), ("/p/train.py", "main")], True),
        ([("/home/me/pytorch/torch/cuda/streams.py", "synchronize"), ("/p/train.py", "main")], True),
        ([("/home/me/pytorch/torch/distributed/distributed_c10d.py", "barrier")], True),
        ([("/p/mine.py", "barrier"), ("/p/mine.py", "loss")], False),
        ([("/p/mine.py", "all_reduce"), ("/p/mine.py", "__getitem__")], False),
        ([("/p/mine.py", "synchronize"), (f"{TORCH}/nn/modules/module.py", "_call_impl")], False),
        (
            [
                ("/p/mine.py", "backward"),
                (f"{TORCH}/autograd/function.py", "apply"),
                (f"{TORCH}/autograd/graph.py", "_engine_run_backward"),
            ],
            False,
        ),
        (
            [
                ("/env/lib/python3.11/threading.py", "wait"),
                ("/p/mine.py", "hook"),
                (f"{TORCH}/autograd/graph.py", "_engine_run_backward"),
            ],
            False,
        ),
        ([("/env/lib/python3.11/site-packages/other/sync.py", "synchronize"), ("/p/a.py", "f")], False),
    ],
)
def test_frames_in_user_code_are_not_waiting(frames: list[tuple[str, str]], waits: bool) -> None:
    assert is_waiting([Frame(file, 3, function) for file, function in frames]) == waits


def test_a_location_names_the_user_line_and_its_call() -> None:
    assert format_location(REDUCE) == "main (/p/train.py, line 30), in a call to all_reduce"
    assert format_location(REDUCE[2:]) == "main (/p/train.py, line 30)"
    assert format_location(REDUCE[:1]) == REDUCE[0].text()


def test_a_debugger_is_detected_in_the_stack() -> None:
    assert is_debugged(
        [Frame("/lib/python3.11/cmd.py", 126, "cmdloop"), Frame("/lib/python3.11/pdb.py", 1, "_")]
    )
    assert not is_debugged(REDUCE)
