"""Where the ranks of a living run stand: each is asked by a signal and answers into files of the run's logs,
even from inside a blocked collective.

    logs/rank-<r>.<attempt>.stacks    appended to by faulthandler
    logs/rank-<r>.<attempt>.calls     written anew: the collectives that the rank has come to

Watches ask when nobody makes progress, `rankdeck stacks` at any time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.phrases import Phrase
from rankdeck.diagnose.stacks import CollectiveCall, Frame, calls_of, current, parse_stack, work_of
from rankdeck.launch.processes import (
    environment_of,
    is_running,
    is_suspended,
    is_traced,
    signal_handled,
)
from rankdeck.rundir import RunDir, events_from_end

_ANSWERED_S = 0.5
"""A script tells its collectives within a quarter of a second."""
_POLL_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What a rank wrote: `text` is faulthandler's own report of all threads, `work` what it has begun last of
    a microbatch."""

    text: str = ""
    frames: list[Frame] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
    work: Phrase | None = None

    @property
    def call(self) -> CollectiveCall | None:
        """The collective that it is in."""
        return current(self.calls)


@dataclass(frozen=True)
class RankStack:
    """Where one rank stands. `answer` is empty for one that has not answered; `why` says why it was not
    asked: "suspended", "debugger", "ended" or "unheard" (it listens to no signal)."""

    rank: int
    pid: int
    answer: Answer = Answer()
    why: str | None = None


def stacks_of(run: RunDir) -> list[RankStack]:
    """Of every rank that has begun in the run's latest attempt."""
    attempt = run.next_attempt() - 1
    found, asked = {}, dict[int, Callable[[], object]]()
    for started in _started(run, attempt):
        number = started.stack_signal
        if run.script() is None:
            number = signal.SIGUSR1
        why = _why_not(run, started.pid, number)
        found[started.rank] = RankStack(started.rank, started.pid, why=why)
        if number is not None and why is None:
            asked[started.rank] = partial(signal_handled, started.pid, number)
    answers = ask(run, attempt, asked, with_calls=len(found) > 1)
    return [replace(stack, answer=answers.get(rank, stack.answer)) for rank, stack in sorted(found.items())]


def _started(run: RunDir, attempt: int) -> Iterator[events.RankStarted]:
    """What each rank said when it began; the newest, where one process followed another."""
    for path in run.events_folder.glob(f"rank-*.{attempt}.jsonl"):
        started = (event for event in events_from_end(path) if isinstance(event, events.RankStarted))
        if (newest := next(started, None)) is not None:
            yield newest


def _why_not(run: RunDir, pid: int, number: int | None) -> str | None:
    """Why a rank is not asked; None where it can be."""
    if not is_running(pid) or environment_of(pid).get("RANKDECK_RUN") != str(run.path):
        return "ended"
    if is_traced(pid):
        return "debugger"
    if is_suspended(pid):
        return "suspended"
    return None if number is not None else "unheard"


def log_of(run: RunDir, attempt: int, rank: int, kind: str) -> Path:
    """`kind`: out | err | stacks | calls."""
    return run.logs_folder / f"rank-{rank}.{attempt}.{kind}"


def ask(
    run: RunDir, attempt: int, asked: Mapping[int, Callable[[], object]], *, with_calls: bool
) -> dict[int, Answer]:
    """The answers of those that gave one. `with_calls`: they are ranks that also tell their collectives."""
    kinds = ("stacks", "calls") if with_calls else ("stacks",)
    logs = {(rank, kind): log_of(run, attempt, rank, kind) for rank in asked for kind in kinds}
    seen = before = {place: time_and_size(log) for place, log in logs.items()}
    for send in asked.values():
        send()
    deadline = time.monotonic() + _ANSWERED_S
    # A report is written in pieces: it is whole when it has grown and grows no more.
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        earlier, seen = seen, {place: time_and_size(log) for place, log in logs.items()}
        if seen == earlier and all(seen[place] != before[place] for place in logs):
            break
    found = {}
    for rank in asked:
        text = _since(logs[rank, "stacks"], before[rank, "stacks"][1])
        told = with_calls and seen[rank, "calls"] != before[rank, "calls"]
        record = _since(logs[rank, "calls"], 0) if told else ""
        calls = calls_of(record)
        if text or calls:
            found[rank] = Answer(text, parse_stack(text), calls, work_of(record))
    return found


def calls_written(log: Path) -> list[CollectiveCall]:
    """What a rank wrote there last."""
    return calls_of(_since(log, 0))


def time_and_size(path: Path) -> tuple[int, int]:
    """(when it was written, how many bytes it has); zeros for what is not there."""
    try:
        told = path.stat()
    except OSError:
        return 0, 0
    return told.st_mtime_ns, told.st_size


def _since(path: Path, num_bytes: int) -> str:
    try:
        return files.read_at(path, num_bytes, files.LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""
