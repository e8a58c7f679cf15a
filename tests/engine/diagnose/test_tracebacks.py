"""What a script raised is read from what Python printed, by whatever route it came."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.diagnose.tracebacks import find_exception, read_failure, thread_exception_text

_PLAIN = """step 1
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "/home/me/project/model.py", line 4, in forward
    return torch.nn.functional.linear(x, w)
  File "/env/lib/python3.12/site-packages/torch/nn/functional.py", line 2001, in linear
    return F.linear(x, w)
           ^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)
"""
_BAR = "step 1\n\r  0%|          | 0/32 [00:00<?, ?it/s]\r  3%|3         | 1/32 [00:00<00:02, 11.2it/s]"
"""Printed without a line end."""


def test_the_last_user_line_is_named() -> None:
    raised = find_exception(_PLAIN, "/home/me/project")
    assert raised is not None
    assert (raised.name, raised.file, raised.line) == ("RuntimeError", "/home/me/project/model.py", 4)
    assert raised.message == "mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("torch's prefix", "".join(f"[rank1]: {line}\n" for line in _PLAIN.splitlines())),
        ("a progress bar", _BAR + _PLAIN.partition("\n")[2] + _BAR),
        (
            "a progress bar and torch's prefix",
            _BAR + "".join(f"[rank1]: {line}\n" for line in _PLAIN.splitlines()[1:]) + _BAR,
        ),
        ("a terminal's line ends", _PLAIN.replace("\n", "\r\n")),
        (
            "colours",
            _PLAIN.replace("Traceback", "\x1b[35mTraceback").replace(
                "RuntimeError", "\x1b[1mRuntimeError\x1b[0m"
            ),
        ),
        (
            "the one that holds a group",
            "  + Exception Group "
            + "  | ".join(_PLAIN.removeprefix("step 1\n").splitlines(keepends=True))
            + "  +-+---------------- 1 ----------------\n    | ValueError: inside\n    +-----------\n",
        ),
        ("warnings afterwards", _PLAIN + "[W socket.cpp:99] destroy_process_group() was not called\n"),
        (
            "one that was ignored at the end",
            _PLAIN + "Exception ignored in: <function f>\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nTypeError: late\n',
        ),
        (
            "another one before",
            'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 1\n\n'
            "During handling of the above exception, another exception occurred:\n\n" + _PLAIN,
        ),
    ],
    ids=lambda value: value if "\n" not in value else "",
)
def test_prefixes_colours_and_progress_bars_are_ignored(change: str, text: str) -> None:
    assert find_exception(text, "/home/me/project") == find_exception(_PLAIN, "/home/me/project"), change


def test_a_loader_workers_exception_is_found() -> None:
    text = """Traceback (most recent call last):
  File "/p/train.py", line 20, in <module>
    for batch in loader:
  File "/env/lib/python3.9/site-packages/torch/utils/data/dataloader.py", line 700, in __next__
    data = self._next_data()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.9/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/p/train.py", line 7, in __getitem__
    raise ValueError("bad image")
ValueError: bad image
"""
    raised = find_exception(text)
    assert raised is not None and (raised.message, raised.line) == ("bad image", 7)


def test_a_spawned_processs_exception_is_found() -> None:
    text = """Traceback (most recent call last):
  File "/p/train.py", line 30, in <module>
    mp.spawn(work, nprocs=2)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "/p/train.py", line 12, in work
    raise MyOwn.Error("on rank 1")
__main__.MyOwn.Error: on rank 1
"""
    raised = find_exception(text)
    assert raised is not None and (raised.name, raised.message, raised.line) == ("Error", "on rank 1", 12)
    assert (raised.spawned, raised.rank) == (1, None)


@pytest.mark.parametrize(
    ("own_ranks", "expected"),
    [((0, 1), "rank 1 raised Error: on rank 1"), ((), "Process 1 of mp.spawn raised Error: on rank 1")],
)
def test_a_spawned_process_is_named(tmp_path: Path, own_ranks: tuple[int, ...], expected: str) -> None:
    log = tmp_path / "rank-0.0.out"
    log.write_text(
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n"
        "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "/p/train.py", line 12, in work\n    raise Error\nError: on rank 1\n'
    )
    failure = read_failure(0, log, folder="/p", has_several_ranks=False, own_ranks=own_ranks)
    assert failure is not None and failure.problem.message.startswith(expected)


def test_the_rank_that_torch_prints_is_named(tmp_path: Path) -> None:
    """A launcher that the script started gives its ranks' output no prefix; torch does."""
    log = tmp_path / "rank-0.0.out"
    log.write_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/p/train.py", line 12, in work\n[rank1]: ValueError: bad\n'
    )
    failure = read_failure(0, log, folder="/p", has_several_ranks=False, own_ranks=(0, 1))
    assert failure is not None and failure.problem.message.startswith("rank 1 raised ValueError: bad")
    alone = read_failure(0, log, folder="/p", has_several_ranks=False)
    assert alone is not None and alone.problem.message.startswith("The script raised ValueError")


_THREAD = """Exception in thread Thread-1 (load):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner
    self.run()
  File "/p/train.py", line 3, in load
    rows[0]
KeyError: 0

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/p/train.py", line 5, in load
    raise ValueError("bad")
ValueError: bad
"""


def test_a_threads_exception_is_not_the_cause_of_an_exit(tmp_path: Path) -> None:
    raised = find_exception(_THREAD)
    assert raised is not None and raised.is_in_thread
    assert raised.summary() == "ValueError: bad (in a thread; /p/train.py, line 5)"
    main = find_exception(_PLAIN + _THREAD, "/home/me/project")
    assert main == find_exception(_PLAIN, "/home/me/project")
    log = tmp_path / "rank-0.0.err"
    log.write_text(_THREAD)
    assert read_failure(0, log, folder="", has_several_ranks=False) is None
    assert thread_exception_text(log, "") == raised.summary()
    unended_failure = read_failure(0, log, folder="", has_several_ranks=True, has_ended=False)
    assert (
        unended_failure is not None and unended_failure.problem.message == f"rank 0 raised {raised.summary()}"
    )
    log.write_text(_PLAIN + _THREAD)
    assert thread_exception_text(log, "") == thread_exception_text(tmp_path / "gone", "") == ""


_MISMATCH = "mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)"
_OF_TORCHRUN = """E1128 19:29:27.062 171 api.py:1002] failed (exitcode: 1) local_rank: 1 of binary: python
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
train.py FAILED
"""


def test_the_exception_behind_a_launchers_error_is_found() -> None:
    """A script that calls torchrun: what a rank raised, not a rank that lost it, nor torchrun."""
    raised, lost = (
        "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())
        for rank, text in ((1, _PLAIN), (0, _PLAIN.replace(_MISMATCH, "Connection closed by peer")))
    )
    assert find_exception(raised + lost + _OF_TORCHRUN) == find_exception(_PLAIN)
    assert find_exception(lost + _OF_TORCHRUN) == find_exception(lost)
    alone = find_exception(_OF_TORCHRUN)
    assert alone is not None and alone.name == "ChildFailedError"


def test_text_without_a_traceback_is_not_an_exception() -> None:
    for text in ("", "ValueError: printed\n", 'Traceback (most recent call last):\n  File "x.py", line 1\n'):
        assert find_exception(text) is None


@pytest.mark.parametrize(
    ("line", "code", "communication"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "out-of-memory", False),
        (
            "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer",
            "communication",
            True,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: x", "communication", True),
        ("ConnectionError: HTTPSConnectionPool", "rank-exception", False),
        ("OSError: [Errno 28] No space left on device", "disk-full", False),
    ],
)
def test_a_failure_has_code_rank_and_location(
    tmp_path: Path, line: str, code: str, communication: bool
) -> None:
    log = tmp_path / "rank-1.0.err"
    log.write_text(f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{line}\n')
    failure = read_failure(1, log, folder="/p", has_several_ranks=True)
    assert failure is not None
    assert (failure.problem.code, failure.is_communication, failure.problem.rank) == (code, communication, 1)
    assert failure.problem.headline().startswith("rank 1 raised ")
    assert failure.problem.headline().endswith("(/p/train.py, line 3)")


def test_an_interrupted_script_is_not_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.0.err"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyboardInterrupt\n')
    assert read_failure(0, log, folder="", has_several_ranks=False) is None
    assert read_failure(0, tmp_path / "gone", folder="", has_several_ranks=False) is None


def test_a_message_longer_than_the_log_tail_is_found(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.0.err"
    raised = 'Traceback (most recent call last):\n  File "/p/t.py", line 3, in f\nValueError: bad batch 17 '
    log.write_text(raised + "9" * 1_000_000 + "\n")
    failure = read_failure(0, log, folder="", has_several_ranks=False)
    assert failure is not None and failure.problem.line == 3
    assert failure.problem.message.startswith("The script raised ValueError: bad batch 17")
    assert len(failure.problem.message) < 700
