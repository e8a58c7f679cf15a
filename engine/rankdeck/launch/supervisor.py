"""The supervisor of a configuration's run: `python -P -m rankdeck.launch.supervisor RUN`, started by the
guard.

    tell that the run has begun  ->  import torch, fork the ranks  ->  prepare data  ->  release the ranks
    ->  watch them  ->  name the one cause if one fails  ->  tell that the run has ended

Ranks are forked only from a process that is fresh. What it has in common with script_supervisor.py is in
supervising.py. Read store.py and watch.py next.
"""

from __future__ import annotations

import dataclasses
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

from rankdeck import events
from rankdeck.base import cgroups
from rankdeck.base.errors import Problem
from rankdeck.base.garbage import kept_for_good
from rankdeck.base.heartbeat import STACKS, die_with_parent
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.checkpoint_files import newest_whole
from rankdeck.config import RunConfig
from rankdeck.diagnose.cause import Cause
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.diagnose.fixes import with_fix
from rankdeck.launch import rank_start, supervising
from rankdeck.launch.children import GRACE_S, Child, end_ranks
from rankdeck.launch.host_watch import HeadWatch, MemberWatch
from rankdeck.launch.layout import Layout, alone, layout_of
from rankdeck.launch.store import RankStore
from rankdeck.launch.torchrun import rank_variables
from rankdeck.launch.watch import Watch
from rankdeck.rundir import FIRST_STEPS, RunDir
from rankdeck.torch_compat.processes import cuda_was_touched
from rankdeck.torch_compat.versions import version_problem

DEFAULT_WORKER = "rankdeck.training.worker"
_POLL_S = 0.05
# What our own worker imports sooner or later; torch._dynamo is what the first optimizer takes 0.7 s for.
_PRELOADED = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.data",
    "rankdeck.training.loop",
    "rankdeck.training.verify.before_run",
    "rankdeck.training.workload",
    "rankdeck.checkpoint.store",
    "rankdeck.checkpoint.weights",
)


@dataclasses.dataclass(frozen=True)
class OwnArguments(supervising.Arguments):
    """`worker` is the module or .py file that every rank runs; `layout` says on which hosts they are, and
    `store` is the head's socket where they meet."""

    worker: str = DEFAULT_WORKER
    layout: Layout | None = None
    store: int | None = None


class Supervisor(supervising.Supervising):
    """One attempt of one run."""

    def __init__(self, arguments: OwnArguments) -> None:
        super().__init__(arguments)
        self._worker = arguments.worker
        self._config: RunConfig = arguments.run.config()
        num_devices = max(1, len(self._devices))
        own = 1 if self._config.strategy_card.one_process else num_devices
        self._layout = arguments.layout or alone(own, self._devices)
        self._store = arguments.store
        self._watch = self._make_watch()
        self._ranks: list[RankProcess] = []
        self._start_afresh = False
        launch = self._config.launch
        self.max_restarts = max(launch.max_restarts, int(launch.on_hang == "restart"))
        self.restarts_itself = self._layout.is_alone
        shutil.rmtree(arguments.run.requests_folder, ignore_errors=True)

    def _make_watch(self) -> Watch:
        given = self._run, self._arguments.attempt, self._config.launch, self.raise_problem
        compiles = self._config.train.compile
        if self._layout.is_alone:
            return Watch(*given, compiles=compiles)
        if self._layout.index == 0:
            return HeadWatch(*given, compiles=compiles, hosts=self._layout.host_of_ranks)
        return MemberWatch(*given, compiles=compiles, tell=self._writer.write)

    @property
    def ranks(self) -> Sequence[RankProcess]:
        return self._ranks

    @property
    def watch(self) -> Watch:
        return self._watch

    def start_event(self) -> events.RunStarted:
        config = self._config
        return events.RunStarted(
            run=self._run.name,
            attempt=self._arguments.attempt,
            strategy=config.strategy.use,
            options=config.strategy.options,
            world_size=self._layout.world_size,
            devices=self._layout.devices,
            steps=self._environment.get(FIRST_STEPS, config.train.known_steps),
            global_batch=config.train.global_batch,
            started=self.began(),
            pace=config.rehearsal.pace,
            cores=cgroups.num_cores(),
        )

    def run_ranks(self) -> bool:
        self._fork_ranks()
        self._prepare_data()
        return self._release_ranks()

    def end_ranks(self, *, stopped: bool) -> None:
        end_ranks(self._ranks, GRACE_S if stopped else 0, self._watch.saves.goes_on)

    def _fork_ranks(self) -> None:
        """Import what ranks need, then fork them, while there is one thread."""
        layout = self._layout
        self.write_phase(marked("starting"), layout.own_ranks)
        _set_threads(layout.own.ranks)
        uuids = [device.uuid for device in self._devices if device.uuid is not None]
        if uuids:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            if self._worker == DEFAULT_WORKER:
                _preload(self._config)
            self.heed_stop()
        self._start_afresh = bool(uuids) or not can_fork_preloaded()
        for rank in layout.own_ranks:
            self._ranks.append(RankProcess(rank, self._worker, fresh=self._start_afresh))
        self._watch.begin(self._ranks, layout.world_size)
        problem = version_problem()
        if problem is not None:
            self.raise_problem(problem)

    def _prepare_data(self) -> None:
        """What is made once for all ranks (a vocabulary). Threads that it starts come after the fork."""
        self.write_phase(marked("preparing data"), self._layout.own_ranks)
        if self._worker == DEFAULT_WORKER:
            from rankdeck.training import workload

            workload.prepare(self._config)

    def _release_ranks(self) -> bool:
        # A rehearsal of one process tells itself how busy each of its devices is.
        one_process = self._config.strategy_card.one_process and len(self._devices) > 1
        if self._devices and not (one_process and self._devices[0].kind == "virtual"):
            self.start_sampler("--first", str(self._layout.own_ranks.start))
        store = RankStore(self._layout, self._store)
        for rank in self._ranks:
            self._release(rank, store)
        if self._start_afresh or "torch" in sys.modules:
            store.host()
        while (succeeded := self._poll_ranks()) is None:
            store.serve()
            time.sleep(_POLL_S)
        self._ending = True
        if succeeded:
            store.wait_for_others(self.heed_stop)
        else:
            end_ranks(self._ranks, GRACE_S)
        return succeeded

    def _poll_ranks(self) -> bool | None:
        """True once all have done their work, False when one has failed, None while they work."""
        over = [rank for rank in self._ranks if rank.poll() is not None]
        if not all(map(self._watch.has_finished, over)):
            self._settle()
            return False
        if self.poll():
            return False
        return True if len(over) == len(self._ranks) else None

    def _settle(self) -> None:
        """A victim may be seen first: the cause gets a moment to be seen before the others are ended."""
        began = time.monotonic()
        while time.monotonic() - began < self._watch.patience_s():
            time.sleep(_POLL_S)
            for rank in self._ranks:
                rank.poll()

    @property
    def _interface(self) -> str:
        return self._layout.interface() or "lo"

    def _release(self, rank: RankProcess, store: RankStore) -> None:
        number = rank.rank
        environment = {
            **rank_variables(self._layout, number, store.address, self._run.name),
            "RANKDECK_RUN": str(self._run.path),
            "RANKDECK_ATTEMPT": str(self._arguments.attempt),
            "RANKDECK_SUPERVISOR_PID": str(os.getpid()),
            "RANKDECK_HEARTBEAT": self._watch.heartbeats,
            STACKS: str(self._watch.log(number, "stacks")),
            # gloo listens on the interface that the host's name resolves to, which may be any.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", self._interface),
        }
        if not self._layout.is_alone:
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", f"={self._interface}")
        rank.release(environment, self._watch.log(number, "out"), self._watch.log(number, "err"))

    def raise_problem(self, problem: Problem) -> None:
        """With what would fix the configuration, where that is known. That others are gone is no cause where
        these are on other hosts: what became of them is told there."""
        if problem.code == COMMUNICATION and not self._layout.is_alone:
            problem = problem.but(severity="warning")
        super().raise_problem(with_fix(problem, self._config))

    def cause(self, oom_kills: int, disk: str) -> Cause:
        found = super().cause(oom_kills, disk)
        self.blamed_host = self._layout.other_host_of(found.problem.rank)
        return found

    def may_restart(self, cause: Cause) -> bool:
        """Bad input stays bad, and the same numbers become NaN again."""
        code, left = cause.problem.code, self._config.launch.max_restarts - self._arguments.restarts
        return super().may_restart(cause) and code != "loss-not-finite" and (code == "hang" or left > 0)

    def next_words(self) -> Phrase:
        checkpoint, _ = newest_whole(self._run.checkpoints_folder)
        if checkpoint is None:
            return phrase("The run goes on from the beginning: there is no checkpoint")
        return phrase("The run goes on after step {step}", step=checkpoint.step)


def _set_threads(num_ranks: int) -> None:
    """Cores are shared by the ranks, unless the person has said how many threads each may have."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    # numpy's own threads would begin at its import, before ranks are forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _preload(config: RunConfig) -> None:
    """Import what the ranks will need, none of it a person's own. What fails is left to the rank to say."""
    from rankdeck.config.catalog import DATA, MODELS

    cards: list[Any] = [config.strategy_card, MODELS.get(config.model.use), DATA.get(config.data.use)]
    targets = (card.target.partition(":")[0] for card in cards if card is not None)
    with kept_for_good():
        for name in (*_PRELOADED, *targets):
            try:
                importlib.import_module(name)
            except Exception:
                traceback.print_exc()


def _make(argv: list[str]) -> Supervisor:
    parser = supervising.parser("rankdeck.launch.supervisor")
    parser.add_argument(
        "--worker", default=DEFAULT_WORKER, help="the module, or .py file, that every rank runs"
    )
    parser.add_argument("--hosts", type=layout_of, help="who has which ranks, where there are several hosts")
    parser.add_argument("--store", type=int, help="a socket for the ranks' store to listen at")
    given = parser.parse_args(argv)
    return Supervisor(
        OwnArguments(
            RunDir(given.run),
            given.attempt,
            given.words,
            given.restarts,
            given.failed,
            given.worker,
            given.hosts,
            given.store,
        )
    )


# Rank processes: forked early, released late, ended by session.
#
# The supervisor forks all ranks while it has one thread and has touched no GPU, right after it has imported
# torch: a rank then begins in 0.1 s instead of 2. Each waits at a pipe for its orders (environment, logs),
# which are known only after the data is prepared and the rendezvous is held. Where forking is not safe
# (GPUs, a second thread) the same process replaces itself with a fresh interpreter instead.


class RankProcess(Child):
    """One rank of a configuration, forked early."""

    def __init__(self, rank: int, worker: str, *, fresh: bool) -> None:
        super().__init__(rank)
        read_end, self._orders = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _wait_and_run(read_end, supervisor, worker, fresh=fresh)
            finally:
                os._exit(1)
        os.close(read_end)

    def release(self, environment: Mapping[str, str], out: Path, err: Path) -> None:
        """Send the rank its orders; it begins at once."""
        orders = {"environment": dict(environment), "out": str(out), "err": str(err)}
        data = json.dumps(orders).encode()
        try:
            while data:
                data = data[os.write(self._orders, data) :]
        except BrokenPipeError:
            pass  # it was killed while it waited: the next poll sees that
        os.close(self._orders)
        self._orders = -1


def can_fork_preloaded() -> bool:
    """Whether this process has one thread, so that what it has imported may be forked."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def _wait_and_run(orders_end: int, supervisor: int, worker: str, *, fresh: bool) -> NoReturn:
    die_with_parent(supervisor)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(orders_end)
    with open(orders_end, "rb") as pipe:
        data = pipe.read()
    if not data:
        os._exit(1)
    orders = json.loads(data)
    for path, handle in ((orders["out"], 1), (orders["err"], 2)):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, handle)
        os.close(log)
    if fresh or cuda_was_touched():
        environment = {**os.environ, **orders["environment"]}
        command = [sys.executable, "-u", "-P", "-m", rank_start.__name__, worker]
        os.execve(sys.executable, command, environment)
    os.environ.update(orders["environment"])
    rank_start.run(worker)


def _close_all_but(kept: int) -> None:
    """The supervisor's own files and pipes are none of a rank's business."""
    for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle != kept:
            try:
                os.close(handle)
            except OSError:
                pass


if __name__ == "__main__":
    supervising.main(_make)
