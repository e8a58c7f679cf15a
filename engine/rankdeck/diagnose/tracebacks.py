"""Parse the end of a rank's log: which exception its script raised, and where in the user's code.

A script needs no instrumentation for this: the traceback that Python prints is the only source. Read
exceptions.py first and cause.py next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.exceptions import (
    LOG_ADVICE,
    UNKNOWN_ERROR,
    advice_for,
    last_lines,
    match_rule,
    shorten_line,
    tail_text,
)
from rankdeck.diagnose.stacks import Frame, parse_crash
from rankdeck.diagnose.user_code import FRAME, is_user_file
from rankdeck.events import RankFailed

TAIL_BYTES = 1 << 17
_LONG_TAIL_BYTES = 1 << 23
"""Number of bytes to read if the last `TAIL_BYTES` of the log contain no complete traceback."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""Prefix that torch prints before every line once a process group exists."""
_PRINTED_RANK = re.compile(r"^\[rank(\d+)\]: ")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error:$")
"""Line that torch.multiprocessing.spawn prints before the traceback of a process that it started."""
_PROGRESS_BAR = re.compile(
    r"\r[^\r\n]*?(?=(?:\[rank\d+\]: )?Traceback \(most recent call last\):$)", re.MULTILINE
)
"""A progress bar on the same line as a traceback's header: the bar does not end with a newline."""
_GROUP_PREFIX = re.compile(r"^  [+|] (?:Exception Group (?=Traceback))?", re.MULTILINE)
"""Prefix of an exception group's own lines; the pattern does not match lines of the exceptions inside it."""
_HEADER = re.compile(r"^(?:Original )?Traceback \(most recent call last\):$")
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_NOT_FATAL = ("Exception ignored in", "--- Logging error ---")
"""Texts that Python prints before the traceback of an exception that ends neither a thread nor the
process."""
_THREAD_PREFIX = "Exception in thread "
"""Text that Python prints before the traceback of an exception that ends only a thread, not the process."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LAUNCHER_ERRORS = ("ChildFailedError", "CalledProcessError")
"""Exceptions that a launcher started by the script (torchrun, accelerate) raises when one of its processes
fails."""
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_MAX_MESSAGE_LINES = 40
"""Maximum number of lines read from a message."""


@dataclass(frozen=True)
class PrintedException:
    """An exception that Python has printed.

    `message` is the first nonempty line of `full_text`. `file` and `line` are those of the innermost frame in
    the user's own code, or of the innermost frame if no frame is in user code. `is_in_thread`: the exception
    ended only a thread. `rank`: the rank that torch printed; `spawned`: the index of a process that mp.spawn
    started.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    is_in_thread: bool = False
    full_text: str = field(default="", compare=False)
    rank: int | None = field(default=None, compare=False)
    spawned: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the exception's type, without the module."""
        return self.type.rpartition(".")[2]

    def summary(self) -> Phrase:
        """Return a summary such as 'ValueError: bad batch (/p/train.py, line 3)'."""
        what = f"{self.name}: {shorten_line(self.message)}" if self.message else self.name
        at = {"file": self.file, "line": self.line}
        if self.is_in_thread:
            if self.file:
                return phrase("{error} (in a thread; {file}, line {line})", error=what, **at)
            return phrase("{error} (in a thread).", error=what)
        if self.file:
            return phrase("{error} ({file}, line {line})", error=what, **at)
        return phrase("{error}.", error=what)


def find_exception(text: str, folder: str = "") -> PrintedException | None:
    """Return the last exception in the text. An exception that ended only a thread counts only if there is no
    other exception.

    Relative file names are resolved against `folder`.
    """
    # Colours first: escape sequences would keep the other patterns from matching.
    text = _PROGRESS_BAR.sub("\n", _COLOURS.sub("", text).replace("\r\n", "\n"))
    prefixed_lines = text.split("\n")
    lines = _GROUP_PREFIX.sub("", _RANK_PREFIX.sub("", text)).split("\n")
    exceptions: list[PrintedException] = []
    of_thread, before = None, ""
    for number, line in enumerate(lines):
        if not _HEADER.match(line):
            continue
        if not any(previous.startswith(_CHAINED) for previous in lines[max(0, number - 2) : number]):
            # A chained traceback belongs to the one above it, whose preceding line still applies.
            before = lines[number - 1] if number else ""
        if before.startswith(_THREAD_PREFIX):
            of_thread = _parse_exception(lines, number + 1, folder) or of_thread
        elif not before.startswith(_NOT_FATAL) and (raised := _parse_exception(lines, number + 1, folder)):
            rank, spawned = _PRINTED_RANK.match(prefixed_lines[number]), _SPAWNED.match(before)
            exceptions.append(
                replace(raised, rank=rank and int(rank[1]), spawned=spawned and int(spawned[1]))
            )
    thread = replace(of_thread, is_in_thread=True) if of_thread is not None else None
    return _root_cause(exceptions) or _syntax_error(lines, folder) or thread


def _root_cause(exceptions: list[PrintedException]) -> PrintedException | None:
    """Return the last exception. If a launcher raised it to report a failed process, return the last
    exception that the launcher's processes raised.

    Of their exceptions, one that merely reports lost ranks is returned only if there are no others.
    """
    script_exceptions = [raised for raised in exceptions if raised.name not in _LAUNCHER_ERRORS]
    if not script_exceptions or exceptions[-1].name not in _LAUNCHER_ERRORS:
        return exceptions[-1] if exceptions else None
    causes = [raised for raised in script_exceptions if not _is_about_others(raised)]
    return (causes or script_exceptions)[-1]


def _is_about_others(raised: PrintedException) -> bool:
    named = match_rule(raised.name, raised.full_text)
    return named is not None and named.rule.is_about_others


def thread_exception_text(log: Path, folder: str) -> str:
    """Return a summary of the last exception in the log if that exception ended only a thread; otherwise an
    empty string."""
    raised = find_exception(tail_text(log, TAIL_BYTES), folder)
    return raised.summary() if raised is not None and raised.is_in_thread else ""


def read_failure(
    rank: int,
    log: Path,
    *,
    folder: str,
    has_several_ranks: bool,
    has_ended: bool = True,
    own_ranks: Collection[int] = (),
) -> RankFailed | None:
    """Return the exception that ended a rank, read from its stderr; None if there is none.

    If the rank is alive, also return an exception that ended only a thread: it may be why the rank hangs.
    `own_ranks`: ranks that the script has started itself.
    """
    raised, tail = None, ""
    # A long tail is read only if the short one has no complete traceback: it costs up to 8 MiB.
    for num_bytes in (TAIL_BYTES, _LONG_TAIL_BYTES):
        try:
            tail = files.read_tail(log, num_bytes)[1].decode(errors="replace")
            # The log's last write is the best known time of the exception; find_cause blames the earliest
            # one.
            said_at = log.stat().st_mtime
        except OSError:
            return None
        raised = find_exception(tail, folder)
        # A short tail is the whole log: reading more would find nothing else.
        if raised is not None or len(tail) < TAIL_BYTES:
            break
    # Both are ways to stop a script, not failures.
    if raised is None or raised.name in ("SystemExit", "KeyboardInterrupt"):
        return None
    if raised.is_in_thread and has_ended:
        return None
    named = match_rule(raised.name, raised.full_text)
    message = _failure_message(raised, rank if has_several_ranks else None, own_ranks)
    problem = Problem(
        UNKNOWN_ERROR if named is None else named.code,
        message,
        path=raised.file,
        line=raised.line,
        advice=advice_for(named, for_script=True) or phrase(LOG_ADVICE, log=log.name),
        rank=rank if has_several_ranks else None,
        last_lines=last_lines(_RANK_PREFIX.sub("", _COLOURS.sub("", tail))),
    )
    return RankFailed(
        rank=rank,
        problem=problem,
        is_communication=named is not None and named.rule.is_about_others,
        t=said_at,
    )


def _failure_message(raised: PrintedException, rank: int | None, own_ranks: Collection[int]) -> Phrase:
    """Return a message that names the rank, if there are several, or the process that mp.spawn started."""
    error = raised.summary()
    if rank is None and len(own_ranks) > 1:
        # mp.spawn passes each process its index, which scripts use as the rank.
        rank = raised.spawned if raised.spawned in own_ranks else raised.rank
    if rank is not None:
        return phrase("rank {rank} raised {error}", rank=rank, error=error)
    if raised.spawned is not None:
        return phrase("Process {number} of mp.spawn raised {error}", number=raised.spawned, error=error)
    return phrase("The script raised {error}", error=error)


def crash_frames(log: Path) -> Sequence[Frame]:
    """Return the stack that faulthandler wrote to a rank's stack log when a signal ended the rank."""
    return parse_crash(tail_text(log, TAIL_BYTES))


def was_exiting(problem: Problem) -> bool:
    """Check whether a C++ thread aborted the process only after `problem` had ended the script."""
    lines = [_RANK_PREFIX.sub("", line) for line in problem.last_lines[-2:]]
    return (
        len(lines) == 2
        and lines[1].startswith("terminate called ")
        and (raised := _RAISED.match(lines[0])) is not None
        and f" raised {raised['type'].rpartition('.')[2]}" in problem.message
    )


def _parse_exception(lines: list[str], number: int, folder: str) -> PrintedException | None:
    """Parse the exception whose frames start at line `number`."""
    frames: list[tuple[str, int]] = []
    while number < len(lines) and (lines[number].startswith(" ") or not lines[number]):
        match = FRAME.match(lines[number])
        if match:
            frames.append((match["file"], int(match["line"])))
        number += 1
    raised = _RAISED.match(lines[number]) if number < len(lines) else None
    if raised is None:
        return None
    candidates = [frame for frame in frames if is_user_file(frame[0])] or frames
    file, line = candidates[-1] if candidates else (None, None)
    message = _message(lines, number, raised["message"])
    return PrintedException(
        raised["type"], message, _absolute_path(file, folder), line, full_text=_full_text(lines, number)
    )


def _message(lines: list[str], number: int, first: str | None) -> str:
    """Return the message of the exception on line `number`: `first` (the text after the exception's type) if
    it is not empty, else the next nonempty line. Return an empty string if `first` is None."""
    if first:
        return first.strip()
    following = (line.strip() for line in lines[number + 1 : number + 6])
    return next((line for line in following if line), "") if first is not None else ""


def _full_text(lines: list[str], number: int) -> str:
    """Return the whole message that starts at line `number`, up to an empty line or the next traceback."""
    rest = lines[number : number + _MAX_MESSAGE_LINES]
    end = next((at for at, line in enumerate(rest) if not line or _HEADER.match(line)), len(rest))
    return "\n".join([rest[0].partition(": ")[2], *rest[1:end]])


def _syntax_error(lines: list[str], folder: str) -> PrintedException | None:
    """Find a script's syntax error, which Python prints without a traceback header."""
    for number in range(len(lines) - 1, -1, -1):
        raised = _RAISED.match(lines[number])
        if raised is None or raised["type"] not in _SYNTAX_ERRORS:
            continue
        # Between the file and the error Python prints the source line and carets below it.
        for before in range(number - 1, max(-1, number - 6), -1):
            match = FRAME.match(lines[before])
            if match:
                file = _absolute_path(match["file"], folder)
                return PrintedException(raised["type"], raised["message"] or "", file, int(match["line"]))
    return None


def _absolute_path(file: str | None, folder: str) -> str | None:
    return file if file is None or file.startswith("<") else os.path.normpath(Path(folder, file))
