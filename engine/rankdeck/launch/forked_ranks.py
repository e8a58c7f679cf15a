"""Start the ranks of a configuration: fork them early, once torch is imported, and release them late.

The supervisor forks all ranks while it has one thread and has touched no GPU, right after importing torch: a
rank then starts in 0.1 s instead of 2 s. Each rank waits on a pipe for its environment and log paths, which
are known only after the data is prepared and the store is open. If forking is not safe (GPUs, a second
thread), the forked process replaces itself with a fresh interpreter. Read store.py and rank_start.py next.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rankdeck.base.errors import Problem
from rankdeck.base.garbage import freeze_new_objects
from rankdeck.base.heartbeat import STACKS_ENV, die_with_parent
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.checkpoint_files import newest_intact
from rankdeck.config import RunConfig
from rankdeck.diagnose.cause import Cause
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.diagnose.fixes import with_fix
from rankdeck.launch import rank_start
from rankdeck.launch.host_watch import CoordinatorWatch, NodeWatch
from rankdeck.launch.layout import single_host_layout
from rankdeck.launch.rank_group import DEFAULT_WORKER, RankGroup, SupervisorArguments, SupervisorInterface
from rankdeck.launch.rank_process import GRACE_S, RankProcess
from rankdeck.launch.store import RankStore
from rankdeck.launch.torchrun import device_variables, rank_variables, run_variables
from rankdeck.launch.watch import Watch
from rankdeck.run_dir import FIRST_STEPS_KEY
from rankdeck.torch_compat.processes import is_cuda_fork_broken
from rankdeck.torch_compat.versions import version_problem

_POLL_S = 0.05
# Modules that Rankdeck's own worker imports sooner or later.
_PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "rankdeck.training.loop",
    "rankdeck.training.verify.before_run",
    "rankdeck.training.workload",
    "rankdeck.checkpoint.store",
    "rankdeck.checkpoint.weights",
)


class ForkedRanks(RankGroup):
    """The forked ranks of this host in one attempt."""

    grace_s = GRACE_S
    released_phase = tr_noop("preparing data")

    def __init__(self, arguments: SupervisorArguments, supervisor: SupervisorInterface) -> None:
        super().__init__(arguments, supervisor)
        self._config: RunConfig = arguments.run.config()
        num_devices = max(1, len(self.devices))
        num_ranks = 1 if self._config.strategy_spec.one_process else num_devices
        self._layout = arguments.layout or single_host_layout(num_ranks, self.devices)
        self.watch = self._make_watch()
        self.global_ranks = self._layout.local_ranks
        self.ranks = self._ranks = list[ForkedRank]()
        self._spawns_ranks = False
        launch = self._config.launch
        # on_hang = "restart" implies at least one restart.
        self.max_restarts = max(launch.max_restarts, int(launch.on_hang == "restart"))
        self.restarts_itself = self._layout.is_single_host
        # Requests to an earlier attempt must not reach this one.
        shutil.rmtree(arguments.run.requests_folder, ignore_errors=True)

    def _make_watch(self) -> Watch:
        report_problem = self._supervisor.report_problem
        watch_args = self._run, self._arguments.attempt, self._config.launch, report_problem
        compiles = self._config.train.compile
        if self._layout.is_single_host:
            return Watch(*watch_args, compiles=compiles)
        if self._layout.index == 0:
            return CoordinatorWatch(*watch_args, compiles=compiles, hosts=self._layout.host_by_rank)
        return NodeWatch(*watch_args, compiles=compiles, report=self._supervisor.write)

    def facts(self) -> Mapping[str, Any]:
        config = self._config
        return {
            "strategy": config.strategy.use,
            "options": config.strategy.options,
            "world_size": self._layout.world_size,
            "devices": self._layout.devices,
            "steps": self.environment.get(FIRST_STEPS_KEY, config.train.known_steps),
            "global_batch": config.train.global_batch,
            "pace": config.rehearsal.pace,
        }

    def start(self) -> None:
        """Import what the ranks need, then fork them while the process has one thread."""
        _set_threads(self._layout.this_host.ranks)
        os.environ.update(device_variables(self.devices))
        has_gpus = bool(os.environ["CUDA_VISIBLE_DEVICES"])
        # On GPUs each rank is a fresh interpreter, which would not profit from imports made here.
        if not has_gpus:
            if self._arguments.worker == DEFAULT_WORKER:
                _preload(self._config)
            self._supervisor.check_stop()
        self._spawns_ranks = has_gpus or not can_fork_preloaded()
        for rank in self.global_ranks:
            self._ranks.append(ForkedRank(rank, self._arguments.worker, is_spawned=self._spawns_ranks))
        self.watch.start(self._ranks, self._layout.world_size)
        problem = version_problem()
        if problem is not None:
            self._supervisor.report_problem(problem)

    def release(self) -> None:
        """Prepare what all ranks share (such as a vocabulary), then release the ranks.

        This happens after the fork, because the preparation may start threads.
        """
        if self._arguments.worker == DEFAULT_WORKER:
            from rankdeck.training import workload

            workload.prepare(self._config)
        # Spawned ranks will be importing torch, so the store may import it at the same time.
        at_once = self._spawns_ranks or "torch" in sys.modules
        self.store = store = RankStore(self._layout, self._arguments.store, is_eager=at_once)
        for rank in self._ranks:
            self._release(rank, store)

    def sampler_options(self) -> Sequence[str] | None:
        # In a rehearsal with one process, the rank itself reports how busy each device is.
        one_process = self._config.strategy_spec.one_process and len(self.devices) > 1
        if not self.devices or (one_process and self.devices[0].kind == "virtual"):
            return None
        value = os.environ.get("OMP_NUM_THREADS", "")
        threads = value if value.isdecimal() else "1"
        return "--first", str(self.global_ranks.start), "--threads", threads

    def wait(self) -> None:
        time.sleep(_POLL_S)

    def on_success(self) -> None:
        assert isinstance(self.store, RankStore)
        self.store.wait_for_others(self._supervisor.check_stop)

    @property
    def _interface(self) -> str:
        return self._layout.interface() or "lo"

    def _release(self, rank: ForkedRank, store: RankStore) -> None:
        number = rank.rank
        environment = {
            **rank_variables(self._layout, number, store.address, run_id=self._run.name),
            **run_variables(self._run.path, self._arguments.attempt, self.watch.heartbeats),
            "RANKDECK_SUPERVISOR_PID": str(os.getpid()),
            STACKS_ENV: str(self.watch.log(number, "stacks")),
            # By default gloo uses the interface to which the hostname resolves, which may be the wrong one.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", self._interface),
        }
        if not self._layout.is_single_host:
            # "=" makes NCCL match the whole name; without it, any interface with this prefix would match.
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", f"={self._interface}")
        rank.release(environment, self.watch.log(number, "out"), self.watch.log(number, "err"))

    def adapt_problem(self, problem: Problem) -> Problem:
        """Return the problem; if a change to the configuration fixes it, add that change. In a multi-host
        run, turn a lost connection into a warning.

        The coordinator reports what happened to the other hosts, so a lost connection reported on this host
        is not the cause.
        """
        if problem.code == COMMUNICATION and not self._layout.is_single_host:
            problem = problem.replace_fields(severity="warning")
        return with_fix(problem, self._config)

    def adapt_cause(self, cause: Cause) -> Cause:
        self.blamed_host = self._layout.remote_host_of(cause.problem.rank)
        return cause

    def may_restart(self, cause: Cause) -> bool:
        """Check whether a restart may help: it cannot fix bad input or a loss that would become NaN again."""
        code, left = cause.problem.code, self._config.launch.max_restarts - self._arguments.restarts
        return super().may_restart(cause) and code != "loss-not-finite" and (code == "hang" or left > 0)

    def restart_text(self) -> Phrase:
        checkpoint, _ = newest_intact(self._run.checkpoints_folder)
        if checkpoint is None:
            return phrase("The run restarts from the beginning because there is no checkpoint")
        return phrase("The run continues after step {step}", step=checkpoint.step)


def _set_threads(num_ranks: int) -> None:
    """Share the cores among the ranks, unless the user has set the number of threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    # numpy would start its threads when it is imported, before the ranks are forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _preload(config: RunConfig) -> None:
    """Import what the ranks will need, except user code. If an import fails, the rank will report it."""
    from rankdeck.config.catalog import DATA, MODELS

    cards: list[Any] = [config.strategy_spec, MODELS.get(config.model.use), DATA.get(config.data.use)]
    names = [*_PRELOADED, *(card.target.partition(":")[0] for card in cards if card is not None)]
    if config.train.checkpoint_every:
        names.append("rankdeck.checkpoint.sharded")
    # DTensors import it anyway. The threads of dp must not be the first to import it, because torch's import
    # breaks there.
    needs_compiler = config.train.compile or config.train.activation_checkpointing
    if needs_compiler or config.strategy.use in ("dp", "fsdp", "tensor", "hybrid"):
        names.append("torch._dynamo")
    with freeze_new_objects():
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:
                traceback.print_exc()


class ForkedRank(RankProcess):
    """One forked rank of a configuration."""

    def __init__(self, rank: int, worker: str, *, is_spawned: bool) -> None:
        super().__init__(rank)
        read_end, self._orders = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # The child is a copy of the supervisor: whatever happens here, it must not return into the
                # supervisor's code.
                _wait_and_run(read_end, supervisor, worker, is_spawned=is_spawned)
            finally:
                os._exit(1)
        os.close(read_end)

    def release(self, environment: Mapping[str, str], out: Path, err: Path) -> None:
        """Send the rank its environment and the paths of its logs; the rank then starts at once."""
        orders = {"environment": dict(environment), "out": str(out), "err": str(err)}
        data = json.dumps(orders).encode()
        try:
            while data:
                data = data[os.write(self._orders, data) :]
        except BrokenPipeError:
            pass  # the rank was killed while it waited, as the next poll shows
        os.close(self._orders)
        self._orders = -1


def can_fork_preloaded() -> bool:
    """Check whether this process has only one thread, so that a forked rank can safely use the modules
    imported here."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def _wait_and_run(orders_end: int, supervisor: int, worker: str, *, is_spawned: bool) -> NoReturn:
    die_with_parent(supervisor)
    # A session of its own, by which the rank is ended together with all that it starts.
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A rank inherits the write ends of earlier ranks' pipes. While it kept them open, those ranks would never
    # reach the end of their orders.
    _close_all_but(orders_end)
    with open(orders_end, "rb") as pipe:
        data = pipe.read()
    # The supervisor has ended without sending orders.
    if not data:
        os._exit(1)
    orders = json.loads(data)
    for path, handle in ((orders["out"], 1), (orders["err"], 2)):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, handle)
        os.close(log)
    if is_spawned or is_cuda_fork_broken():
        environment = {**os.environ, **orders["environment"]}
        command = [sys.executable, "-u", "-P", "-m", rank_start.__name__, worker]
        os.execve(sys.executable, command, environment)
    os.environ.update(orders["environment"])
    rank_start.run(worker)


def _close_all_but(excluded_fd: int) -> None:
    """Close all of the supervisor's files and pipes except `excluded_fd`; a rank must not keep them open."""
    for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle != excluded_fd:
            try:
                os.close(handle)
            except OSError:
                pass
