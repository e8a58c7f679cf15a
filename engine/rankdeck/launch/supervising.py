"""What every supervisor does around its ranks: it tells how an attempt begins and ends, hears that it is to
stop, names the one cause of a failure, and begins the next attempt where restarts are left.

Its exit code is the run's: 0 done, 1 failed, 2 bad input, 3 the machine lacks something, 130 stopped. It may
be killed at any time: the ranks die with it, and the guard says so. A failed attempt is followed by the next
one by this process replacing itself. supervisor.py runs a configuration, script_supervisor.py a person's own
script; nothing here imports torch.
"""

from __future__ import annotations

import abc
import argparse
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.cause import EXIT_STOPPED, Cause, RankEvidence, find_cause
from rankdeck.diagnose.exceptions import LACKS, advice_of, is_out_of_memory, limited_memory, name, quoted
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.launch import rank_start
from rankdeck.launch.children import Child
from rankdeck.launch.unwritten import disk_problem
from rankdeck.launch.watch import Watch
from rankdeck.observer import title
from rankdeck.rundir import EventWriter, RunDir
from rankdeck.telemetry.sampler_process import SamplerProcess


class StopAsked(BaseException):
    """SIGTERM: the guard passes on that somebody wants the run to stop."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the guard passes. `words` is the pipe for the reason of a failure.

    `restarts`: how many attempts this supervisor has begun by itself, this one included; `failed`: what the
    one before came to, where that was an exception (`_signature`).
    """

    run: RunDir
    attempt: int
    words: int | None = None
    restarts: int = 0
    failed: str = ""


class Supervising(abc.ABC):
    """One attempt of one run. `ranks` are its children, once they are there."""

    max_restarts = 0
    restarts_itself = True
    """Else whoever has started it begins the next attempt, once it has said that this may help."""

    def __init__(self, arguments: Arguments) -> None:
        title.name_process("supervisor", str(arguments.run.path))
        self._run = arguments.run
        self._arguments = arguments
        self._writer: EventWriter = arguments.run.writer("supervisor", arguments.attempt)
        self._environment = arguments.run.environment()
        self._devices = msgspec.convert(self._environment.get("devices", []), list[events.DeviceInfo])
        self._sampler: SamplerProcess | None = None
        self._ending = self._is_asked_to_stop = False
        self._reason: str | None = None
        self._restarts = self._is_victim = False
        self._failed = ""
        self.blamed_host = ""
        """Where the cause is, if that is another host."""

    @property
    @abc.abstractmethod
    def ranks(self) -> Sequence[Child]:
        """The ranks that have been started."""

    @property
    @abc.abstractmethod
    def watch(self) -> Watch:
        """What has been heard of the ranks."""

    @abc.abstractmethod
    def start_event(self) -> events.RunStarted:
        """What is known of the run when it begins."""

    @abc.abstractmethod
    def run_ranks(self) -> bool:
        """Start the ranks and wait for them; whether all did their work.

        Raises: RankdeckError: they cannot be started.
        """

    @abc.abstractmethod
    def end_ranks(self, *, stopped: bool) -> None:
        """End what is left of them."""

    @abc.abstractmethod
    def next_words(self) -> Phrase:
        """Where the next attempt begins: a sentence that is yet to end."""

    def cause(self, oom_kills: int, disk: str) -> Cause:
        """Why the ranks have failed; `disk` as in `find_cause`."""
        return find_cause(self.watch.evidence(), time.monotonic(), oom_kills, disk=disk)

    def may_restart(self, cause: Cause) -> bool:
        """Whether trying again could help; bad input stays bad."""
        return cause.exit_code == 1

    def script_status(self) -> int | None:
        """What a person's own script exited with."""
        return None

    def work(self) -> int:
        """The whole attempt; the run's exit code. Does not return where the next attempt follows."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        oom_kills = _count_oom_kills()
        try:
            self._write_start()
            code = 0 if self.run_ranks() else self._name_cause(oom_kills)
        except StopAsked:
            code = EXIT_STOPPED
            self._writer.write(events.Stopping(attempt=self._arguments.attempt))
        except RankdeckError as error:
            code = self._fail(error.problem, error.exit_code)
        except Exception as error:
            traceback.print_exc()
            code = self._fail(*_own_failure(error))
        self._ending = True
        self.end_ranks(stopped=code == EXIT_STOPPED)
        if self._sampler is not None:
            self._sampler.stop()
        self._write_end(code)
        if self._restarts and self.restarts_itself:
            self._begin_next_attempt()
        return code

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked_to_stop = True
        if not self._ending:
            self._ending = True
            raise StopAsked

    def heed_stop(self) -> None:
        """What was under way may have swallowed StopAsked: an import does, in a class that it is making.

        Raises: StopAsked.
        """
        if self._is_asked_to_stop:
            raise StopAsked

    def _write_start(self) -> None:
        self._writer.write(self.start_event(), sync=True)
        for warning in msgspec.convert(self._environment.get("problems", []), list[Problem]):
            self.raise_problem(warning)

    def began(self) -> float:
        """When the person's command began (Unix seconds); nobody asked for a restart."""
        started = None if self._arguments.restarts else self._environment.get("started")
        return float(started) if started is not None else time.time()

    def write_phase(self, phase: str, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._writer.write(events.Phase(rank=rank, phase=phase))

    def raise_problem(self, problem: Problem) -> None:
        self._writer.write(events.ProblemRaised(problem=problem), sync=True)

    def start_sampler(self, *options: str) -> None:
        """A process that reads the run's devices. A run does without it where it cannot be started."""
        pids = ",".join(str(rank.pid) for rank in self.ranks)
        arguments = ["--run", str(self._run.path), "--attempt", str(self._arguments.attempt), "--ranks", pids]
        arguments += options
        try:
            self._sampler = SamplerProcess(arguments, piped=False)
        except OSError:
            traceback.print_exc()

    def poll(self) -> bool:
        """See how ranks and sampler are; True when a hang has to end the run. Raises: as `heed_stop`."""
        self.heed_stop()
        if self._sampler is not None:
            for notice in self._sampler.poll():
                self._writer.write(events.DeviceNotice(code=notice.code, message=notice.message))
                message, advice = notice.phrase_of(notice.message), notice.phrase_of(notice.advice or "")
                self.raise_problem(Problem(notice.code, message, advice=advice or None, severity="warning"))
        return self.watch.poll()

    def _name_cause(self, oom_kills: int) -> int:
        """Raise the one problem behind the failure; the run's exit code."""
        self._ending = True
        kills = max(0, _count_oom_kills() - oom_kills)
        cause = self._with_evidence(self.cause(kills, files.refusal(self._run.path)))
        # Of one host alone it is the cause where nothing else is known.
        self._is_victim = cause.problem.code == COMMUNICATION and not self.restarts_itself
        self._failed = "" if self._is_victim else _signature(cause.problem, self.watch.evidence())
        if self._failed and self._failed == self._arguments.failed:
            message = phrase("{cause} It was the same before the restart.", cause=_sentence(cause.problem))
            return self._fail(cause.problem.but(message=message), cause.exit_code)
        if self._arguments.restarts < self.max_restarts and self.may_restart(cause):
            self._restarts = True
            self._reason = cause.problem.headline()
            told = cause.problem.but(severity="warning")
            self.raise_problem(self._restart_problem(cause.problem) if self.restarts_itself else told)
            return cause.exit_code
        return self._fail(cause.problem, cause.exit_code)

    def _with_evidence(self, cause: Cause) -> Cause:
        """With the line of the rank's log that its last words are from."""
        rank = 0 if cause.problem.rank is None else cause.problem.rank
        log = self.watch.errors_log(rank)
        found = quoted(log, cause.problem.last_lines, f"{log.parent.name}/{log.name}")
        return dataclasses.replace(cause, problem=cause.problem.but(evidence=found))

    def _restart_problem(self, cause: Problem) -> Problem:
        told = {"next": self.next_words(), "n": self._arguments.restarts + 1, "most": self.max_restarts}
        message = phrase("{cause} {next} (restart {n} of {most}).", cause=_sentence(cause), **told)
        return cause.but(code="restarted", message=message, severity="warning")

    def _begin_next_attempt(self) -> NoReturn:
        # The last one of each argument counts.
        command = [sys.executable, *sys.orig_argv[1:]]
        command += ["--attempt", str(self._arguments.attempt + 1)]
        command += ["--restarts", str(self._arguments.restarts + 1), "--failed", self._failed]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execv(command[0], command)

    def _fail(self, problem: Problem, exit_code: int) -> int:
        self._reason = problem.headline()
        self.raise_problem(problem)
        print(problem.text(), file=sys.stderr)
        return exit_code

    def _write_end(self, code: int) -> None:
        lost, disk = self.watch.lost_lines(), files.refusal(self._run.path)
        num_lines = sum(one.lines for one in lost)
        disk = disk or next((one.reason for one in lost), "")
        if disk:
            self.raise_problem(disk_problem(disk, num_lines, lost))
        outcome = {0: "completed", EXIT_STOPPED: "stopped"}.get(code, "failed")
        end = events.RunEnded(
            outcome=outcome,
            exit_code=code,
            attempt=self._arguments.attempt,
            script_status=self.script_status(),
        )
        self._writer.write(end, sync=True)
        if self._writer.dropped or (disk and code == 0):
            # Events cannot say it, or lists would not: the guard has room for one last word.
            disk = self._writer.drop_reason or disk
            words = disk_problem(disk, self._writer.dropped + num_lines, lost).message
            self._reason = f"{self._reason} {words}" if self._reason else words
        self.watch.close()
        if self._arguments.words is not None and self._reason is not None:
            told = {"reason": self._reason[:4000]}
            told |= {"again": self._failed[:4000]} if self._restarts else {}
            told |= {"victim": "yes"} if self._is_victim else {}
            told |= {"host": self.blamed_host} if self.blamed_host else {}
            try:
                os.write(self._arguments.words, json.dumps(told).encode())
            except OSError:
                pass


def _own_failure(error: Exception) -> tuple[Problem, int]:
    """Of the supervisor itself, with the run's exit code."""
    named = name("", str(error))
    if named is not None and named.code in LACKS:
        return Problem(named.code, str(error), advice=advice_of(named)), 3
    if is_out_of_memory(error):
        message = phrase("There was not enough memory to start the ranks.")
        advice = limited_memory() or phrase("Close other programs, or use fewer devices.")
        return Problem("out-of-memory", message, advice=advice), 1
    message = phrase("{error}: {text}", error=type(error).__name__, text=str(error) or phrase("no message"))
    advice = phrase("The whole traceback is in the supervisor's log, logs/supervisor.*.err.")
    return Problem("internal", message, advice=advice), 1


def _signature(problem: Problem, ranks: Sequence[RankEvidence]) -> str:
    """The exception of a rank, where it was raised and in which step: what would come again, whatever the
    machine does. Empty for every other cause."""
    for rank in ranks:
        own = None if rank.failure is None else rank.failure.problem
        if (
            own is not None
            and rank.beat is not None
            and (own.code, own.message) == (problem.code, problem.message)
        ):
            return f"{own.code} at {own.path}:{own.line} in step {rank.beat.step}"
    return ""


def _sentence(problem: Problem) -> str:
    said = problem.said("message")
    return said if said.endswith(".") else phrase("{words}.", words=said)


def _count_oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def parser(prog: str) -> argparse.ArgumentParser:
    """The arguments that every supervisor has."""
    made = argparse.ArgumentParser(prog=prog)
    made.add_argument("run", type=Path)
    made.add_argument("--attempt", type=int, default=0)
    made.add_argument("--words", type=int, help="a pipe for the reason of a failure")
    made.add_argument("--restarts", type=int, default=0, help="attempts begun without being asked")
    made.add_argument("--failed", default="", help="the exception of the attempt before")
    return made


def main(make: Callable[[list[str]], Supervising]) -> NoReturn:
    """One attempt, from the command line's arguments to the run's exit code."""
    rank_start.forgive_full_disks()
    code = 1
    try:
        code = make(sys.argv[1:]).work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The store's threads need no farewell.
        os._exit(code)
