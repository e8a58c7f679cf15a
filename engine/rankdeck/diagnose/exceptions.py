"""An exception in a rank -> a problem in words, and whether it only says that other ranks have gone.

torch's own types are known by their names, so that nothing here imports torch. Read own_code.py before and
cause.py next.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.own_code import fold, is_own
from rankdeck.events import RankFailed

NUM_LAST_LINES = 20
_LONGEST = 500

# What gloo, NCCL and the store say when another rank has closed, died or not arrived. A person's own
# ConnectionError (a download in a data factory) reads differently.
_COMMUNICATION = re.compile(
    r"gloo/|\bgloo\b.*(?:timeout|closed|failed)|Connection closed by peer|Timed out (?:waiting|after)"
    r"|NCCL (?:error|operation|communicator)|nccl\w*Error|Watchdog caught collective|wait timeout"
    r"|ProcessGroup(?:NCCL|Gloo)|TCPStore|c10d|recvValue failed|sendBytes failed|monitored ?barrier"
    r"|Rank \d+ successfully reached",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r"time[d]?[ -]?out", re.IGNORECASE)
_SHARED_MEMORY = "/dev/shm"
_OF_SHARED_MEMORY = re.compile(
    r"shared memory|bus error|/dev/shm/|unable to write to file </?torch_", re.IGNORECASE
)
_COMMUNICATION_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError"}

IN_LOG = marked("The whole traceback is in logs/{log} of the run.")
_ADVICE = {
    "out-of-memory": phrase(
        "Lower train.global_batch, raise train.accumulate, or set train.activation_checkpointing = true."
    ),
    "disk-full": phrase("Free space on the disk, then run again."),
    "unused-parameters": phrase(
        "Set strategy.find_unused_parameters = true, or take what is not used out of the model."
    ),
    "shared-memory": phrase("Set data.workers = 0, or give /dev/shm more room."),
}


def describe(error: BaseException, rank: int) -> RankFailed:
    """What a rank says of the exception that ends it, as the event that the supervisor reads."""
    if isinstance(error, RankdeckError):
        lines = last_lines(_formatted(error.__cause__)) if error.__cause__ else error.problem.last_lines
        problem = msgspec.structs.replace(error.problem, rank=rank, last_lines=lines)
        return RankFailed(rank=rank, problem=problem, exit_code=error.exit_code)
    text = str(error).strip()
    code = _code(error, text)
    file, line = own_place(error)
    problem = Problem(
        code,
        _message(error, text),
        path=file,
        line=line,
        advice=advice_for(code) or phrase(IN_LOG, log=f"rank-{rank}.*.err"),
        rank=rank,
        last_lines=last_lines(_formatted(error)),
    )
    return RankFailed(
        rank=rank,
        problem=problem,
        exit_code=3 if code == "disk-full" else 1,
        is_communication=code == "communication",
    )


def is_communication(text: str) -> bool:
    """Whether the words of an error, or the end of a log, speak of ranks that have gone or not arrived."""
    return _COMMUNICATION.search(text) is not None


def is_timeout(text: str) -> bool:
    """Whether the words of a communication error say that something did not come in time."""
    return _TIMEOUT.search(text) is not None


def last_lines(text: str) -> tuple[str, ...]:
    """The last lines that say something, each at most 300 characters; of a traceback the frames of others are
    folded, so that the person's own are among the last.
    """
    lines = [line.rstrip()[:300] for line in text.splitlines() if line.strip()]
    return tuple(fold(lines)[-NUM_LAST_LINES:])


def read_last_lines(log: Path, num_bytes: int = 16384) -> tuple[str, ...]:
    """The last lines of a rank's log; empty where there are none."""
    try:
        return last_lines(files.read_tail(log, num_bytes)[1].decode(errors="replace"))
    except OSError:
        return ()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or of the host."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_named or is_refused or "can't allocate memory" in str(error)


def advice_for(code: str) -> Phrase | None:
    """What to do next; what a process may take is looked at where it is the reason (`ulimit -v`)."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if code == "out-of-memory" and most != resource.RLIM_INFINITY:
        return phrase(
            "A process may take {most} here: raise that limit (ulimit -v).", most=format_bytes(most)
        )
    return _ADVICE.get(code)


def _code(error: BaseException, text: str) -> str:
    name = type(error).__name__
    if is_out_of_memory(error):
        return "out-of-memory"
    if _OF_SHARED_MEMORY.search(text):
        return "shared-memory"
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in _causes(error)):
        # A semaphore or a queue lies there too, and its error names no file.
        return "shared-memory" if _is_shared_memory_full() else "disk-full"
    if "Expected to have finished reduction in the prior iteration" in text:
        return "unused-parameters"
    about_ranks = name in _COMMUNICATION_TYPES or (isinstance(error, RuntimeError) and is_communication(text))
    return "communication" if about_ranks else "rank-exception"


def _is_shared_memory_full() -> bool:
    try:
        told = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return told.f_blocks > 0 and told.f_bavail == 0


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _message(error: BaseException, text: str) -> Phrase:
    """Type and first line; the place in the code where a person can look."""
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    file, line = own_place(error)
    if file is None and frames:
        file, line = frames[-1].filename, frames[-1].lineno
    if not text:
        if file:
            return phrase("{error}: no message ({file}, line {line})", error=kind, file=file, line=line)
        return phrase("{error}: no message", error=kind)
    first = shortened(text.splitlines()[0].strip())
    if file:
        return phrase("{error}: {text} ({file}, line {line})", error=kind, text=first, file=file, line=line)
    return phrase("{error}: {text}", error=kind, text=first)


def shortened(line: str) -> str:
    """Cut between words where it is too long, and has some."""
    if len(line) <= _LONGEST:
        return line
    return (line[:_LONGEST].rpartition(" ")[0] or line[:_LONGEST]) + " ..."


def own_place(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame that belongs to neither Python, an installed package nor Rankdeck:
    a person's own code; (None, None) where there is none.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return frame.filename, frame.lineno
    return None, None


def _formatted(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))
