"""Supervisor of a run: `python -P -m rankdeck.launch.supervisor RUN`, started by the guard.

    report the start  ->  start the ranks, watch them  ->  find the one cause if a rank fails  ->  end the
    remaining ranks  ->  report the end, or start the next attempt if restarts are left

The rank group hides whether the ranks run a configuration or a user's script: read rank_group.py,
forked_ranks.py and script_ranks.py next. Nothing here imports torch, and the supervisor of a script never
does, because the script may use a different torch.

The exit code is that of the run: 0 completed, 1 failed, 2 bad input, 3 the machine lacks something, 130
stopped. If the supervisor is killed, the ranks die with it and the guard reports its death. To start the next
attempt, this process replaces itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
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

from rankdeck import debug_log, events
from rankdeck.base import cgroups, files
from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.diagnose.cause import EXIT_STOPPED, Cause, find_cause
from rankdeck.diagnose.exceptions import (
    RESOURCE_CODES,
    advice_for,
    is_out_of_memory,
    match_rule,
    memory_limit_advice,
    quote_logs,
)
from rankdeck.diagnose.failure_rules import COMMUNICATION
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.launch import rank_start
from rankdeck.launch.layout import parse_layout
from rankdeck.launch.lost_events import disk_problem
from rankdeck.launch.rank_group import (
    DEFAULT_WORKER,
    RankGroup,
    StopSignal,
    SupervisorArguments,
    SupervisorInterface,
)
from rankdeck.launch.rank_process import RankProcess, drain_streams, terminate_ranks
from rankdeck.launch.streams import NO_STREAMS, parse_attached
from rankdeck.observer import process_title
from rankdeck.run_dir import EventWriter, RunDir
from rankdeck.telemetry.sampler_process import SamplerProcess

_log = logging.getLogger("rankdeck.launch.supervisor")  # `python -m` calls it __main__
_POLL_INTERVAL_S = 0.05
_DRAIN_TIMEOUT_S = 0.3
"""How long to wait for the end of a rank's output after the rank has ended."""


class Supervisor(SupervisorInterface):
    """Supervisor of one attempt of a run."""

    def __init__(self, arguments: SupervisorArguments) -> None:
        process_title.set_process_name("supervisor", str(arguments.run.path))
        self._run, self._arguments = arguments.run, arguments
        self._writer: EventWriter = arguments.run.writer("supervisor", arguments.attempt)
        self._group = _make_group(arguments, self)
        self._watch = self._group.watch
        self._sampler: SamplerProcess | None = None
        self._is_ending = self.is_stop_requested = False
        self._reason: str | None = None
        self._will_restart = self._is_victim = False
        self._failure_signature = ""

    def run(self) -> int:
        """Run the attempt and return the run's exit code. Does not return if the next attempt follows."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The kernel counts its kills since boot: only an increase during the attempt is evidence.
        oom_kills = _count_oom_kills()
        try:
            self._write_start()
            code = 0 if self._run_ranks() else self._report_cause(oom_kills)
        except StopSignal:
            code = EXIT_STOPPED
            self._writer.write(events.Stopping(attempt=self._arguments.attempt))
        except RankdeckError as error:
            code = self._fail(error.problem, error.exit_code)
        except Exception as error:
            traceback.print_exc()
            code = self._fail(*_supervisor_problem(error))
        self._is_ending = True
        grace_s = self._group.grace_s if code == EXIT_STOPPED else 0
        terminate_ranks(self._group.ranks, grace_s, self._watch.saves.is_progressing)
        self._drain(self._group.ranks)
        self._group.close()
        if self._sampler is not None:
            self._sampler.stop()
        goes_on = self._will_restart and self._group.restarts_itself and not self.is_stop_requested
        self._write_end(code, continues=goes_on)
        if goes_on:
            self._exec_next_attempt()
        return code

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.is_stop_requested = True
        if not self._is_ending:
            self._is_ending = True
            raise StopSignal

    def check_stop(self) -> None:
        """Raise StopSignal if a stop was requested, in case an import swallowed the handler's exception."""
        if self.is_stop_requested:
            raise StopSignal

    def _write_start(self) -> None:
        attempt, start_s, cores = self._arguments.attempt, self._start_time(), cgroups.num_cores()
        started = events.RunStarted(
            run=self._run.name, attempt=attempt, started=start_s, cores=cores, **self._group.facts()
        )
        self._writer.write(started, sync=True)
        # Warnings of the command that started the run, which has no event file of its own.
        for warning in msgspec.convert(self._group.environment.get("problems", []), list[Problem]):
            self.report_problem(warning)

    def _start_time(self) -> float:
        """Return the start time of the user's command (Unix seconds); for a restart, the current time."""
        started = None if self._arguments.restarts else self._group.environment.get("started")
        return float(started) if started is not None else time.time()

    def write(self, event: events.Event) -> None:
        self._writer.write(event)

    def _write_phase(self, phase: str) -> None:
        _log.info("attempt %d: %s", self._arguments.attempt, phase)
        for rank in self._group.global_ranks:
            self.write(events.Phase(rank=rank, phase=phase))

    def report_problem(self, problem: Problem) -> None:
        adapted = self._group.adapt_problem(problem)
        _log.warning("problem %s: %s", adapted.code, adapted.headline())
        self._writer.write(events.ProblemRaised(problem=adapted), sync=True)

    def _start_sampler(self) -> None:
        """Start the process that samples the run's devices. If that fails, the run continues."""
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
        """Run the ranks and return whether all succeeded. Raises: RankdeckError if the ranks cannot start."""
        group = self._group
        self._write_phase(tr_noop("starting"))
        group.start()
        self._write_phase(group.released_phase)
        group.release()
        self._start_sampler()
        have_succeeded = self._wait_for_ranks()
        self._is_ending = True
        if have_succeeded:
            group.on_success()
        else:
            terminate_ranks(group.ranks, group.grace_s)
            self._drain(group.ranks)
        return have_succeeded

    def _wait_for_ranks(self) -> bool:
        """Wait for the ranks; return True if all finished, False if one failed or a hang must end the run."""
        group = self._group
        while True:
            over = [rank for rank in group.ranks if rank.poll() is not None]
            if not all(map(self._watch.has_finished, over)) and not group.is_excused(over):
                self._is_ending = True  # a stop from here on does not change the cause
                self._wait_for_cause()
                return False
            if self._poll():
                return False
            if len(over) == len(group.ranks):
                return True
            if group.store is not None and (problem := group.store.serve()) is not None:
                self.report_problem(problem)
            group.wait()

    def _wait_for_cause(self) -> None:
        """Wait for the cause to appear before the remaining ranks are ended: another rank may have caused the
        first failure, and that rank's output may still be in transit."""
        began_s = time.monotonic()
        while True:
            self._drain([rank for rank in self._group.ranks if rank.poll() is not None], is_patient=False)
            if time.monotonic() - began_s >= self._watch.failure_timeout_s():
                return
            time.sleep(_POLL_INTERVAL_S)

    def _drain(self, ranks: Sequence[RankProcess], *, is_patient: bool = True) -> None:
        """Wait until the ranks' output has been relayed or a stop is requested. After `_DRAIN_TIMEOUT_S`,
        wait only for slow readers of the output, and only if `is_patient` is True."""
        drain_streams(
            ranks, _DRAIN_TIMEOUT_S, waits_for_reader=is_patient, is_cancelled=lambda: self.is_stop_requested
        )

    def _poll(self) -> bool:
        """Check the sampler and the ranks; return True if a hang must end the run.

        Raises: StopSignal if a stop was requested."""
        self.check_stop()
        if self._sampler is not None:
            for notice in self._sampler.poll():
                self.write(events.DeviceNotice(code=notice.code, message=notice.message))
                message, advice = notice.phrase_of(notice.message), notice.phrase_of(notice.advice or "")
                self.report_problem(Problem(notice.code, message, advice=advice or None, severity="warning"))
        return self._watch.poll()

    def _report_cause(self, oom_kills: int) -> int:
        """Report the one problem that caused the failure and return the run's exit code.

        Raises: StopSignal if a requested stop was the cause.
        """
        kills = max(0, _count_oom_kills() - oom_kills)
        disk = files.find_write_error(self._run.path)
        raw_cause = find_cause(self._watch.evidence(), time.monotonic(), kills, disk_error=disk)
        cause = self._with_evidence(self._group.adapt_cause(raw_cause))
        if self.is_stop_requested and cause.problem.code == COMMUNICATION:
            raise StopSignal
        # On a single host, a lost connection is the cause if nothing else is known.
        self._is_victim = cause.problem.code == COMMUNICATION and not self._group.restarts_itself
        self._failure_signature = "" if self._is_victim else _signature(cause.problem, self._watch.evidence())
        # The same exception in the same step again: another restart would not help.
        if self._failure_signature and self._failure_signature == self._arguments.failed:
            sentence = _cause_sentence(cause.problem)
            message = phrase("{cause} The same error occurred before the restart.", cause=sentence)
            return self._fail(cause.problem.replace_fields(message=message), cause.exit_code)
        has_restarts = self._arguments.restarts < self._group.max_restarts and not self.is_stop_requested
        if has_restarts and self._group.may_restart(cause):
            self._will_restart = True
            self._reason = cause.problem.headline()
            warning = cause.problem.replace_fields(severity="warning")
            self.report_problem(
                self._restart_problem(cause.problem) if self._group.restarts_itself else warning
            )
            return cause.exit_code
        return self._fail(cause.problem, cause.exit_code)

    def _with_evidence(self, cause: Cause) -> Cause:
        ranks = [cause.problem.rank or 0, *(rank.rank for rank in self._watch.ranks)]
        evidence = quote_logs(map(self._watch.errors_log, ranks), cause.problem.last_lines)
        return dataclasses.replace(cause, problem=cause.problem.replace_fields(evidence=evidence))

    def _restart_problem(self, cause: Problem) -> Problem:
        message = phrase(
            "{cause} {next} (restart {n} of {most}).",
            cause=_cause_sentence(cause),
            next=self._group.restart_text(),
            n=self._arguments.restarts + 1,
            most=self._group.max_restarts,
        )
        return cause.replace_fields(code="restarted", message=message, severity="warning")

    def _exec_next_attempt(self) -> NoReturn:
        # argparse takes the last value of each option.
        command = [sys.executable, *sys.orig_argv[1:], "--attempt", str(self._arguments.attempt + 1)]
        command += ["--restarts", str(self._arguments.restarts + 1), "--failed", self._failure_signature]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execv(command[0], command)  # keeps the process id, by which the guard waits

    def _fail(self, problem: Problem, exit_code: int) -> int:
        self._reason = problem.headline()
        self.report_problem(problem)
        print(problem.text(), file=sys.stderr)
        return exit_code

    def _write_end(self, code: int, *, continues: bool) -> None:
        """Report the end of the attempt; unless `continues` is set, this is also the end of the run."""
        lost, disk = self._watch.lost_events(), files.find_write_error(self._run.path)
        num_lines = sum(entry.lines for entry in lost)
        disk = disk or next((entry.reason for entry in lost), "")
        if disk:
            self.report_problem(disk_problem(disk, num_lines, lost))
        outcome = {0: "completed", EXIT_STOPPED: "stopped"}.get(code, "failed")
        attempt, status = self._arguments.attempt, self._group.script_status()
        end = events.RunEnded(outcome=outcome, exit_code=code, attempt=attempt, script_status=status)
        self._writer.write(end, sync=True)
        if self._writer.dropped or (disk and code == 0):
            # An event might be lost too, which lists do not show. The exit record's space is reserved.
            disk = self._writer.drop_reason or disk
            message = disk_problem(disk, self._writer.dropped + num_lines, lost).message
            self._reason = f"{self._reason} {message}" if self._reason else message
        self._watch.close()
        if self._arguments.report_fd is not None and self._reason is not None and not continues:
            report = {"reason": self._reason[:4000]}
            report |= {"again": self._failure_signature[:4000]} if self._will_restart else {}
            report |= {"victim": "yes"} if self._is_victim else {}
            report |= {"host": self._group.blamed_host} if self._group.blamed_host else {}
            try:
                os.write(self._arguments.report_fd, json.dumps(report).encode())
            except OSError:
                pass


def _supervisor_problem(error: Exception) -> tuple[Problem, int]:
    """Return the problem that describes an exception in the supervisor itself, and the run's exit code."""
    named = match_rule("", str(error))
    if named is not None and named.code in RESOURCE_CODES:
        return Problem(named.code, str(error), advice=advice_for(named)), 3
    if is_out_of_memory(error):
        message = phrase("There was not enough memory to start the ranks.")
        advice = memory_limit_advice() or phrase("Close other programs, or use fewer devices.")
        return Problem("out-of-memory", message, advice=advice), 1
    message = phrase("{error}: {text}", error=type(error).__name__, text=str(error) or phrase("no message"))
    advice = phrase("The full traceback is in the supervisor's log, logs/supervisor.*.err.")
    return Problem("internal", message, advice=advice), 1


def _signature(problem: Problem, ranks: Sequence[RankEvidence]) -> str:
    """Return the code, location and step of the rank failure behind `problem`, by which the same failure is
    recognized after a restart; an empty string if no rank reported the problem."""
    for rank in ranks:
        if rank.failure is None or rank.beat is None:
            continue
        rank_problem = rank.failure.problem
        if (rank_problem.code, rank_problem.message) == (problem.code, problem.message):
            return f"{rank_problem.code} at {rank_problem.path}:{rank_problem.line} in step {rank.beat.step}"
    return ""


def _cause_sentence(problem: Problem) -> str:
    sentence = problem.as_phrase("message")
    return sentence if sentence.endswith(".") else phrase("{words}.", words=sentence)


def _count_oom_kills() -> int:
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _make_group(arguments: SupervisorArguments, supervisor: Supervisor) -> RankGroup:
    if (config := arguments.run.script()) is not None:
        from rankdeck.launch.script_ranks import ScriptRanks

        return ScriptRanks(config, arguments, supervisor)
    from rankdeck.launch.forked_ranks import ForkedRanks

    return ForkedRanks(arguments, supervisor)


def _parse_arguments(argv: Sequence[str]) -> SupervisorArguments:
    parser = argparse.ArgumentParser(prog="rankdeck.launch.supervisor")
    add = parser.add_argument
    add("run", type=lambda path: RunDir(Path(path)))
    add("--attempt", type=int, default=0)
    add("--report-fd", type=int, help="the pipe to which the reason for a failure is written")
    add("--restarts", type=int, default=0, help="the number of automatic restarts so far")
    add("--failed", default="", help="the failure signature of the previous attempt")
    add("--worker", default=DEFAULT_WORKER, help="the module, or .py file, that every rank runs")
    add("--hosts", dest="layout", type=parse_layout, help="the ranks of each host in a multi-host run")
    add("--store", type=int, help="the socket on which the ranks' store listens")
    add("--signals", type=int, help="the pipe with the signals to forward to a script")
    add("--attached", type=parse_attached, default=NO_STREAMS, help="the command's streams, for a script")
    return SupervisorArguments(**vars(parser.parse_args(argv)))


def main() -> NoReturn:
    """Run one attempt according to the command-line arguments, and exit with the run's exit code."""
    rank_start.ignore_full_disk()
    code = 1
    try:
        arguments = _parse_arguments(sys.argv[1:])
        debug_log.enable(arguments.run.logs_folder)
        code = Supervisor(arguments).run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # do not wait for the store's threads


if __name__ == "__main__":
    main()
