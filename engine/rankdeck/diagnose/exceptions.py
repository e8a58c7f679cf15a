"""Translate an exception in a rank into a problem, and check whether it only reports the loss of other ranks.

torch's types are matched by name, so that nothing here imports torch. Read user_code.py first and cause.py
next.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import traceback
from collections.abc import Iterable, Iterator, Sequence
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
"""Codes of errors about a resource that the machine has run out of or that a limit denies."""
_RESOURCE_EXIT_CODES = ("too-many-processes", "disk-full", FILE_TOO_LARGE)

_TIMEOUT = re.compile(r"time[d]?[ -]?out", re.IGNORECASE)
_SHARED_MEMORY = "/dev/shm"
LOG_ADVICE = tr_noop("The full traceback is in the run's logs/{log}.")


def describe_exception(error: BaseException, rank: int) -> RankFailed:
    """Return the event that reports the exception that ended a rank; the supervisor reads this event."""
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
    """Check whether a communication error's text reports a timeout."""
    return _TIMEOUT.search(text) is not None


def last_lines(text: str) -> tuple[str, ...]:
    """Return the last nonempty lines of a text, each cut to 300 characters.

    In a traceback, library frames are folded, so that the user's own frames are among the last lines.
    """
    lines = [line.rstrip()[:300] for line in text.splitlines() if line.strip()]
    return tuple(fold_frames(lines)[-MAX_LAST_LINES:])


def tail_text(log: Path, num_bytes: int = _TAIL_BYTES) -> str:
    """Return the end of a rank's log; empty if it cannot be read."""
    try:
        return files.read_tail(log, num_bytes)[1].decode(errors="replace")
    except OSError:
        return ""


def read_last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of a rank's log; empty if there are none."""
    return last_lines(tail_text(log))


def last_resource_error(log: Path) -> str:
    """Return the last line in a log's tail that reports an exhausted resource; "" if there is none.

    The line can come from any process that writes to the log.
    """
    lines = reversed(tail_text(log).splitlines())
    lacks = (line for line in lines if (named := match_rule("", line)) and named.code in RESOURCE_CODES)
    return next(lacks, "").strip()[:_MAX_TEXT_LENGTH]


def quote_logs(logs: Iterable[Path], lines: Sequence[str]) -> tuple[Evidence, ...]:
    """Return the last of `lines` as evidence: from the first log that contains it or, if none does, from the
    first log."""
    quotes: list[tuple[Evidence, ...]] = []
    # A problem may quote another rank than the one that it blames: the rank that waited for it.
    for log in logs:
        quote = _quote_log(log, lines, f"{log.parent.name}/{log.name}")
        if quote and quote[0].line is not None:
            return quote
        quotes.append(quote)
    return quotes[0] if quotes else ()


def _quote_log(log: Path, lines: Sequence[str], path: str) -> tuple[Evidence, ...]:
    """Return the last of `lines` as evidence, with its line number in the log.

    `path` is the log's path within the run directory. The result is empty if `lines` is empty. The evidence
    has no line number if the log is too long to be read whole.
    """
    if not lines:
        return ()
    last = lines[-1].strip()
    try:
        written = files.read_bytes(log).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return (Evidence(last, path),)
    # From the end, because a log may contain the same line several times.
    numbers = (number for number in range(len(written), 0, -1) if last in written[number - 1])
    return (Evidence(last, path, next(numbers, None)),)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an allocation failed, on a device or on the host."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_named or is_refused or "can't allocate memory" in error_text(error)


def advice_for(named: RuleMatch | None, *, for_script: bool = False) -> Phrase | None:
    """Return what the error means and how to fix it; None if no rule matched or the rule has neither."""
    # A process limit (ulimit) causes the same error as a full machine, but has another fix.
    limits = {"out-of-memory": memory_limit_advice, FILE_TOO_LARGE: file_limit_advice}
    if named is not None and (limit := limits.get(named.code, lambda: None)()) is not None:
        return limit
    return None if named is None else named.advice(for_script=for_script)


def file_limit_advice() -> Phrase | None:
    """Return advice on the file size limit (`ulimit -f`); None if there is no limit."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    return phrase(
        "The file size is limited to {most}: raise the limit (ulimit -f).", most=format_bytes(limit_bytes)
    )


def memory_limit_advice() -> Phrase | None:
    """Return advice on the process's memory limit (`ulimit -v`); None if there is no limit."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    return phrase(
        "A process is limited to {most} of memory: raise the limit (ulimit -v).",
        most=format_bytes(limit_bytes),
    )


def cpu_limit_advice(used_s: float) -> Phrase | None:
    """Return advice on the CPU time limit (`ulimit -t`); None if there is no limit or `used_s` is below the
    limit."""
    # The hard limit, because it is the one that kills; the soft limit sends SIGXCPU.
    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if limit_s == resource.RLIM_INFINITY or used_s < limit_s:
        return None
    return phrase("A process is limited to {most} s of CPU time: raise the limit (ulimit -t).", most=limit_s)


def _match_error(error: BaseException, text: str) -> RuleMatch | None:
    kind = type(error).__name__
    # torch, Python and the system use different types for this, but the advice is the same.
    if is_out_of_memory(error):
        return match_rule("MemoryError", text)
    match = match_rule(kind, text)
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in _cause_chain(error)):
        # Semaphores and queues use shared memory too, and their error names no file.
        is_shared = (match is not None and match.code == "shared-memory") or _is_shared_memory_full()
        return match_rule(kind, _SHARED_MEMORY + "/" if is_shared else os.strerror(errno.ENOSPC))
    return match


def _is_shared_memory_full() -> bool:
    try:
        stats = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    # A tmpfs without a size limit reports 0 blocks and is never full.
    return stats.f_blocks > 0 and stats.f_bavail == 0


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, each once: code that re-raises a cause can make the chain circular."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        yield error
        visited.add(id(error))
        error = error.__cause__ or error.__context__


def error_text(error: BaseException) -> str:
    """Return the error's message; empty if its `__str__` raises."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def _message(error: BaseException, text: str) -> Phrase:
    """Return a message: the error's type, the first line of its text, and the code location to look at."""
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
    """Shorten a line that is too long, between words where possible."""
    if len(line) <= _MAX_TEXT_LENGTH:
        return line
    return (line[:_MAX_TEXT_LENGTH].rpartition(" ")[0] or line[:_MAX_TEXT_LENGTH]) + " ..."


def user_location(error: BaseException) -> tuple[str | None, int | None]:
    """Return the file and line of the innermost frame in user code; (None, None) if there is none.

    User code is all code outside Python, installed packages and Rankdeck.
    """
    # Innermost first: a user's frame may be called from a library that user code called.
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return frame.filename, frame.lineno
    return None, None


def _format_exception(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


# Matching an error's text against the rules: its code, its meaning, and the advice.
#
# The first of FAILURE_RULES (failure_rules.py) that matches the error's type and text wins.

UNKNOWN_ERROR = "rank-exception"
"""The code of an error that matches no rule."""
_MAX_GROUP_LENGTH = 300


@dataclass(frozen=True)
class RuleMatch:
    """A rule that matches an error, with the values of the rule's named groups in the error's text."""

    rule: FailureRule
    groups: dict[str, str]

    @property
    def code(self) -> str:
        return self.rule.code

    def advice(self, *, for_script: bool = False) -> Phrase | None:
        """Return what the error means and how to fix it; None if the rule has neither."""
        rule, groups = self.rule, self.groups
        meaning = (
            phrase(rule.meaning, **groups)
            if rule.meaning and _placeholders(rule.meaning) <= groups.keys()
            else None
        )
        template = (rule.script_advice if for_script else "") or rule.advice
        if not template:
            return meaning
        advice = phrase(template, **(groups if _placeholders(template) else {}))
        return advice if meaning is None else phrase("{says} {advice}", says=meaning, advice=advice)


def match_rule(kind: str, text: str) -> RuleMatch | None:
    """Return the first rule that matches an error.

    `kind` is the exception type's name without its module, "" if the text has no type. `text` is the whole
    error text.
    """
    for rule in FAILURE_RULES:
        match = rule.match(kind, text)
        if match is not None:
            groups = {
                key: value[:_MAX_GROUP_LENGTH].strip() for key, value in match.groupdict().items() if value
            }
            return RuleMatch(rule, groups)
    return None


def match_disk_error(text: str) -> RuleMatch:
    """Return the rule that matches the system's error for a failed write to disk."""
    return match_rule("", text) or RuleMatch(next(rule for rule in FAILURE_RULES if rule.code == DISK), {})


def is_communication_error(text: str) -> bool:
    """Check whether an error text or a log's end reports that other ranks are gone or did not arrive."""
    # A rule without an expression decides by the exception's type, which a log does not have; its empty
    # pattern would match every text.
    return any(
        rule.code == COMMUNICATION and rule.expression and rule.pattern.search(text) for rule in FAILURE_RULES
    )


def _placeholders(template: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template))
