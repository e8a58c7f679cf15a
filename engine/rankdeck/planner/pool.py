"""Plan candidates in parallel, each rank in its own process, so that a crash or a timeout costs only one plan
line.

    this process imports torch once -> forks a child per rank, a few at a time -> reads results from a pipe

The quickest candidates come first: the first child runs while this process imports what the other children
need.

Forking is safe while this process has one thread and no process group. It spares each rank the import, and
isolates each rank from torch's state in other ranks. A user's model may print, call exit or be killed by a
signal: that affects neither the other candidates nor stdout. Read rank_plan.py first.
"""

from __future__ import annotations

import functools
import logging
import os
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TypeVar

import msgspec

from rankdeck.base.errors import ConfigError
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.planner.candidates import Candidate, Target, planning_cost
from rankdeck.planner.fake_values import KNOWN_RESULTS
from rankdeck.planner.preload import preload, preload_strategies
from rankdeck.planner.rank_plan import RankPlan, build_plan_line, empty_line, plan_rank, ranks_to_plan
from rankdeck.planner.sample_reader import read_samples
from rankdeck.planner.samples import UNIFORM, Samples
from rankdeck.run.bounds import ROW_TIMEOUT_S
from rankdeck.run.plan_lines import PlanLine
from rankdeck.torch_compat.shape_cache import deserialize_outputs, serialize_outputs
from rankdeck.training import user_code

_log = logging.getLogger(__name__)

MAX_CHILDREN = 4
_IMPORT_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_COMPILE_NOTE = phrase("train.compile is ignored: the memory of a compiled graph is unknown until it runs.")

Result = TypeVar("Result", bound=msgspec.Struct)
RankPlanner = Callable[[RunConfig, int, Target, Samples], RankPlan]


def plan_candidates(
    base: RunConfig,
    candidates: Sequence[Candidate],
    target: Target,
    *,
    scale: float | None = None,
    timeout_s: float = ROW_TIMEOUT_S,
    planner: RankPlanner = plan_rank,
    samples: Samples | None = None,
    movement: bool = False,
) -> Iterator[PlanLine]:
    """Yield the lines of all candidates as they finish, in any order.

    For `scale` see step_cost.py, for `movement` see run/movement.py. If `samples` is None, the data set is
    read once with `read_samples_in_child`.
    """
    preload()
    samples = read_samples_in_child(base, timeout_s) if samples is None else samples
    pending = []
    for candidate in candidates:
        try:
            config = candidate.make_config(base, target)
            pending.append(_PendingCandidate(candidate, config, target, base.train.compile, movement))
        except ConfigError as error:
            yield empty_line(candidate, target, error)
    # The quickest first, so that a child works while the strategies are being imported.
    pending.sort(key=lambda candidate: planning_cost(candidate.config, target.num_devices))
    waiting = [(item, rank) for item in pending for rank in item.next_ranks()]
    running: dict[_PlanChild, tuple[_PendingCandidate, int]] = {}
    importing = threading.Thread(target=preload_strategies)
    max_children = max(1, min(MAX_CHILDREN, len(os.sched_getaffinity(0))))
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and len(running) < max_children and not importing.is_alive():
                    item, rank = waiting.pop(0)
                    run_planner = functools.partial(planner, item.config, rank, target, samples)
                    child = _PlanChild.start(functools.partial(_plan_with_cache, run_planner), selector)
                    item.started_s = item.started_s or child.started_s
                    running[child] = item, rank
                    if waiting and importing.ident is None:
                        importing.start()  # no fork until it ends: forking a threaded process is unsafe
                patience_s = _IMPORT_POLL_S if importing.is_alive() else timeout_s
                for child in _finished_children(selector, list(running), timeout_s, patience_s):
                    item, rank = running.pop(child)
                    result = child.result(_ChildResult)
                    if isinstance(result, str):
                        item.rank_plans[rank] = RankPlan(reason=result)
                    else:
                        item.rank_plans[rank] = result.needs
                        # Children that are forked later inherit these.
                        KNOWN_RESULTS.update(deserialize_outputs(result.answers))
                    waiting[:0] = [(item, rank) for rank in item.next_ranks()]
                    if item.is_complete:
                        yield item.line(scale, samples)
    finally:
        for child in running:
            child.kill()
        if importing.ident is not None:
            importing.join()


def read_samples_in_child(config: RunConfig, timeout_s: float = ROW_TIMEOUT_S) -> Samples:
    """Return the sizes of a data set's samples and batches, which the planner needs to plan the largest
    batch.

    A data set that cannot be read is treated as uniform: planning a candidate then fails as well, and reports
    the reason.
    """
    if not user_code.is_user_code(config.data.use):
        return UNIFORM
    with selectors.DefaultSelector() as selector:
        child = _PlanChild.start(functools.partial(read_samples, config), selector)
        try:
            while not _finished_children(selector, [child], timeout_s, timeout_s):
                pass
        finally:
            child.kill()
    result = child.result(Samples)
    return UNIFORM if isinstance(result, str) else result


class _ChildResult(msgspec.Struct):
    """A rank's plan, and the output shapes that torch computed for it; later children reuse these shapes."""

    needs: RankPlan
    answers: bytes


def _plan_with_cache(plan: Callable[[], RankPlan]) -> _ChildResult:
    before = len(KNOWN_RESULTS)
    return _ChildResult(plan(), serialize_outputs(KNOWN_RESULTS, before))


@dataclass(eq=False)
class _PendingCandidate:
    """A candidate whose line is not complete yet."""

    candidate: Candidate
    config: RunConfig
    target: Target
    is_compiled: bool = False
    movement: bool = False
    rank_plans: dict[int, RankPlan] = field(default_factory=dict)
    started_ranks: set[int] = field(default_factory=set)
    started_s: float | None = None

    def next_ranks(self) -> list[int]:
        """Return the ranks that, according to the results so far, must still be planned, and mark them as
        started."""
        num_devices, movement = self.target.num_devices, self.movement
        needed = ranks_to_plan(self.config, num_devices, self.rank_plans, movement=movement)
        new = [rank for rank in needed if rank not in self.started_ranks]
        self.started_ranks.update(new)
        return new

    @property
    def is_complete(self) -> bool:
        return len(self.rank_plans) == len(self.started_ranks)

    def line(self, scale: float | None, samples: Samples) -> PlanLine:
        rank_plans, movement = self.rank_plans, self.movement
        line = build_plan_line(
            self.candidate, self.config, self.target, rank_plans, scale, samples, movement=movement
        )
        line.seconds = time.monotonic() - (self.started_s or 0.0)
        return msgspec.structs.replace(line, notes=[*line.notes, *[_COMPILE_NOTE] * self.is_compiled])


def _finished_children(
    selector: selectors.BaseSelector, running: Sequence[_PlanChild], timeout_s: float, patience_s: float
) -> list[_PlanChild]:
    """Return the children that have ended or timed out; wait at most `patience_s` for results."""
    first_s = min((child.started_s for child in running), default=time.monotonic())
    for key, _ in selector.select(min(patience_s, max(0.0, first_s + timeout_s - time.monotonic()))):
        child: _PlanChild = key.data
        child.read()
    for child in running:
        if time.monotonic() - child.started_s >= timeout_s and not child.is_done:
            _log.warning("child %d returned no result within %.0f s", child.pid, timeout_s)
            child.kill()
            child.timed_out_s = timeout_s
    done = [child for child in running if child.is_done]
    for child in done:
        selector.unregister(child.pipe)
    return done


@dataclass(eq=False)
class _PlanChild:
    """A child process that computes one result and writes it to its pipe."""

    pid: int
    pipe: int
    stderr: IO[bytes]
    started_s: float = field(default_factory=time.monotonic)
    output: bytes = b""
    is_done: bool = False
    status: int = 0
    timed_out_s: float | None = None

    @classmethod
    def start(cls, compute: Callable[[], msgspec.Struct], selector: selectors.BaseSelector) -> _PlanChild:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child's figures are read
        reading, writing = os.pipe()
        # Unflushed text would be in the child's buffers as well, and be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _run_child(compute, writing, errors.fileno())
        os.close(writing)
        _log.debug("child %d started", pid)
        child = cls(pid, reading, errors)
        selector.register(reading, selectors.EVENT_READ, child)
        return child

    def read(self) -> None:
        chunk = os.read(self.pipe, _CHUNK_BYTES)
        self.output += chunk
        if not chunk:
            self._reap()

    def kill(self) -> None:
        if not self.is_done:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        _, self.status = os.waitpid(self.pid, 0)
        _log.debug("child %d ended with wait status %d", self.pid, self.status)
        self.is_done = True

    def result(self, kind: type[Result]) -> Result | str:
        """Return the child's result, or an explanation of its failure."""
        os.close(self.pipe)
        with self.stderr:
            if self.status == 0 and self.timed_out_s is None and self.output:
                return msgspec.msgpack.decode(self.output, type=kind)
            return self._failure_text()

    def _failure_text(self) -> str:
        if self.timed_out_s is not None:
            return phrase(
                "The planner returned no result within {seconds:.0f} s. Allow more time with rankdeck "
                "plan --timeout SECONDS, or with the setting plan.timeout_s in the app.",
                seconds=self.timed_out_s,
            )
        if os.WIFSIGNALED(self.status):
            how = signal.Signals(os.WTERMSIG(self.status)).name
        else:
            how = phrase("exit code {code}", code=os.WEXITSTATUS(self.status))
        self.stderr.seek(0)
        last = [line for line in self.stderr.read().decode(errors="replace").splitlines() if line.strip()]
        if not last:
            return phrase("The planner process exited without a result ({how}).", how=how)
        return phrase(
            "The planner process exited without a result ({how}): {last}",
            how=how,
            last=last[-1].strip()[:200],
        )


def _run_child(compute: Callable[[], msgspec.Struct], writing: int, errors: int) -> None:
    """Compute and write the result, then exit without running the exit handlers or flushing the buffers
    inherited from the parent."""
    code = 1
    try:
        die_with_parent()
        # The parent's Python handlers are inherited by the fork, but must not run here.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A model that prints must not write into the command's own output.
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(compute()))
        code = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        # Not sys.exit: atexit handlers and buffers belong to the parent.
        os._exit(code)
