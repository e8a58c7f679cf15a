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
from rankdeck.diagnose.stacks import (
    CollectiveCall,
    Frame,
    current_call,
    parse_calls,
    parse_microbatch,
    parse_stack,
)
from rankdeck.launch.processes import (
    is_running,
    is_suspended,
    is_traced,
    read_environment,
    signal_if_handled,
)
from rankdeck.run_dir import RunDir, events_from_end

_ANSWER_TIMEOUT_S = 0.5
"""A script tells its collectives within a quarter of a second."""
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True)
class StackReport:
    """What a rank wrote: `text` is faulthandler's own report of all threads, `microbatch` what it has begun
    last of a microbatch."""

    text: str = ""
    frames: list[Frame] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
    microbatch: Phrase | None = None

    @property
    def call(self) -> CollectiveCall | None:
        """The collective that it is in."""
        return current_call(self.calls)


@dataclass(frozen=True)
class RankStack:
    """Where one rank stands. `report` is empty for one that has not answered; `skip_reason` says why it was
    not asked: "suspended", "debugger", "ended" or "unheard" (it listens to no signal)."""

    rank: int
    pid: int
    report: StackReport = StackReport()
    skip_reason: str | None = None


def read_stacks(run: RunDir) -> list[RankStack]:
    """Of every rank that has begun in the run's latest attempt."""
    attempt = run.next_attempt() - 1
    found, asked = {}, dict[int, Callable[[], object]]()
    for started in _started_ranks(run, attempt):
        number = started.stack_signal
        if run.script() is None:
            number = signal.SIGUSR1
        why = _skip_reason(run, started.pid, number)
        found[started.rank] = RankStack(started.rank, started.pid, skip_reason=why)
        if number is not None and why is None:
            asked[started.rank] = partial(signal_if_handled, started.pid, number)
    answers = request_stacks(run, attempt, asked, with_calls=len(found) > 1)
    return [replace(stack, report=answers.get(rank, stack.report)) for rank, stack in sorted(found.items())]


def _started_ranks(run: RunDir, attempt: int) -> Iterator[events.RankStarted]:
    """What each rank said when it began; the newest, where one process followed another."""
    for path in run.events_folder.glob(f"rank-*.{attempt}.jsonl"):
        started = (event for event in events_from_end(path) if isinstance(event, events.RankStarted))
        if (newest := next(started, None)) is not None:
            yield newest


def _skip_reason(run: RunDir, pid: int, number: int | None) -> str | None:
    """Why a rank is not asked; None where it can be."""
    if not is_running(pid) or read_environment(pid).get("RANKDECK_RUN") != str(run.path):
        return "ended"
    if is_traced(pid):
        return "debugger"
    if is_suspended(pid):
        return "suspended"
    return None if number is not None else "unheard"


def rank_log(run: RunDir, attempt: int, rank: int, kind: str) -> Path:
    """`kind`: out | err | stacks | calls."""
    return run.logs_folder / f"rank-{rank}.{attempt}.{kind}"


def request_stacks(
    run: RunDir, attempt: int, asked: Mapping[int, Callable[[], object]], *, with_calls: bool
) -> dict[int, StackReport]:
    """The answers of those that gave one. `with_calls`: they are ranks that also tell their collectives."""
    kinds = ("stacks", "calls") if with_calls else ("stacks",)
    logs = {(rank, kind): rank_log(run, attempt, rank, kind) for rank in asked for kind in kinds}
    seen = before = {place: mtime_and_size(log) for place, log in logs.items()}
    for send in asked.values():
        send()
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    # A report is written in pieces: it is whole when it has grown and grows no more.
    while time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
        earlier, seen = seen, {place: mtime_and_size(log) for place, log in logs.items()}
        if seen == earlier and all(seen[place] != before[place] for place in logs):
            break
    found = {}
    for rank in asked:
        text = _read_from(logs[rank, "stacks"], before[rank, "stacks"][1])
        told = with_calls and seen[rank, "calls"] != before[rank, "calls"]
        record = _read_from(logs[rank, "calls"], 0) if told else ""
        calls = parse_calls(record)
        if text or calls:
            found[rank] = StackReport(text, parse_stack(text), calls, parse_microbatch(record))
    return found


def read_calls(log: Path) -> list[CollectiveCall]:
    """What a rank wrote there last."""
    return parse_calls(_read_from(log, 0))


def mtime_and_size(path: Path) -> tuple[int, int]:
    """(when it was written, how many bytes it has); zeros for what is not there."""
    try:
        told = path.stat()
    except OSError:
        return 0, 0
    return told.st_mtime_ns, told.st_size


def _read_from(path: Path, num_bytes: int) -> str:
    try:
        return files.read_at(path, num_bytes, files.MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
