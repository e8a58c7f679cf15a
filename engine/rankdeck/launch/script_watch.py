"""Watch the ranks of a user's script: find their processes, detect hangs, collect evidence.

An observed process reports its progress through the heartbeat page and its own event file, whether Rankdeck
or the script started it. A hang of a script is reported once and never ends the script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import phrase
from rankdeck.config.schema import LaunchConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.diagnose.child_processes import ChildProcess
from rankdeck.diagnose.exceptions import advice_for, is_communication_error, match_rule, read_last_lines
from rankdeck.diagnose.hang import COMPUTING_CORES, HangState
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.diagnose.script_hang import rank_left_problem, script_hang_warning, working_rank
from rankdeck.diagnose.tracebacks import read_failure, thread_exception_text, was_exiting
from rankdeck.launch.process_stacks import RunProcesses, find_processes
from rankdeck.launch.processes import is_running, is_suspended, signal_if_handled
from rankdeck.launch.rank_process import RankProcess
from rankdeck.launch.stacks import StackReport, child_stacks, request_early_stacks, request_stacks
from rankdeck.launch.watch import Watch
from rankdeck.run.problems import script_name
from rankdeck.run_dir import RunDir

NUM_SLOTS = 64
"""Minimum number of heartbeat slots; a script may itself start more ranks than Rankdeck starts."""
_IDLE_AFTER_S = 5.0
_BUSY_TIMEOUT_S = 120.0
"""How long a script's only rank may compute between steps (as in evaluation) before a hang is reported."""
_RECHECK_BYTES = 1 << 16


class ScriptWatch(Watch):
    """Monitor of a script's ranks."""

    def __init__(
        self, run: RunDir, attempt: int, config: ScriptConfig, report_problem: Callable[[Problem], None]
    ) -> None:
        # "wait": a hang never ends a script.
        super().__init__(run, attempt, LaunchConfig(on_hang="wait"), report_problem)
        self._config = config
        self.is_paused = False
        self._started: dict[int, tuple[int, events.RankStarted]] = {}
        self._processes = RunProcesses()
        self._early_reports: dict[int, StackReport] = {}

    def beats(self) -> dict[int, Beat]:
        return {rank: beat._replace(is_step_complete=True) for rank, beat in super().beats().items()}

    def errors_log(self, rank: int) -> Path:
        """Return the log that contains the rank's stderr: the log of its stdout if both are the same
        stream."""
        errors = self.log(rank, "err")
        return errors if errors.exists() else self.log(rank, "out")

    def living_beats(self) -> dict[int, Beat]:
        """Return the heartbeats of living ranks; empty while the script is paused."""
        if self.is_paused:
            self._excused_s = time.monotonic()
            return {}
        beats = {rank: beat for rank, beat in self.beats().items() if self._is_alive(rank)}
        silent = {rank: beat._replace(is_step_complete=True) for rank, beat in self.silent_ranks().items()}
        # As long as no rank has sent a heartbeat, the ranks may be doing other work before training: report
        # them only if one is suspended.
        return beats | silent if beats or any(is_suspended(self._pid(rank)) for rank in silent) else {}

    def judge(self, beats: dict[int, Beat], now_s: float, still_s: float, until_ended_s: float) -> bool:
        """Report a hang. A script's only rank may be busy writing a checkpoint: while it uses the CPU, its
        hang is reported only after `_BUSY_TIMEOUT_S`."""
        is_alone = len(beats) == len(self.ranks) == 1
        if is_alone and still_s < _BUSY_TIMEOUT_S and not self._is_idle(beats, now_s):
            return False
        # A rank that worked alone may hang later, in the same step.
        worker = working_rank(self._hang_state)
        if worker in beats and self._is_idle({worker: beats[worker]}, now_s):
            self._suspected = None
        return super().judge(beats, now_s, still_s, until_ended_s)

    def _is_idle(self, beats: Mapping[int, Beat], now_s: float) -> bool:
        """Check whether the ranks have hardly used the CPU for `_IDLE_AFTER_S` seconds."""
        began_s, before = self._work or (now_s, {})
        if now_s - began_s < _IDLE_AFTER_S:
            return False
        work = self._work_by_rank(beats)
        used_s = sum(done.cpu_s for done in work.values()) - sum(done.cpu_s for done in before.values())
        if used_s > COMPUTING_CORES * (now_s - began_s):
            self._work = None
            return False
        return True

    def hang_warning(self, hang_state: HangState, now_s: float, left_s: float) -> Problem:
        """Return the warning about a hang, which also mentions ranks that have exited and the child processes
        that a rank is waiting for."""
        every = self.beats()
        left = {rank.rank: every.get(rank.rank) for rank in self.ranks if rank.exit_code == 0}
        children: dict[int, list[ChildProcess]] = {}
        for stack in child_stacks(self._processes, self._early_reports):
            if stack.process.rank is not None:
                children.setdefault(stack.process.rank, []).append(stack.process)
        return script_hang_warning(replace(hang_state, exited=left), now_s, self._run.name, children)

    def _pid(self, rank: int) -> int:
        """Return the pid of the process that identified itself as this rank or, if there is none, of the
        process that was started as this rank."""
        started = self._rank_started(rank)
        if started is not None:
            return started.pid
        return self.ranks[rank].pid if rank < len(self.ranks) else 0

    def _is_alive(self, rank: int) -> bool:
        pid = self._pid(rank)
        ours = next((child for child in self.ranks if child.pid == pid), None)
        return is_running(pid) if ours is None else ours.exit_code is None

    def _rank_started(self, rank: int) -> events.RankStarted | None:
        """Return the newest start event of this rank's observed processes."""
        path = self._events(rank)
        try:
            size = path.stat().st_size
        except OSError:
            return None
        cached = self._started.get(rank)
        if cached is None or size > cached[0] + _RECHECK_BYTES:
            newest = next((e for e in self._tail_of(path) if isinstance(e, events.RankStarted)), None)
            event = newest or (cached[1] if cached is not None else None)
            if event is None:
                return None
            cached = self._started[rank] = size, event
        return cached[1]

    def _request_stacks(self, ranks: Sequence[int]) -> dict[int, StackReport]:
        """Ask these ranks and their children for their stacks. Send each rank the signal that its start event
        specifies, but only if the rank still handles that signal."""
        started = {rank: event for rank in ranks if (event := self._rank_started(rank)) is not None}
        self._processes = find_processes(
            self._run, {event.pid: rank for rank, event in started.items() if is_running(event.pid)}
        )
        early = {rank: process for rank, process in self._processes.ranks.items() if rank in ranks}
        senders = {
            rank: partial(signal_if_handled, event.pid, event.stack_signal)
            for rank, event in started.items()
            if event.stack_signal is not None and rank not in early
        }
        reports = request_stacks(self._run, self._attempt, senders, with_calls=len(senders) > 1)
        self._early_reports = request_early_stacks(
            [*early.values(), *(process for _, process in self._processes.children)]
        )
        answered = {
            rank: self._early_reports[process.pid]
            for rank, process in early.items()
            if process.pid in self._early_reports
        }
        return reports | answered

    def has_finished(self, rank: RankProcess) -> bool:
        """Check whether the rank exited with status 0: a user's script reports nothing else about its
        end."""
        return rank.exit_code == 0

    def evidence(self) -> list[RankEvidence]:
        """Return the evidence about each rank from which to find the cause of a failure.

        A living rank may have printed a traceback and continued. This traceback counts as the rank's failure
        only if all ended ranks merely lost their connections.
        """
        rank_evidence = super().evidence()
        ended = [
            rank.failure for rank in rank_evidence if rank.exit_code is not None and rank.failure is not None
        ]
        if all(failure.is_communication for failure in ended):
            return rank_evidence
        return [rank if rank.exit_code is not None else replace(rank, failure=None) for rank in rank_evidence]

    def failure(self, rank: int) -> events.RankFailed | None:
        """Return the failure found in the rank's stderr or, if there is none, a failure derived from its exit
        code."""
        code = self.ranks[rank].exit_code
        several = len(self.ranks) > 1
        log = self.errors_log(rank)
        # Only these can follow from an exception: Python exits with 1, and a surviving C++ thread may abort
        # it on the way out.
        if code in (None, 1) or (code or 0) < 0:
            folder, has_ended = self._config.script.folder, code is not None
            raised = read_failure(
                rank,
                log,
                folder=folder,
                has_several_ranks=several,
                has_ended=has_ended,
                own_ranks=() if several else self.beats().keys(),
            )
            if raised is not None and (
                (code or 0) >= 0 or raised.is_communication or was_exiting(raised.problem)
            ):
                return self._add_interpreter_advice(raised)
        if code is None or code <= 0:
            return None
        return self._exit_failure(rank, code, log, is_multi_rank=several)

    def _add_interpreter_advice(self, raised: events.RankFailed) -> events.RankFailed:
        """Return the failure; if its cause is a missing module, the advice names the script's interpreter."""
        if raised.problem.code != "no-module":
            return raised
        script = self._config.script
        advice = phrase(
            "The script ran with {python}: install the module for that interpreter, or choose "
            "another with --python.",
            python=script.python,
        )
        if script.python_source:
            advice = phrase(
                "The script ran with {python} ({source}): install the module for that "
                "interpreter, or choose another with --python.",
                python=script.python,
                source=script.python_source,
            )
        return msgspec.structs.replace(raised, problem=raised.problem.replace_fields(advice=advice))

    def _exit_failure(self, rank: int, code: int, log: Path, *, is_multi_rank: bool) -> events.RankFailed:
        lines = read_last_lines(log)
        message = phrase("{script} exited with status {code}.", script=script_name(self._config), code=code)
        if is_multi_rank:
            message = phrase(
                "{script} exited with status {code} (rank {rank}).",
                script=script_name(self._config),
                code=code,
                rank=rank,
            )
        if in_thread := thread_exception_text(log, self._config.script.folder):
            message = phrase("{exited} Before that it raised {error}", exited=message, error=in_thread)
        elif lines and code in (1, 2):
            message = phrase("{exited} Its last line of output: {line}", exited=message, line=lines[-1])
        named = match_rule("", lines[-1]) if lines else None
        problem = Problem(
            "rank-exited" if named is None else named.code,
            message,
            advice=advice_for(named, for_script=True) or phrase("Its full output is in the run's logs."),
            rank=rank if is_multi_rank else None,
            last_lines=lines,
        )
        try:
            at = log.stat().st_mtime
        except OSError:
            at = time.time()
        return events.RankFailed(
            rank=rank, problem=problem, is_communication=is_communication_error("\n".join(lines)), t=at
        )

    def early_exit_problem(self) -> Problem | None:
        """Return a problem that names the first rank to exit with status 0 while others were still running.

        The other ranks themselves only report a lost connection.
        """
        left = [rank.rank for rank in self.ranks if rank.exit_code == 0 and rank.terminated_at is None]
        if not left:
            return None
        beats = self.beats()
        # The rank with the fewest steps has left first.
        first = min(left, key=lambda rank: beats[rank].step if rank in beats else -1)
        waiting = next(
            (
                failure
                for rank in self.ranks
                if rank.exit_code and (failure := self.failure(rank.rank)) is not None
            ),
            None,
        )
        return rank_left_problem(first, beats.get(first), waiting)
