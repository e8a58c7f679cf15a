"""Ask the ranks of a living run for their stacks.

Each rank receives a signal and writes its answer to log files, even from inside a blocked collective.

    logs/rank-<r>.<attempt>.stacks    the stacks of all threads; faulthandler appends each answer
    logs/rank-<r>.<attempt>.calls     the collectives that the rank has reached; each answer replaces the file

A script's process that is not a rank yet, or never becomes one, answers in memory (process_stacks.py).
watch.py asks when a run makes no progress; `rankdeck stacks` can ask at any time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.phrases import Phrase
from rankdeck.diagnose.child_processes import HELPER, LOADER_WORKER, ChildProcess, role_of
from rankdeck.diagnose.stacks import (
    CollectiveCall,
    Frame,
    current_call,
    parse_calls,
    parse_microbatch,
    parse_stack,
)
from rankdeck.launch.process_stacks import (
    EarlyProcess,
    RunProcesses,
    find_processes,
    has_signal,
    loaded_packages,
    sleeps_in_lock,
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
"""How long to wait for answers: a script reports its collectives within a quarter of a second."""
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True)
class StackReport:
    """A rank's answer to a request for its stacks: `text` is faulthandler's report of all threads,
    `microbatch` the pipeline action that the rank started last."""

    text: str = ""
    frames: list[Frame] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
    microbatch: Phrase | None = None

    @property
    def call(self) -> CollectiveCall | None:
        """The last collective that the rank has not finished; None if it has finished all of them."""
        return current_call(self.calls)


@dataclass(frozen=True)
class RankStack:
    """The stack of one rank. `report` is empty if the rank has not answered.

    `skip_reason` is the reason why the rank was not asked: "suspended", "debugger", "ended" or "unheard" (it
    has no signal handler); None if it was asked.
    """

    rank: int
    pid: int
    report: StackReport = StackReport()
    skip_reason: str | None = None


@dataclass(frozen=True)
class ChildStack:
    """The stack of a process that a rank has started: a DataLoader worker or another child process."""

    process: ChildProcess
    report: StackReport = StackReport()
    skip_reason: str | None = None


def read_stacks(run: RunDir) -> list[RankStack]:
    """Return the stacks of all ranks that have started in the run's latest attempt."""
    return read_all_stacks(run)[0]


def read_all_stacks(run: RunDir) -> tuple[list[RankStack], list[ChildStack]]:
    """Return the stacks of all ranks of the run's latest attempt, and those of a script's other processes."""
    attempt = run.next_attempt() - 1
    is_script = run.script() is not None
    stacks, senders = {}, dict[int, Callable[[], object]]()
    for started in _started_ranks(run, attempt):
        # The ranks of a configuration all register faulthandler for SIGUSR1 (rank_start.py).
        number = started.stack_signal if is_script else signal.SIGUSR1
        why = _skip_reason(run, started.pid, number)
        stacks[started.rank] = RankStack(started.rank, started.pid, skip_reason=why)
        if number is not None and why is None:
            senders[started.rank] = partial(signal_if_handled, started.pid, number)
    living = {stack.pid: rank for rank, stack in stacks.items() if stack.skip_reason != "ended"}
    processes = find_processes(run, living) if is_script else RunProcesses()
    for rank, process in processes.ranks.items():
        senders.pop(rank, None)
        stacks[rank] = RankStack(rank, process.pid, skip_reason=_wait_reason(process.pid))
    answers = request_stacks(run, attempt, senders, with_calls=len(stacks) > 1)
    early = request_early_stacks([*processes.ranks.values(), *(process for _, process in processes.children)])
    answers |= {rank: early[at.pid] for rank, at in processes.ranks.items() if at.pid in early}
    ranks = [replace(stack, report=answers.get(rank, stack.report)) for rank, stack in sorted(stacks.items())]
    return ranks, child_stacks(processes, early)


def child_stacks(processes: RunProcesses, reports: Mapping[int, StackReport]) -> list[ChildStack]:
    """Return the stacks of the child processes in `processes`, sorted by rank and role, without the helper
    processes of Python and torch. `reports` are the processes' answers, by process id."""
    stacks: list[ChildStack] = []
    counts: dict[tuple[int | None, str], int] = {}
    for rank, process in processes.children:
        report = reports.get(process.pid, StackReport())
        role = role_of(report.text)
        if role == HELPER:
            continue
        number = counts.get((rank, role), 0)
        counts[rank, role] = number + 1
        is_locked = bool(report.frames) and sleeps_in_lock(process.pid)
        child = ChildProcess(
            pid=process.pid,
            rank=rank,
            role=role,
            number=number,
            frames=report.frames,
            is_locked=is_locked,
            packages=loaded_packages(process.pid) if is_locked else (),
        )
        why = None if report.frames else _wait_reason(process.pid)
        stacks.append(ChildStack(child, report, why))
    return sorted(stacks, key=_child_order)


def _child_order(stack: ChildStack) -> tuple[bool, int, bool, int]:
    child = stack.process
    return child.rank is None, child.rank or 0, child.role != LOADER_WORKER, child.number


def request_early_stacks(processes: Sequence[EarlyProcess]) -> dict[int, StackReport]:
    """Ask processes that are not ranks for their stacks, and return the answers by process id."""
    senders = {
        process.pid: partial(signal_if_handled, process.pid, process.number)
        for process in processes
        if _wait_reason(process.pid) is None and has_signal(process)
    }
    logs = {(process.pid, "stacks"): process.file for process in processes if process.pid in senders}
    before, _ = _request(logs, senders)
    texts = {pid: _read_from(log, before[pid, "stacks"][1]) for (pid, _), log in logs.items()}
    return {pid: StackReport(text, parse_stack(text)) for pid, text in texts.items() if text}


def _started_ranks(run: RunDir, attempt: int) -> Iterator[events.RankStarted]:
    """Yield each rank's newest start event, since several processes may have started as the same rank."""
    for path in run.events_folder.glob(f"rank-*.{attempt}.jsonl"):
        started = (event for event in events_from_end(path) if isinstance(event, events.RankStarted))
        if (newest := next(started, None)) is not None:
            yield newest


def _skip_reason(run: RunDir, pid: int, number: int | None) -> str | None:
    """Return why a rank cannot be asked for its stack; None if it can."""
    if not is_running(pid) or read_environment(pid).get("RANKDECK_RUN") != str(run.path):
        return "ended"
    return _wait_reason(pid) or (None if number is not None else "unheard")


def _wait_reason(pid: int) -> str | None:
    """Return why a process would not answer now ("suspended" or "debugger"); None if it would."""
    if is_traced(pid):
        return "debugger"
    return "suspended" if is_suspended(pid) else None


def rank_log(run: RunDir, attempt: int, rank: int, kind: str) -> Path:
    """Return a rank's log path. `kind` is out | err | stacks | calls."""
    return run.logs_folder / f"rank-{rank}.{attempt}.{kind}"


def request_stacks(
    run: RunDir, attempt: int, senders: Mapping[int, Callable[[], object]], *, with_calls: bool
) -> dict[int, StackReport]:
    """Ask ranks for their stacks by calling `senders`, and return the reports of the ranks that answered.

    `senders` are functions that send the signal to a rank, by rank. If `with_calls` is True, the reports
    include the ranks' collectives.
    """
    kinds = ("stacks", "calls") if with_calls else ("stacks",)
    logs = {(rank, kind): rank_log(run, attempt, rank, kind) for rank in senders for kind in kinds}
    before, stamps = _request(logs, senders)
    reports = {}
    for rank in senders:
        text = _read_from(logs[rank, "stacks"], before[rank, "stacks"][1])
        has_calls = with_calls and stamps[rank, "calls"] != before[rank, "calls"]
        record = _read_from(logs[rank, "calls"], 0) if has_calls else ""
        calls = parse_calls(record)
        if text or calls:
            reports[rank] = StackReport(text, parse_stack(text), calls, parse_microbatch(record))
    return reports


def _request(
    logs: Mapping[tuple[int, str], Path], senders: Mapping[int, Callable[[], object]]
) -> tuple[dict[tuple[int, str], tuple[int, int]], dict[tuple[int, str], tuple[int, int]]]:
    """Call `senders` and wait for the answers; return the time and size of each log before and afterwards."""
    stamps = before = {key: mtime_and_size(log) for key, log in logs.items()}
    for send in senders.values():
        send()
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    # A report is written in pieces: it is complete once it has grown and no longer grows.
    while logs and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
        earlier, stamps = stamps, {key: mtime_and_size(log) for key, log in logs.items()}
        if stamps == earlier and all(stamps[key] != before[key] for key in logs):
            break
    return before, stamps


def read_calls(log: Path) -> list[CollectiveCall]:
    """Return the collectives that a rank last wrote to `log`."""
    return parse_calls(_read_from(log, 0))


def mtime_and_size(path: Path) -> tuple[int, int]:
    """Return a file's modification time in nanoseconds and its size; zeros if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _read_from(path: Path, num_bytes: int) -> str:
    try:
        return files.read_at(path, num_bytes, files.MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
