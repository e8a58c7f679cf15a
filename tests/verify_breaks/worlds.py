"""A world for each check: ranks that import the engine with one line changed, forked from a process that has
imported torch and nothing of the engine.

    with Worlds(num_jobs=2) as worlds:
        for job, outcome in worlds.run(jobs): ...

The engine's source is changed as it is imported, so that no file is. Read inside.py next: what a rank does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.checkout import CHECKOUT
from tests.helpers.waiting import scale_timeout
from tests.mutants.breaks import ENGINE
from tests.verify_breaks.rows import Case, CheckedBreak

_DEADLINE_S = 45.0
_FAILURE_GRACE_S = 2.0
"""How long the others are waited for once a rank has failed."""
_PROJECT_PACKAGES = ("rankdeck", "tests")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """A case, and what is broken in it if anything is."""

    case: Case
    checked_break: CheckedBreak | None = None


Outcome = dict[str, Any]
"""What rank 0 found (inside.py), or {"error"} of the first rank that failed, or {"hung"}."""


class CheckPool:
    """Runs jobs, some at a time. This process imports torch, and must not have imported the engine."""

    def __init__(self, num_jobs: int) -> None:
        assert not any(name.partition(".")[0] == "rankdeck" for name in sys.modules)
        self._num_jobs = num_jobs
        self._folder = Path(tempfile.mkdtemp(prefix="breaks-"))
        for name in self._find_imports():
            importlib.import_module(name)
        gc.collect()
        gc.freeze()

    def __enter__(self) -> CheckPool:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find_imports(self) -> list[str]:
        """What a check imports beside the engine."""
        file = self._folder / "needed.json"
        pid = os.fork()
        if not pid:
            try:
                from tests.verify_breaks import inside

                inside.check(Case("models/lm_small", "model x2"), 0, self._folder)
                inside.check(Case("models/unet", "model x2"), 0, self._folder)
                names = [
                    name
                    for name in sys.modules
                    if name.partition(".")[0] not in (*_PROJECT_PACKAGES, "__main__")
                ]
                specs = [name for name in names if getattr(sys.modules[name], "__spec__", None) is not None]
                file.write_text(json.dumps(specs))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        modules: list[str] = json.loads(file.read_text())
        return [name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is not None]

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Outcome, float]]:
        """Outcomes in the order in which they come, with seconds."""
        waiting = list(jobs)[::-1]
        running: dict[int, tuple[Job, Path, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._num_jobs:
                job = waiting.pop()
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                running[_start(job, folder)] = job, folder, time.monotonic()
            for pid, (job, folder, started_s) in list(running.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del running[pid]
                    yield job, _read_outcome(job, folder), time.monotonic() - started_s
                    shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.01)


def _fork() -> int:
    """As os.fork; the child ends with this process, however that ends."""
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return pid


def _start(job: Job, folder: Path) -> int:
    pid = _fork()
    if pid:
        return pid
    try:
        _run_job(job, folder)
    finally:
        os._exit(1)


def _run_job(job: Job, folder: Path) -> None:
    """Import the engine, fork the ranks and wait for them, for some time only."""
    with (folder / "stderr").open("wb") as file:
        os.dup2(file.fileno(), 2)
    if job.checked_break is not None and job.checked_break.is_in_engine:
        sys.meta_path.insert(0, _PatchingLoader(job.checked_break))
    from tests.verify_breaks import inside

    inside.import_engine()
    ranks: dict[int, int] = {}
    for rank in range(job.case.num_ranks):
        pid = _fork()
        if not pid:
            try:
                inside.check(job.case, rank, folder)
            finally:
                os._exit(0)
        ranks[pid] = rank
    end_s = time.monotonic() + scale_timeout(_DEADLINE_S)
    while ranks:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank = ranks.pop(pid)
            if "error" in _read_rank_outcome(folder, rank):
                end_s = min(end_s, time.monotonic() + scale_timeout(_FAILURE_GRACE_S))
        elif time.monotonic() > end_s:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
            end_s = float("inf")
        else:
            time.sleep(0.01)
    os._exit(0)


def _read_rank_outcome(folder: Path, rank: int) -> Outcome:
    file = folder / f"rank-{rank}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _read_outcome(job: Job, folder: Path) -> Outcome:
    outcomes = [_read_rank_outcome(folder, rank) for rank in range(job.case.num_ranks)]
    errors = [outcome for outcome in outcomes if "error" in outcome]
    if errors:  # what the others say follows from it: a refusal of one is torch's error of another
        return next((outcome for outcome in errors if outcome["is_refusal"]), errors[0])
    if all(outcomes):
        return outcomes[0]
    return {"hung": (folder / "stderr").read_text(errors="replace")[-1000:] or "no rank answered in time"}


class _PatchingLoader(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds one module of the engine, and gives its source with the break in it."""

    def __init__(self, checked_break: CheckedBreak) -> None:
        self._break = checked_break
        name = checked_break.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        super().__init__(f"rankdeck.{name}", str(CHECKOUT / ENGINE / checked_break.file))

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> Any:
        source = Path(self.path).read_text("utf-8")
        return compile(self._break.applied_to(source), self.path, "exec", dont_inherit=True)
