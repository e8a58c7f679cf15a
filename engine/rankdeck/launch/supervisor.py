"""The supervisor of a run: `python -P -m rankdeck.launch.supervisor RUN`, started by the guard.

    tell that the run has begun  ->  start the ranks, watch them  ->  name the one cause if one fails  ->  end
    what is left  ->  tell that the run has ended, or begin the next attempt where restarts are left

What ranks are, a configuration's or a person's own script's, is for its group of ranks to know: read
rank_group.py, forked_ranks.py and script_ranks.py next. Nothing here imports torch, and no script's
supervisor does: the script's own may be another one.

Its exit code is the run's: 0 done, 1 failed, 2 bad input, 3 the machine lacks something, 130 stopped. It may
be killed at any time: the ranks die with it, and the guard says so. A failed attempt is followed by the next
one by this process replacing itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from rankdeck import events
from rankdeck.base import cgroups, files
from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.phrases import marked, phrase
from rankdeck.diagnose.cause import EXIT_STOPPED, Cause, RankEvidence, find_cause
from rankdeck.diagnose.exceptions import LACKS, advice_of, is_out_of_memory, limited_memory, name, quoted
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.launch import rank_start
from rankdeck.launch.children import Child, drain, end_ranks
from rankdeck.launch.layout import layout_of
from rankdeck.launch.rank_group import DEFAULT_WORKER, Arguments, RankGroup, StopAsked, SupervisorCalls
from rankdeck.launch.streams import NOWHERE, from_argument
from rankdeck.launch.unwritten import disk_problem
from rankdeck.observer import title
from rankdeck.rundir import EventWriter, RunDir
from rankdeck.telemetry.sampler_process import SamplerProcess

_POLL_S = 0.05
_CLOSING_S = 0.3
"""How long the output of a rank that has ended may take to end."""


class Supervisor(SupervisorCalls):
    """One attempt of one run."""

    def __init__(self, arguments: Arguments) -> None:
        title.name_process("supervisor", str(arguments.run.path))
        self._run, self._arguments = arguments.run, arguments
        self._writer: EventWriter = arguments.run.writer("supervisor", arguments.attempt)
        self._group = _group_of(arguments, self)
        self._watch = self._group.watch
        self._sampler: SamplerProcess | None = None
        self._ending = self.is_asked_to_stop = False
        self._reason: str | None = None
        self._restarts = self._is_victim = False
        self._failed = ""

    def work(self) -> int:
        """The whole attempt; the run's exit code. Does not return where the next attempt follows."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        oom_kills = _count_oom_kills()
        try:
            self._write_start()
            code = 0 if self._run_ranks() else self._name_cause(oom_kills)
        except StopAsked:
            code = EXIT_STOPPED
            self._writer.write(events.Stopping(attempt=self._arguments.attempt))
        except RankdeckError as error:
            code = self._fail(error.problem, error.exit_code)
        except Exception as error:
            traceback.print_exc()
            code = self._fail(*_own_failure(error))
        self._ending = True
        grace_s = self._group.grace_s if code == EXIT_STOPPED else 0
        end_ranks(self._group.ranks, grace_s, self._watch.saves.goes_on)
        self._drain(self._group.ranks)
        self._group.close()
        if self._sampler is not None:
            self._sampler.stop()
        goes_on = self._restarts and self._group.restarts_itself and not self.is_asked_to_stop
        self._write_end(code, goes_on=goes_on)
        if goes_on:
            self._begin_next_attempt()
        return code

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked_to_stop = True
        if not self._ending:
            self._ending = True
            raise StopAsked

    def heed_stop(self) -> None:
        """What was under way may have swallowed StopAsked: an import does, in a class that it is making.

        Raises: StopAsked.
        """
        if self.is_asked_to_stop:
            raise StopAsked

    def _write_start(self) -> None:
        started = events.RunStarted(
            run=self._run.name,
            attempt=self._arguments.attempt,
            started=self._began(),
            cores=cgroups.num_cores(),
            **self._group.facts(),
        )
        self._writer.write(started, sync=True)
        for warning in msgspec.convert(self._group.environment.get("problems", []), list[Problem]):
            self.raise_problem(warning)

    def _began(self) -> float:
        """When the person's command began (Unix seconds); nobody asked for a restart."""
        started = None if self._arguments.restarts else self._group.environment.get("started")
        return float(started) if started is not None else time.time()

    def write(self, event: events.Event) -> None:
        self._writer.write(event)

    def _write_phase(self, phase: str) -> None:
        for rank in self._group.numbers:
            self.write(events.Phase(rank=rank, phase=phase))

    def raise_problem(self, problem: Problem) -> None:
        told = self._group.in_own_words(problem)
        self._writer.write(events.ProblemRaised(problem=told), sync=True)

    def _start_sampler(self) -> None:
        """A process that reads the run's devices. A run does without it where it cannot be started."""
        options = self._group.sampler_options()
        if options is None:
            return
        pids = ",".join(str(rank.pid) for rank in self._group.ranks)
        arguments = ["--run", str(self._run.path), "--attempt", str(self._arguments.attempt), "--ranks", pids]
        try:
            self._sampler = SamplerProcess([*arguments, *options], piped=False)
        except OSError:
            traceback.print_exc()

    def _run_ranks(self) -> bool:
        """Start the ranks and wait for them; whether all did their work.

        Raises: RankdeckError: they cannot be started.
        """
        group = self._group
        self._write_phase(marked("starting"))
        group.start()
        self._write_phase(group.second_phase)
        group.release()
        self._start_sampler()
        have_succeeded = self._wait_for_ranks()
        self._ending = True
        if have_succeeded:
            group.leave()
        else:
            end_ranks(group.ranks, group.grace_s)
            self._drain(group.ranks)
        return have_succeeded

    def _wait_for_ranks(self) -> bool:
        """True once all have done their work, False when one has failed or a hang has to end the run."""
        group = self._group
        while True:
            over = [rank for rank in group.ranks if rank.poll() is not None]
            if not all(map(self._watch.has_finished, over)) and not group.excuses(over):
                self._ending = True  # from here on a stop changes nothing of the cause
                self._settle()
                return False
            if self._poll():
                return False
            if len(over) == len(group.ranks):
                return True
            if group.store is not None and (problem := group.store.serve()) is not None:
                self.raise_problem(problem)
            group.wait()

    def _settle(self) -> None:
        """A victim may be seen first: the cause gets a moment to be seen, and what it said time to arrive,
        before the others are ended."""
        began_s = time.monotonic()
        while True:
            self._drain([rank for rank in self._group.ranks if rank.poll() is not None], is_patient=False)
            if time.monotonic() - began_s >= self._watch.patience_s():
                return
            time.sleep(_POLL_S)

    def _drain(self, ranks: Sequence[Child], *, is_patient: bool = True) -> None:
        """Whoever reads what they have written is waited for until a stop is asked for."""
        drain(ranks, _CLOSING_S, is_patient=is_patient, given_up=lambda: self.is_asked_to_stop)

    def _poll(self) -> bool:
        """See how ranks and sampler are; True when a hang has to end the run. Raises: as `heed_stop`."""
        self.heed_stop()
        if self._sampler is not None:
            for notice in self._sampler.poll():
                self.write(events.DeviceNotice(code=notice.code, message=notice.message))
                message, advice = notice.phrase_of(notice.message), notice.phrase_of(notice.advice or "")
                self.raise_problem(Problem(notice.code, message, advice=advice or None, severity="warning"))
        return self._watch.poll()

    def _name_cause(self, oom_kills: int) -> int:
        """Raise the one problem behind the failure; the run's exit code.

        Raises: StopAsked: that is what the others' ranks ended for.
        """
        kills = max(0, _count_oom_kills() - oom_kills)
        disk = files.refusal(self._run.path)
        found = find_cause(self._watch.evidence(), time.monotonic(), kills, disk=disk)
        cause = self._with_evidence(self._group.cause(found))
        if self.is_asked_to_stop and cause.problem.code == COMMUNICATION:
            raise StopAsked
        # Of one host alone it is the cause where nothing else is known.
        self._is_victim = cause.problem.code == COMMUNICATION and not self._group.restarts_itself
        self._failed = "" if self._is_victim else _signature(cause.problem, self._watch.evidence())
        if self._failed and self._failed == self._arguments.failed:
            message = phrase("{cause} It was the same before the restart.", cause=_sentence(cause.problem))
            return self._fail(cause.problem.but(message=message), cause.exit_code)
        has_restarts = self._arguments.restarts < self._group.max_restarts and not self.is_asked_to_stop
        if has_restarts and self._group.may_restart(cause):
            self._restarts = True
            self._reason = cause.problem.headline()
            told = cause.problem.but(severity="warning")
            self.raise_problem(self._restart_problem(cause.problem) if self._group.restarts_itself else told)
            return cause.exit_code
        return self._fail(cause.problem, cause.exit_code)

    def _with_evidence(self, cause: Cause) -> Cause:
        """With the line of the rank's log that its last words are from."""
        rank = 0 if cause.problem.rank is None else cause.problem.rank
        log = self._watch.errors_log(rank)
        found = quoted(log, cause.problem.last_lines, f"{log.parent.name}/{log.name}")
        return dataclasses.replace(cause, problem=cause.problem.but(evidence=found))

    def _restart_problem(self, cause: Problem) -> Problem:
        message = phrase(
            "{cause} {next} (restart {n} of {most}).",
            cause=_sentence(cause),
            next=self._group.next_words(),
            n=self._arguments.restarts + 1,
            most=self._group.max_restarts,
        )
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

    def _write_end(self, code: int, *, goes_on: bool) -> None:
        """The end of the attempt, and of the run unless that goes on."""
        lost, disk = self._watch.lost_lines(), files.refusal(self._run.path)
        num_lines = sum(one.lines for one in lost)
        disk = disk or next((one.reason for one in lost), "")
        if disk:
            self.raise_problem(disk_problem(disk, num_lines, lost))
        outcome = {0: "completed", EXIT_STOPPED: "stopped"}.get(code, "failed")
        end = events.RunEnded(
            outcome=outcome,
            exit_code=code,
            attempt=self._arguments.attempt,
            script_status=self._group.script_status(),
        )
        self._writer.write(end, sync=True)
        if self._writer.dropped or (disk and code == 0):
            # Events cannot say it, or lists would not: the guard has room for one last word.
            disk = self._writer.drop_reason or disk
            words = disk_problem(disk, self._writer.dropped + num_lines, lost).message
            self._reason = f"{self._reason} {words}" if self._reason else words
        self._watch.close()
        if self._arguments.words is not None and self._reason is not None and not goes_on:
            told = {"reason": self._reason[:4000]}
            told |= {"again": self._failed[:4000]} if self._restarts else {}
            told |= {"victim": "yes"} if self._is_victim else {}
            told |= {"host": self._group.blamed_host} if self._group.blamed_host else {}
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


def _group_of(arguments: Arguments, supervisor: Supervisor) -> RankGroup:
    """The ranks that the run's file asks for."""
    if (config := arguments.run.script()) is not None:
        from rankdeck.launch.script_ranks import ScriptRanks

        return ScriptRanks(config, arguments, supervisor)
    from rankdeck.launch.forked_ranks import ForkedRanks

    return ForkedRanks(arguments, supervisor)


def _arguments_of(argv: Sequence[str]) -> Arguments:
    parser = argparse.ArgumentParser(prog="rankdeck.launch.supervisor")
    parser.add_argument("run", type=lambda path: RunDir(Path(path)))
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--words", type=int, help="a pipe for the reason of a failure")
    parser.add_argument("--restarts", type=int, default=0, help="attempts begun without being asked")
    parser.add_argument("--failed", default="", help="the exception of the attempt before")
    parser.add_argument(
        "--worker", default=DEFAULT_WORKER, help="the module, or .py file, that every rank runs"
    )
    parser.add_argument(
        "--hosts", dest="layout", type=layout_of, help="who has which ranks, where there are several hosts"
    )
    parser.add_argument("--store", type=int, help="a socket for the ranks' store to listen at")
    parser.add_argument("--signals", type=int, help="a pipe of signals to pass on to a script")
    parser.add_argument(
        "--attached", type=from_argument, default=NOWHERE, help="the command's streams, for a script"
    )
    return Arguments(**vars(parser.parse_args(argv)))


def main() -> NoReturn:
    """One attempt, from the command line's arguments to the run's exit code."""
    rank_start.forgive_full_disks()
    code = 1
    try:
        code = Supervisor(_arguments_of(sys.argv[1:])).work()
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
