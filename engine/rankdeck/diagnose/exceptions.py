"""An exception in a rank -> a problem in words, and whether it only says that other ranks have gone.

torch's own types are known by their names, so that nothing here imports torch. Read user_code.py before and
cause.py next.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import Evidence, Problem, RankdeckError
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.failure_rules import COMMUNICATION, DISK, FAILURE_RULES, FailureRule
from rankdeck.diagnose.user_code import fold_frames, is_user_file
from rankdeck.events import RankFailed

MAX_LAST_LINES = 20
_MAX_TEXT_LENGTH = 500
_TAIL_BYTES = 16384
FILE_TOO_LARGE = "file-too-large"
RESOURCE_CODES = ("too-many-files", "too-many-processes", "shared-memory", "disk-full", FILE_TOO_LARGE)
"""Codes of what the machine lacks, or may not give."""
_RESOURCE_EXIT_CODES = ("too-many-processes", "disk-full", FILE_TOO_LARGE)

_TIMEOUT = re.compile(r"time[d]?[ -]?out", re.IGNORECASE)
_SHARED_MEMORY = "/dev/shm"
LOG_ADVICE = tr_noop("The whole traceback is in logs/{log} of the run.")


def describe_exception(error: BaseException, rank: int) -> RankFailed:
    """What a rank says of the exception that ends it, as the event that the supervisor reads."""
    if isinstance(error, RankdeckError):
        lines = (
            last_lines(_format_exception(error.__cause__)) if error.__cause__ else error.problem.last_lines
        )
        problem = msgspec.structs.replace(error.problem, rank=rank, last_lines=lines)
        return RankFailed(rank=rank, problem=problem, exit_code=error.exit_code)
    text = error_text(error)
    named = _match_error(error, text)
    file, line = user_location(error)
    problem = Problem(
        UNKNOWN_ERROR if named is None else named.code,
        _message(error, text),
        path=file,
        line=line,
        advice=advice_for(named) or phrase(LOG_ADVICE, log=f"rank-{rank}.*.err"),
        rank=rank,
        last_lines=last_lines(_format_exception(error)),
    )
    return RankFailed(
        rank=rank,
        problem=problem,
        exit_code=3 if problem.code in _RESOURCE_EXIT_CODES else 1,
        is_communication=named is not None and named.rule.is_about_others,
    )


def is_timeout(text: str) -> bool:
    """Whether the words of a communication error say that something did not come in time."""
    return _TIMEOUT.search(text) is not None


def last_lines(text: str) -> tuple[str, ...]:
    """The last lines that say something, each at most 300 characters; of a traceback the frames of others are
    folded, so that the person's own are among the last.
    """
    lines = [line.rstrip()[:300] for line in text.splitlines() if line.strip()]
    return tuple(fold_frames(lines)[-MAX_LAST_LINES:])


def tail_text(log: Path, num_bytes: int = _TAIL_BYTES) -> str:
    """The end of a rank's log; empty where it cannot be read."""
    try:
        return files.read_tail(log, num_bytes)[1].decode(errors="replace")
    except OSError:
        return ""


def read_last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a rank's log; empty where there are none."""
    return last_lines(tail_text(log))


def last_resource_error(log: Path) -> str:
    """The last line at a log's end that says what the machine lacks, whichever process wrote it, or ""."""
    lines = reversed(tail_text(log).splitlines())
    lacks = (line for line in lines if (named := match_rule("", line)) and named.code in RESOURCE_CODES)
    return next(lacks, "").strip()[:_MAX_TEXT_LENGTH]


def quote_log(log: Path, lines: Sequence[str], path: str) -> tuple[Evidence, ...]:
    """The last of a log's last lines and where it stands there; `path` is what the log is called in the run.
    Nothing where there are no lines; without a number where the log is too long to be counted through.
    """
    if not lines:
        return ()
    last = lines[-1].strip()
    try:
        written = files.read_bytes(log).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return (Evidence(last, path),)
    numbers = (number for number in range(len(written), 0, -1) if last in written[number - 1])
    return (Evidence(last, path, next(numbers, None)),)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or of the host."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_named or is_refused or "can't allocate memory" in error_text(error)


def advice_for(named: RuleMatch | None, *, for_script: bool = False) -> Phrase | None:
    """What it means and what to do next; None where only the log says more."""
    limits = {"out-of-memory": memory_limit_advice, FILE_TOO_LARGE: file_limit_advice}
    if named is not None and (limit := limits.get(named.code, lambda: None)()) is not None:
        return limit
    return None if named is None else named.advice(for_script=for_script)


def file_limit_advice() -> Phrase | None:
    """What to do about the most that a file may have (`ulimit -f`); None where there is no limit."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return None
    return phrase("A file may have {most} here: raise that limit (ulimit -f).", most=format_bytes(most))


def memory_limit_advice() -> Phrase | None:
    """What to do about the most that a process may take (`ulimit -v`); None where there is no limit."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return None
    return phrase("A process may take {most} here: raise that limit (ulimit -v).", most=format_bytes(most))


def cpu_limit_advice(used_s: float) -> Phrase | None:
    """What to do about the most time on a CPU that a process may take (`ulimit -t`); None where `used_s` is
    less."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if most == resource.RLIM_INFINITY or used_s < most:
        return None
    return phrase("A process may use {most} s of a CPU here: raise that limit (ulimit -t).", most=most)


def _match_error(error: BaseException, text: str) -> RuleMatch | None:
    kind = type(error).__name__
    if is_out_of_memory(error):
        return match_rule("MemoryError", text)
    found = match_rule(kind, text)
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in _cause_chain(error)):
        # A semaphore or a queue lies in shared memory, too, and its error names no file.
        is_shared = (found is not None and found.code == "shared-memory") or _is_shared_memory_full()
        return match_rule(kind, _SHARED_MEMORY + "/" if is_shared else os.strerror(errno.ENOSPC))
    return found


def _is_shared_memory_full() -> bool:
    try:
        told = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return told.f_blocks > 0 and told.f_bavail == 0


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those behind it, each once: code that raises a cause anew makes a circle of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def error_text(error: BaseException) -> str:
    """What it says of itself; empty where even that fails."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def _message(error: BaseException, text: str) -> Phrase:
    """Type and first line; the place in the code where a person can look."""
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    file, line = user_location(error)
    if file is None and frames:
        file, line = frames[-1].filename, frames[-1].lineno
    if not text:
        if file:
            return phrase("{error}: no message ({file}, line {line})", error=kind, file=file, line=line)
        return phrase("{error}: no message", error=kind)
    first = shorten_line(text.splitlines()[0].strip())
    if file:
        return phrase("{error}: {text} ({file}, line {line})", error=kind, text=first, file=file, line=line)
    return phrase("{error}: {text}", error=kind, text=first)


def shorten_line(line: str) -> str:
    """Cut between words where it is too long, and has some."""
    if len(line) <= _MAX_TEXT_LENGTH:
        return line
    return (line[:_MAX_TEXT_LENGTH].rpartition(" ")[0] or line[:_MAX_TEXT_LENGTH]) + " ..."


def user_location(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame that belongs to neither Python, an installed package nor Rankdeck:
    a person's own code; (None, None) where there is none.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return frame.filename, frame.lineno
    return None, None


def _format_exception(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


# What an error's own words mean, as data: the code, what it says in plain words, and what to do next.
#
# The first of RULES (failure_rules.py) that an error's type and text fit names it.

UNKNOWN_ERROR = "rank-exception"
"""The code of an error that no rule knows."""
_MAX_GROUP_LENGTH = 300


@dataclass(frozen=True)
class RuleMatch:
    """A rule that fits, with what it found in the text."""

    rule: FailureRule
    groups: dict[str, str]

    @property
    def code(self) -> str:
        return self.rule.code

    def advice(self, *, for_script: bool = False) -> Phrase | None:
        """What it means and what to do next; None where only the log says more."""
        rule, found = self.rule, self.groups
        says = (
            phrase(rule.meaning, **found)
            if rule.meaning and _placeholders(rule.meaning) <= found.keys()
            else None
        )
        advice = (rule.script_advice if for_script else "") or rule.advice
        if not advice:
            return says
        return phrase(advice) if says is None else phrase("{says} {advice}", says=says, advice=phrase(advice))


def match_rule(kind: str, text: str) -> RuleMatch | None:
    """The first rule that fits. `kind` is the name of the exception's type without its module, "" where a
    process said it without one; `text` its whole text.
    """
    for rule in FAILURE_RULES:
        found = rule.match(kind, text)
        if found is not None:
            groups = {
                key: said[:_MAX_GROUP_LENGTH].strip() for key, said in found.groupdict().items() if said
            }
            return RuleMatch(rule, groups)
    return None


def match_disk_error(text: str) -> RuleMatch:
    """What the system says of a disk that takes nothing."""
    return match_rule("", text) or RuleMatch(next(rule for rule in FAILURE_RULES if rule.code == DISK), {})


def is_communication_error(text: str) -> bool:
    """Whether the words of an error, or the end of a log, speak of ranks that have gone or not arrived."""
    return any(
        rule.code == COMMUNICATION and rule.expression and rule.pattern.search(text) for rule in FAILURE_RULES
    )


def _placeholders(template: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template))
