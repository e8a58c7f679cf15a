"""One trial: a job in which one fault happens; how it ended, what was told of it, and whether that is
right.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.launch.control import request_stop
from rankdeck.run_dir import EventReader, RunDir
from tests.faults import outside, starts
from tests.faults.jobs import CLASSES, Plan, start_job
from tests.faults.kinds import KINDS, Drawn, Expected, Kind, draw
from tests.helpers import launching, processes
from tests.helpers.c_library import build_library
from tests.helpers.waiting import scale_timeout, wait_until

MARK = "RANKDECK_TRIAL"
LEFT_S = 5.0
"""How long after the fault, or after a hang has been told, anything of the run may still live."""
HIT_S = 90.0
END_S = 120.0
_DISK_ERRORS = {"disk read-only": errno.EROFS, "disk broken": errno.EIO}
_STILL = {"hang-suspected", "rank-suspended", "rank-left", "supervisor-suspended"}
HEARD_S = 80.0
"""How long a hang may take to be told: 15 s in a script's steps, 60 s where a rank saves meanwhile."""


class Record(msgspec.Struct, omit_defaults=True):
    """What a trial came to. `wrong`: what is not as it must be, nothing where it is right."""

    seed: int
    kind: str
    job: str
    where: str
    step: int
    rank: int
    outcome: str = ""
    exit_code: int | None = None
    code: str = ""
    told_rank: int | None = None
    message: str = ""
    warnings: list[str] = []
    gone_s: float | None = None
    heard_s: float | None = None
    took_s: float = 0.0
    wrong: list[str] = []


class Observation(msgspec.Struct):
    """What was seen of a run that is over."""

    outcome: str
    exit_code: int | None
    reason: str
    errors: list[Problem]
    warnings: list[Problem]
    left: list[str]
    gone_s: float
    bad_lines: int = 0


def try_out(seed: int, kind: Kind, folder: Path) -> Record:
    """The trial of this seed."""
    drawn = draw(kind, random.Random(f"{seed} {kind.name}"))
    return run_drawn(seed, drawn, folder)


def run_drawn(seed: int, drawn: Drawn, folder: Path) -> Record:
    kind, began_s = KINDS[drawn.kind], time.monotonic()
    record = Record(seed, drawn.kind, drawn.job, drawn.where, drawn.step, drawn.rank)
    with marked(folder) as mark:
        try:
            observed, record.heard_s = _run(kind, drawn, folder, mark)
            _note(record, observed, kind.expected_for(drawn.job))
            record.wrong += judged(observed, kind, drawn)
        except Exception as error:
            record.wrong.append(f"{type(error).__name__}: {error}")
        left = processes.find_marked(mark)
        processes.kill_processes(left)
    record.took_s = round(time.monotonic() - began_s, 1)
    if not record.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def _run(kind: Kind, drawn: Drawn, folder: Path, mark: str) -> tuple[Observation, float | None]:
    if drawn.where == "start":
        return _run_start(kind, drawn, folder, mark), None
    job = CLASSES[drawn.job]
    ranks = tuple(range(job.processes)) if kind.everywhere else (drawn.rank,)
    act, waits = kind.act, bool(kind.outside) and not kind.outside.startswith("suspend")
    plan = Plan(act, drawn.where, drawn.step, ranks, workers=kind.workers, waits=waits, steps=drawn.steps)
    with _preloaded(folder, act, drawn.rank):
        run = start_job(job, plan, folder / "job", **kind.more)
    hit_s = heard_s = None
    if drawn.where != "none":
        signs = [folder / "job" / f"hit-{rank}" for rank in ranks]
        wait_until(lambda: _are(signs) or _is_over(run), deadline_s=HIT_S, what="the fault's place")
        if not (there := _are(signs)):
            raise AssertionError(f"it never came there: {run.outcome()}, {launching.read_problems(run)}")
        hit_s = min(float(sign.read_text().split()[0]) for sign in there) + kind.shows_s
    if kind.outside:
        hit_s = time.time()
        run = outside.act(kind.outside, run, folder / "job", ranks)
        (folder / "job" / "go-on").touch()
    if kind.hangs:
        heard_s = _wait_for_hang(run, kind, drawn, folder, ranks)
    over = _await_end(run, mark, from_s=None if kind.hangs or _goes_on(kind, drawn) else hit_s)
    return over, heard_s


def _run_start(kind: Kind, drawn: Drawn, folder: Path, mark: str) -> Observation:
    """A trial of the command that starts a run."""
    (folder / "job").parent.mkdir(parents=True, exist_ok=True)
    with _preloaded(folder, kind.act, drawn.rank):
        started = starts.start(kind.outside, drawn, folder, mark)
    outcome = "none" if started.run is None else started.run.outcome()
    return Observation(outcome, started.exit_code, started.output, [], [], started.left, 0.0)


def _are(signs: list[Path]) -> list[Path]:
    """Those that are there."""
    return [sign for sign in signs if sign.exists()]


def _goes_on(kind: Kind, drawn: Drawn) -> bool:
    expected = kind.expected_for(drawn.job)
    return "completed" in expected.outcome or drawn.where == "none" or expected.severity == "reason"


def _wait_for_hang(
    run: RunDir, kind: Kind, drawn: Drawn, folder: Path, ranks: tuple[int, ...]
) -> float | None:
    """Until it is told; a run that does not end for that is stopped, or let go on."""
    began_s, expected = time.monotonic(), kind.expected_for(drawn.job)

    def is_reported() -> bool:
        codes = {problem.code for problem in launching.read_problems(run, "warning")}
        return bool(codes & _STILL) or _is_over(run)

    wait_until(is_reported, deadline_s=HEARD_S, interval_s=0.2, what="a word about the hang")
    heard_s = round(time.monotonic() - began_s, 1)
    if kind.outside.startswith("suspend"):
        outside.go_on(kind.outside, run, folder / "job", ranks)
    elif "stopped" in expected.outcome and not _is_over(run):
        request_stop(run)
    return heard_s


def _is_over(run: RunDir) -> bool:
    return run.exit_record() is not None or not run.is_alive()


def _await_end(run: RunDir, mark: str, from_s: float | None) -> Observation:
    """How it ended. `from_s`: when the fault happened, from which on everything has to go."""
    wait_until(lambda: _is_over(run), deadline_s=END_S, interval_s=0.01, what="the end of the run")
    from_s = time.time() if from_s is None else from_s
    limit_s = scale_timeout(LEFT_S)
    while (left := processes.find_marked(mark)) and time.time() < from_s + limit_s + 5:
        time.sleep(0.02)
    gone_s = max(0.0, time.time() - from_s)
    if not run.path.exists():
        return Observation(
            "removed", None, "", [], [], [processes.process_text(process) for process in left], gone_s
        )
    end = run.exit_record()
    reader = EventReader(run)
    while reader.read():
        pass
    counts = reader.counts()
    return Observation(
        run.outcome(),
        None if end is None else end.exit_code,
        "" if end is None or end.reason is None else end.reason,
        launching.read_problems(run),
        launching.read_problems(run, "warning"),
        [processes.process_text(process) for process in left],
        gone_s,
        counts.missing + counts.unreadable,
    )


def judged(observed: Observation, kind: Kind, drawn: Drawn) -> list[str]:
    """What is wrong with how a run of this trial ended and what was told."""
    expected, wrong = kind.expected_for(drawn.job), list[str]()
    exit_codes = expected.exit_codes
    if drawn.where == "optimizer" and any(problem.code == "optimizer" for problem in observed.errors):
        exit_codes = (2,)  # raised in the step that it is tried out with, it is bad input
    if observed.outcome not in expected.outcome:
        wrong.append(f"outcome {observed.outcome}")
    if observed.outcome not in ("lost", "removed") and observed.exit_code not in exit_codes:
        wrong.append(f"exit code {observed.exit_code}")
    if observed.left:
        wrong.append(f"left behind: {observed.left}")
    if observed.gone_s > scale_timeout(LEFT_S):
        wrong.append(f"gone after {observed.gone_s:.1f} s")
    if observed.bad_lines and not kind.loses_events:
        wrong.append(f"{observed.bad_lines} events are missing or unreadable")
    return wrong + _judged_words(observed, expected, drawn)


def _judged_words(observed: Observation, expected: Expected, drawn: Drawn) -> list[str]:
    if expected.severity == "reason":
        texts = [observed.reason, *(problem.message for problem in [*observed.errors, *observed.warnings])]
        return (
            []
            if all(any(word in item for item in texts) for word in expected.fragments)
            else [f"told: {texts}"]
        )
    if expected.severity in ("nothing", "warning") and observed.errors:
        return [f"an error was told: {_brief(observed.errors)}"]
    if expected.severity == "error" and len(observed.errors) != 1:
        return [f"{len(observed.errors)} errors were told: {_brief(observed.errors)}"]
    if expected.severity == "nothing":
        false = [item for item in observed.warnings if item.code in ("hang-suspected", "rank-suspended")]
        return [f"false alarm: {_brief(false)}"] if false else []
    said_of = {"error": observed.errors, "warning": observed.warnings}.get(
        expected.severity, [*observed.errors, *observed.warnings]
    )
    if expected.severity == "any" and observed.outcome == "completed" and not expected.fragments:
        return []
    fitting = [item for item in said_of if not expected.codes or item.code in expected.codes]
    if not fitting:
        return [f"none of {expected.codes} was told: {_brief(said_of)}"]
    faults = [_faults(item, expected, drawn) for item in fitting]
    return min(faults, key=len)


def _faults(problem: Problem, expected: Expected, drawn: Drawn) -> list[str]:
    message = problem.message.lower()
    wrong = [
        f"'{word}' is not told: {problem.message[:300]}"
        for word in expected.fragments
        if word.lower() not in message
    ]
    allowed: dict[str, set[int | None]] = {"its": {drawn.rank}, "none": {None}}
    ranks = allowed.get(expected.rank)
    if ranks is not None and expected.rank == "its" and CLASSES[drawn.job].processes == 1:
        ranks = ranks | {None}
    if ranks is not None and KINDS[drawn.kind].everywhere:
        ranks = {None, *range(CLASSES[drawn.job].processes)}
    if ranks is not None and problem.rank not in ranks:
        wrong.append(f"rank {problem.rank} is told: {problem.message[:300]}")
    return wrong


def _brief(problems: list[Problem]) -> list[str]:
    return [f"{problem.code} of {problem.rank}: {problem.message[:300]}" for problem in problems]


def _note(record: Record, observed: Observation, expected: Expected) -> None:
    record.outcome, record.exit_code = observed.outcome, observed.exit_code
    record.gone_s = round(observed.gone_s, 2)
    record.warnings = [problem.code for problem in observed.warnings]
    problems = (
        observed.errors
        or [problem for problem in observed.warnings if problem.code in expected.codes]
        or observed.warnings
    )
    if problems:
        record.code, record.told_rank, record.message = (
            problems[0].code,
            problems[0].rank,
            problems[0].message[:500],
        )


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """A trial's own home, and what is in the environment of everything that it starts."""
    mark = uuid.uuid4().hex
    with environment({MARK: mark, "RANKDECK_HOME": str(folder / "home")}):
        yield f"{MARK}={mark}"


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, Any] = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _preloaded(folder: Path, act: str, rank: int) -> Iterator[None]:
    """A disk that may become full, for those that need one."""
    if not act.startswith("disk "):
        yield
        return
    library = build_library(Path(__file__).with_name("fulldisk.c"), folder / "fulldisk.so")
    job = folder / "job"
    preload = {
        "LD_PRELOAD": str(library),
        "FULLDISK_FOLDER": str(job / "runs"),
        "FULLDISK_SIGN": str(job / "disk-is-full"),
    }
    if act in _DISK_ERRORS:
        preload["FULLDISK_ERROR"] = str(_DISK_ERRORS[act])
    if act == "disk full for events":
        preload["FULLDISK_PART"] = f"/events/rank-{rank}."
    with environment(preload):
        yield
