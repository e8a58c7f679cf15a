"""An exception becomes words; one that is only about other ranks is known as such."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankdeck
from rankdeck.base.errors import DataError, TrainingError
from rankdeck.diagnose.exceptions import (
    describe_exception,
    is_communication_error,
    last_lines,
    read_last_lines,
    user_location,
)
from rankdeck.events import RankFailed, decode, encode

COMMUNICATION = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30350.",
    "[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 14000ms for recv operation",
    "[c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111 - Connection refused).",
    "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for "
    "60001 milliseconds before timing out.",
    "Rank 1 failed to pass monitoredBarrier in 3000 ms",
    "wait timeout after 60000ms, keys: /default_pg/0//cuda//0",
]


def failure_after_raise(error: BaseException) -> RankFailed:
    """What a rank says of an error that was really raised."""
    try:
        raise error
    except BaseException as caught:
        return describe_exception(caught, 1)


@pytest.mark.parametrize("text", COMMUNICATION)
def test_torch_messages_about_lost_ranks_are_communication_errors(text: str) -> None:
    assert is_communication_error(text)
    assert failure_after_raise(RuntimeError(text)).is_communication


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad batch 17"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (16x64 and 65x10)"),
        ConnectionError("https://example.org timed out"),
        KeyError("NCCL error"),
    ],
)
def test_user_errors_are_not_communication_errors(error: Exception) -> None:
    failure = failure_after_raise(error)
    assert not failure.is_communication
    assert failure.problem.code not in ("communication", "unreachable")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise TypeError("even its words fail")


def test_an_unprintable_error_shows_its_type() -> None:
    failure = failure_after_raise(UnprintableError())
    assert failure.problem.code == "rank-exception"
    assert "UnprintableError: no message" in failure.problem.message


def test_a_cycle_of_causes_is_visited_once() -> None:
    outer, inner = RuntimeError("outer"), ValueError("bad batch 17")
    inner.__context__, outer.__context__ = outer, inner
    assert failure_after_raise(inner).problem.message.startswith("ValueError: bad batch 17")


def test_messages_that_are_not_utf_8_are_encoded() -> None:
    failure = decode(encode(failure_after_raise(ValueError("bad batch caf\udce9"))))
    assert isinstance(failure, RankFailed)
    assert failure.problem.message.startswith("ValueError: bad batch caf?")


def test_torch_error_types_are_matched_by_name() -> None:
    assert failure_after_raise(type("DistBackendError", (RuntimeError,), {})("something")).is_communication


def test_a_message_has_type_text_location_and_last_lines() -> None:
    problem = failure_after_raise(ValueError("bad batch 17\nsecond line")).problem
    assert problem.message.startswith("ValueError: bad batch 17 (")
    assert Path(__file__).name in problem.message
    assert problem.rank == 1
    assert problem.last_lines[-2:] == ("ValueError: bad batch 17", "second line")


def test_a_long_message_ends_with_a_whole_word() -> None:
    message = failure_after_raise(ValueError("word " * 200)).problem.message
    assert "word word ... (" in message and len(message) < 700
    assert "xxxx ... (" in failure_after_raise(ValueError("x" * 1000)).problem.message


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (MemoryError(), "out-of-memory", 1),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), "out-of-memory", 1),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 281474976710656 bytes"),
            "out-of-memory",
            1,
        ),
        (RuntimeError("DataLoader worker (pid 1) is killed by signal: Bus error."), "shared-memory", 1),
        (RuntimeError("unable to write to file </torch_7_1_0>: No space left on device"), "shared-memory", 1),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out-of-memory", 1),
        (
            RuntimeError("Expected to have finished reduction in the prior iteration before starting"),
            "unused-parameters",
            1,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full", 3),
        (DataError("no such file"), "data", 2),
        (TrainingError("The loss became NaN.", code="loss-not-finite"), "loss-not-finite", 1),
    ],
)
def test_each_error_has_its_code_and_exit_code(error: Exception, code: str, exit_code: int) -> None:
    failure = failure_after_raise(error)
    assert (failure.problem.code, failure.exit_code, failure.is_communication) == (code, exit_code, False)


_FULL_SHARED_MEMORY = """
import multiprocessing
from rankdeck.diagnose.exceptions import describe_exception
try:
    multiprocessing.Queue()
except OSError as error:
    print(describe_exception(error, 0).problem.code)
"""


def test_full_shared_memory_is_not_a_full_disk() -> None:
    """A semaphore's error names no file. In a mount namespace, where that may be made."""
    full = "mount -t tmpfs -o size=64k none /dev/shm && head -c 1M /dev/zero > /dev/shm/x 2> /dev/null; "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", full + 'exec "$0" -c "$1"', sys.executable, _FULL_SHARED_MEMORY],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(rankdeck.__file__).parents[1])},
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout == "shared-memory\n", done.stderr


def test_a_memory_limit_is_named() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); " + (
        "from rankdeck.diagnose.exceptions import describe_exception; "
        "print(describe_exception(MemoryError(), 0).problem.advice)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "6.0 GiB" in done.stdout and "ulimit -v" in done.stdout


def test_the_last_lines_come_from_the_users_exception() -> None:
    try:
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError as cause:
            raise DataError("data.use = 'mine:make' raised ZeroDivisionError") from cause
    except DataError as error:
        problem = describe_exception(error, 0).problem
    assert problem.code == "data"
    assert problem.last_lines[-1] == "ZeroDivisionError: division by zero"


def test_the_event_survives_encoding() -> None:
    failure = failure_after_raise(ValueError("bad batch 17"))
    assert decode(encode(failure)) == failure


def test_last_lines_are_limited_and_not_blank(tmp_path: Path) -> None:
    text = "\n\n".join(f"line {index}" for index in range(100)) + "\n\n"
    assert last_lines(text) == tuple(f"line {index}" for index in range(80, 100))
    log = tmp_path / "rank-0.0.err"
    assert read_last_lines(log) == ()
    log.write_text("x" * 100_000 + "\nthe end\n", encoding="utf-8")
    assert read_last_lines(log)[-1] == "the end"
    assert max(map(len, read_last_lines(log))) == 300


def test_an_error_in_another_environment_names_the_calling_line(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "site-packages" / "a_package_elsewhere.py"
    package.parent.mkdir(parents=True)
    package.write_text("def fail():\n    raise ValueError('no')\n")
    called: dict[str, Any] = {}
    exec(compile(package.read_text(), str(package), "exec"), called)
    with pytest.raises(ValueError) as caught:
        called["fail"]()
    assert user_location(caught.value)[0] == __file__


def test_the_innermost_user_line_is_named() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError) as caught:
        fails()
    assert user_location(caught.value) == (__file__, fails.__code__.co_firstlineno + 1)
