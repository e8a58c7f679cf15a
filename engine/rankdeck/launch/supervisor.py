"""The supervisor of one run: `python -P -m rankdeck.launch.supervisor RUN`, started by the guard.

    tell that the run has begun  ->  import torch, fork the ranks  ->  prepare data  ->  release the ranks
    ->  watch them  ->  name the one cause if one fails  ->  tell that the run has ended

Its exit code is the run's: 0 done, 1 failed, 2 bad input, 3 the machine lacks something, 130 stopped. It may
be killed at any time: the ranks die with it, and the guard says so. Where launch.max_restarts allows it, a
failed attempt is followed by the next one: this process replaces itself, because ranks are forked only from
one that is fresh. Read agent.py and watch.py next.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from rankdeck import events
from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.garbage import kept_for_good
from rankdeck.checkpoint_files import newest_whole
from rankdeck.config import RunConfig
from rankdeck.diagnose.cause import EXIT_STOPPED, Cause, find_cause
from rankdeck.launch import rank_start
from rankdeck.launch.rank_processes import GRACE_S, RankProcess, can_fork_preloaded, end_ranks
from rankdeck.launch.watch import Watch
from rankdeck.rundir import EventWriter, RunDir
from rankdeck.telemetry.sampler_process import SamplerProcess
from rankdeck.torch_compat.versions import version_problem
from rankdeck.training.agreement import SAVING

DEFAULT_WORKER = "rankdeck.training.worker"
_PAGE_BYTES = 4096
# What our own worker imports sooner or later; torch._dynamo is what the first optimizer takes 0.7 s for.
_PRELOADED = (
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.data",
    "rankdeck.training.loop",
    "rankdeck.training.workload",
    "rankdeck.checkpoint.store",
    "rankdeck.checkpoint.weights",
)


class StopAsked(BaseException):
    """SIGTERM: the guard passes on that somebody wants the run to stop."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the guard passes. `words` is the pipe for the reason of a failure.

    `restarts`: how many attempts this supervisor has begun by itself, this one included.
    """

    run: RunDir
    attempt: int
    worker: str
    words: int | None
    restarts: int = 0


class Supervisor:
    """One attempt of one run."""

    def __init__(self, arguments: Arguments) -> None:
        self._run = arguments.run
        self._arguments = arguments
        self._writer: EventWriter = arguments.run.writer("supervisor", arguments.attempt)
        self._config: RunConfig = arguments.run.config()
        self._environment = arguments.run.environment()
        self._devices = msgspec.convert(self._environment.get("devices", []), list[events.DeviceInfo])
        num_devices = max(1, len(self._devices))
        self._world_size = 1 if self._config.strategy_card.one_process else num_devices
        self._watch = Watch(
            arguments.run, arguments.attempt, self._config.launch.timeout_s, self._raise_problem
        )
        self._ranks: list[RankProcess] = []
        self._sampler: SamplerProcess | None = None
        self._ending = False
        self._reason: str | None = None
        self._restarts = False
        shutil.rmtree(arguments.run.requests_folder, ignore_errors=True)

    def work(self) -> int:
        """The whole attempt; the run's exit code. Does not return where the next attempt follows."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        oom_kills = _count_oom_kills()
        try:
            self._write_start()
            self._fork_ranks()
            self._prepare_data()
            code = 0 if self._run_ranks() else self._name_cause(oom_kills)
        except StopAsked:
            code = EXIT_STOPPED
        except RankdeckError as error:
            code = self._fail(error.problem, error.exit_code)
        except Exception as error:
            traceback.print_exc()
            advice = "The whole traceback is in the supervisor's log, logs/supervisor.*.err."
            code = self._fail(Problem("internal", f"{type(error).__name__}: {error}", advice=advice), 1)
        self._ending = True
        end_ranks(self._ranks, 0 if code != EXIT_STOPPED else GRACE_S, self._is_saving)
        if self._sampler is not None:
            self._sampler.stop()
        self._write_end(code)
        if self._restarts:
            self._begin_next_attempt()
        return code

    def _is_saving(self) -> bool:
        return (self._run.requests_folder / SAVING).exists()

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        if not self._ending:
            self._ending = True
            raise StopAsked

    def _write_start(self) -> None:
        config = self._config
        train = config.train
        # When the person's command began; nobody asked for a restart.
        started = None if self._arguments.restarts else self._environment.get("started")
        self._writer.write(
            events.RunStarted(
                run=self._run.name,
                attempt=self._arguments.attempt,
                strategy=config.strategy.use,
                options=config.strategy.options,
                world_size=self._world_size,
                devices=self._devices,
                steps=train.known_steps,
                global_batch=train.global_batch,
                started=float(started) if started is not None else time.time(),
                pace=config.rehearsal.pace,
            ),
            sync=True,
        )
        for warning in msgspec.convert(self._environment.get("problems", []), list[Problem]):
            self._raise_problem(warning)

    def _write_phase(self, phase: str) -> None:
        for rank in range(self._world_size):
            self._writer.write(events.Phase(rank=rank, phase=phase))

    def _raise_problem(self, problem: Problem) -> None:
        self._writer.write(events.ProblemRaised(problem=problem), sync=True)

    def _fork_ranks(self) -> None:
        """Import what ranks need, then fork them, while there is one thread."""
        self._write_phase("starting")
        _set_threads(self._world_size)
        uuids = [device.uuid for device in self._devices if device.uuid is not None]
        if uuids:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            _preload(self._config, self._arguments.worker)
        fresh = bool(uuids) or not can_fork_preloaded()
        for rank in range(self._world_size):
            self._ranks.append(RankProcess(rank, self._arguments.worker, fresh=fresh))
        self._watch.begin(self._ranks)
        problem = version_problem()
        if problem is not None:
            self._raise_problem(problem)

    def _prepare_data(self) -> None:
        """What is made once for all ranks (a vocabulary). Threads that it starts come after the fork."""
        from rankdeck.training import workload

        self._write_phase("preparing data")
        workload.prepare(self._config)

    def _run_ranks(self) -> bool:
        """Release the ranks and wait for them; whether all did their work."""
        from rankdeck.launch.agent import RankAgent

        self._start_sampler()
        agent = RankAgent(self._run.name, self._ranks, self._release, self._poll, self._watch.patience_s)
        succeeded = not agent.run().is_failed()
        self._ending = True
        return succeeded

    def _start_sampler(self) -> None:
        """A process that reads the run's devices. A run does without it where it cannot be started, and in a
        rehearsal of one process, which tells itself how busy each of its devices is."""
        one_process = self._config.strategy_card.one_process and len(self._devices) > 1
        if not self._devices or (one_process and self._devices[0].kind == "virtual"):
            return
        pids = ",".join(str(rank.pid) for rank in self._ranks)
        arguments = ["--run", str(self._run.path), "--attempt", str(self._arguments.attempt), "--ranks", pids]
        try:
            self._sampler = SamplerProcess(arguments, piped=False)
        except OSError:
            traceback.print_exc()

    def _poll(self) -> bool:
        """See how ranks and sampler are; True when a hang has to end the run."""
        if self._sampler is not None:
            for notice in self._sampler.poll():
                self._writer.write(events.DeviceNotice(code=notice.code, message=notice.message))
                self._raise_problem(
                    Problem(notice.code, notice.message, advice=notice.advice, severity="warning")
                )
        return self._watch.poll()

    def _release(self, rank: RankProcess, torch_environment: Mapping[str, str]) -> None:
        number = rank.rank
        environment = {
            **torch_environment,
            "RANKDECK_RUN": str(self._run.path),
            "RANKDECK_ATTEMPT": str(self._arguments.attempt),
            "RANKDECK_SUPERVISOR_PID": str(os.getpid()),
            "RANKDECK_HEARTBEAT": self._watch.heartbeats,
            rank_start.STACKS: str(self._watch.log(number, "stacks")),
            # gloo listens on the interface that the host's name resolves to; ranks of one host need no other.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        rank.release(environment, self._watch.log(number, "out"), self._watch.log(number, "err"))

    def _name_cause(self, oom_kills: int) -> int:
        """Raise the one problem behind the failure; the run's exit code."""
        self._ending = True
        kills = max(0, _count_oom_kills() - oom_kills)
        full = _is_full(self._run.path)
        cause = find_cause(self._watch.evidence(), time.monotonic(), kills, disk_is_full=full)
        if self._may_restart(cause):
            self._restarts = True
            self._raise_problem(self._restart_problem(cause.problem))
            return cause.exit_code
        return self._fail(cause.problem, cause.exit_code)

    def _may_restart(self, cause: Cause) -> bool:
        """Bad input stays bad, and the same numbers become NaN again."""
        left = self._config.launch.max_restarts - self._arguments.restarts
        return left > 0 and cause.exit_code == 1 and cause.problem.code != "loss-not-finite"

    def _restart_problem(self, cause: Problem) -> Problem:
        checkpoint, _ = newest_whole(self._run.checkpoints_folder)
        where = (
            f"after step {checkpoint.step}" if checkpoint else "from the beginning: there is no checkpoint"
        )
        count = f"{self._arguments.restarts + 1} of {self._config.launch.max_restarts}"
        return msgspec.structs.replace(
            cause,
            code="restarted",
            message=f"{cause.message} The run goes on {where} (restart {count}).",
            severity="warning",
        )

    def _begin_next_attempt(self) -> NoReturn:
        command = [sys.executable, "-P", "-m", "rankdeck.launch.supervisor", *sys.argv[1:]]
        # The last one of each counts.
        command += ["--attempt", str(self._arguments.attempt + 1)]
        command += ["--restarts", str(self._arguments.restarts + 1)]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execv(command[0], command)

    def _fail(self, problem: Problem, exit_code: int) -> int:
        self._reason = problem.headline()
        self._raise_problem(problem)
        print(problem.text(), file=sys.stderr)
        return exit_code

    def _write_end(self, code: int) -> None:
        dropped = self._watch.dropped_lines()
        if dropped or _is_full(self._run.path):
            self._raise_problem(_disk_problem(dropped))
        outcome = {0: "completed", EXIT_STOPPED: "stopped"}.get(code, "failed")
        self._writer.write(
            events.RunEnded(outcome=outcome, exit_code=code, attempt=self._arguments.attempt), sync=True
        )
        if self._writer.dropped:
            # Events cannot say it: the guard has room for one last word.
            words = _disk_problem(self._writer.dropped + dropped).message
            self._reason = f"{self._reason} {words}" if self._reason else words
        self._watch.close()
        if self._arguments.words is not None and self._reason is not None:
            try:
                os.write(self._arguments.words, json.dumps({"reason": self._reason[:4000]}).encode())
            except OSError:
                pass


def _is_full(folder: Path) -> bool:
    """Whether the disk has no room for another page of events."""
    try:
        usage = os.statvfs(folder)
    except OSError:
        return False
    return usage.f_bavail * usage.f_frsize < _PAGE_BYTES


def _disk_problem(dropped: int) -> Problem:
    lines = f"{dropped} lines" if dropped else "some"
    return Problem(
        "disk-full",
        f"No space was left on the disk: {lines} of its events could not be written.",
        advice="Free space on the disk; curves of this run have gaps.",
        severity="warning",
    )


def _set_threads(num_ranks: int) -> None:
    """Cores are shared by the ranks, unless the person has said how many threads each may have."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    # numpy's own threads would begin at its import, before ranks are forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _preload(config: RunConfig, worker: str) -> None:
    """Import what the ranks will need, none of it a person's own. What fails is left to the rank to say."""
    from rankdeck.config.catalog import DATA, MODELS

    names = ["torch", "torch.distributed"]
    if worker == DEFAULT_WORKER:
        cards: list[Any] = [config.strategy_card, MODELS.get(config.model.use), DATA.get(config.data.use)]
        names += [*_PRELOADED, *(card.target.partition(":")[0] for card in cards if card is not None)]
    with kept_for_good():
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:
                traceback.print_exc()


def _count_oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _parse(argv: list[str]) -> Arguments:
    parser = argparse.ArgumentParser(prog="rankdeck.launch.supervisor")
    parser.add_argument("run", type=Path)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument(
        "--worker", default=DEFAULT_WORKER, help="the module, or .py file, that every rank runs"
    )
    parser.add_argument("--words", type=int, help="a pipe for the reason of a failure")
    parser.add_argument("--restarts", type=int, default=0, help="attempts begun without being asked")
    given = parser.parse_args(argv)
    return Arguments(RunDir(given.run), given.attempt, given.worker, given.words, given.restarts)


def main() -> NoReturn:
    """One attempt, from the command line's arguments to the run's exit code."""
    rank_start.forgive_full_disks()
    code = 1
    try:
        code = Supervisor(_parse(sys.argv[1:])).work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The store's threads need no farewell.
        os._exit(code)


if __name__ == "__main__":
    main()
