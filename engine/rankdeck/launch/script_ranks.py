"""Run a user's script: start ranks as torchrun does, signal them as a terminal does, end their sessions.

    listen on the store's socket  ->  start the ranks  ->  relay their output, forward signals, watch them

Each rank leads a session of its own and dies with the supervisor, and its output is relayed (streams.py). The
ranks are started while the supervisor has only one thread. Read streams.py, store.py and script_watch.py
next.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import termios
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdeck import events
from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import Phrase, phrase, plural_phrase, tr_noop
from rankdeck.config.script import ScriptConfig
from rankdeck.diagnose.cause import KILLED_EARLY_TEXT, SIGKILL_ADVICE, SIGNAL_ADVICE, Cause
from rankdeck.launch.processes import list_orphans, signal_sessions
from rankdeck.launch.rank_group import RankGroup, StopSignal, SupervisorArguments, SupervisorInterface
from rankdeck.launch.rank_process import RankProcess, drain_streams
from rankdeck.launch.script_watch import NUM_SLOTS, ScriptWatch
from rankdeck.launch.store import ScriptStore
from rankdeck.launch.streams import KeyboardRelay, RankStreams, SharedOutput
from rankdeck.launch.torchrun import device_variables, observer_variables, torchrun_variables

_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, as in torchrun; a script may save a checkpoint in this time."""
_POLL_INTERVAL_S = 0.02
_EXIT_TIMEOUT_S = 1.0
"""How long to wait for a rank's child processes to end after the rank has ended."""
_GROUP_SIGNALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH}
"""Signals that a terminal sends to its whole foreground group, whereas `kill` signals a single process."""
_MAX_NAMED = 5
_ADVICE = {
    "out-of-memory": phrase("Lower the batch size or the size of the model, or use more devices."),
    "shared-memory": phrase("Set num_workers=0 in the DataLoader, or make /dev/shm larger."),
    "hang": phrase("Check what the stuck rank is doing, and whether every rank calls the same collectives."),
}
_SCRIPT_TEXTS = {
    KILLED_EARLY_TEXT: tr_noop("The process was killed by {signal}."),
    SIGNAL_ADVICE: tr_noop("The signal came from the script itself or from outside Rankdeck."),
    SIGKILL_ADVICE: tr_noop(
        "The signal came from the script itself or from outside Rankdeck. The kernel also "
        "sends it when memory runs out (see dmesg)."
    ),
}
"""Text template for a configuration's ranks -> the template that replaces it for a script's ranks."""


class ScriptRanks(RankGroup):
    """The ranks of a script in one attempt."""

    grace_s = _GRACE_S
    released_phase = tr_noop("running")

    def __init__(
        self, config: ScriptConfig, arguments: SupervisorArguments, supervisor: SupervisorInterface
    ) -> None:
        super().__init__(arguments, supervisor)
        self._config = config
        self._attached, self._signals = arguments.attached, arguments.signals
        self._outputs = SharedOutput(self._attached.stdout), SharedOutput(self._attached.stderr)
        self._has_lost_output = False
        self._script_watch = ScriptWatch(arguments.run, arguments.attempt, config, supervisor.report_problem)
        self.watch = self._script_watch
        self.global_ranks = range(config.script.ranks)
        self.ranks = self._ranks = list[ScriptRank]()
        self._caller_environment = dict(os.environ)
        self._typed_signals: deque[int] = deque()
        self._forwarded_signals: set[int] = set()
        self._stop_deadline_s: float | None = None
        self._cause_rank: int | None = None
        self.max_restarts = config.script.max_restarts

    def facts(self) -> Mapping[str, Any]:
        return {"world_size": len(self.global_ranks), "devices": self.devices, "source": events.SCRIPT}

    def start(self) -> None:
        script, caller = self._config.script, self._base_environment()
        log = self._run.logs_folder / f"store.{self._arguments.attempt}.err"
        self.store = store = ScriptStore(script, caller, log)
        watched = observer_variables(
            caller,
            run=self._run.path,
            attempt=self._arguments.attempt,
            heartbeats=self.watch.prepare(max(NUM_SLOTS, script.ranks)),
            observe=script.observe,
            port=store.port,
        )
        for rank in self.global_ranks:
            variables = {} if script.plain else self._torchrun_variables(rank, store.port, caller)
            logs = self._log_paths(rank, "out"), self._log_paths(rank, "err")
            started = ScriptRank(
                rank,
                self._config.command(),
                folder=script.folder,
                environment={**caller, **variables, **watched},
                streams=RankStreams(self._attached.for_rank(rank), self._outputs, logs),
            )
            self._ranks.append(started)
        self.watch.start(self._ranks)
        if script.ranks > 1:
            store.start()

    def _torchrun_variables(self, rank: int, port: int, caller: dict[str, str]) -> dict[str, str]:
        script = self._config.script
        return torchrun_variables(
            rank,
            script.ranks,
            port=port,
            caller=caller,
            python=script.python,
            max_restarts=script.max_restarts,
            restarts=self._arguments.restarts,
            error_file=str(self.watch.log(rank, "error.json")),
        )

    def _base_environment(self) -> dict[str, str]:
        """Return the command's environment plus the run's own variables and those for the chosen devices."""
        environment = {**self._caller_environment, **self._config.script.environment}
        return environment if self._config.devices is None else environment | device_variables(self.devices)

    def _log_paths(self, rank: int, kind: str) -> list[Path]:
        """Return the log paths for a rank's stream: one in the run's folder and, if the script has a log
        folder, one there, in torchrun's --log-dir layout."""
        logs = [self.watch.log(rank, kind)]
        script = self._config.script
        if script.log_folder is not None:
            of_rank = f"attempt_{self._arguments.restarts}/{rank}/std{kind}.log"
            logs.append(Path(script.folder, script.log_folder, self._run.name, of_rank))
        return logs

    def sampler_options(self) -> Sequence[str] | None:
        """Return the sampler's options, with the number of threads that torch uses per rank by default.

        Without a GPU, the sampler measures how busy these threads are.
        """
        if not self.devices:
            return None
        cores = len(os.sched_getaffinity(0))
        value = self._base_environment().get("OMP_NUM_THREADS", "")
        threads = value if value.isdecimal() else str(cores if self._config.script.ranks == 1 else 1)
        return "--threads", threads, "--trees"

    def release(self) -> None:
        """Start relaying the ranks' output and the keyboard input; this process has several threads from here
        on."""
        for rank in self._ranks:
            rank.streams.start()
        master = self._ranks[0].streams.keyboard
        if master is not None and self._attached.keyboard is not None:
            KeyboardRelay(self._attached.keyboard, master, self._typed_signals.append).start()

    def wait(self) -> None:
        """Wait a moment, forwarding signals that arrive meanwhile."""
        handles = [] if self._signals is None else [self._signals]
        if select.select(handles, [], [], _POLL_INTERVAL_S)[0] and self._signals is not None:
            numbers = os.read(self._signals, 4096)
            if not numbers:
                self._signals = None  # the guard has ended, and this process will too
            for number in numbers:
                self._forward_signal(number, self._ranks)
        while self._typed_signals:
            # Rank 0 gets the signal from its own terminal.
            self._forward_signal(self._typed_signals.popleft(), self._ranks[1:])
        self._report_lost_output()

    def _forward_signal(self, number: int, ranks: Sequence[ScriptRank]) -> None:
        self._forwarded_signals.add(number)
        if number in (signal.SIGTSTP, signal.SIGSTOP, signal.SIGCONT):
            self._script_watch.is_paused = number != signal.SIGCONT
        for rank in ranks:
            rank.forward_signal(number)

    def is_excused(self, over: Sequence[RankProcess]) -> bool:
        """Check whether a forwarded signal ended all failed ranks in `over`, the ranks that have ended.

        The other ranks got the same signal and may be saving checkpoints.

        Raises:
            StopSignal: all ranks have ended, or the grace period is over.
        """
        # A script may end by the signal itself, or exit with a shell's status for it.
        ends = {end for number in self._forwarded_signals for end in (-number, 128 + number)}
        if not all(rank.exit_code in ends for rank in over if rank.exit_code):
            return False
        self._stop_deadline_s = self._stop_deadline_s or time.monotonic() + _GRACE_S
        if len(over) == len(self._ranks) or time.monotonic() > self._stop_deadline_s:
            raise StopSignal
        return True

    def on_success(self) -> None:
        """Wait briefly for processes that the ranks left behind, and report those that will be killed when
        the run ends."""
        until_s = time.monotonic() + _EXIT_TIMEOUT_S
        drain_streams(self.ranks, _EXIT_TIMEOUT_S, is_cancelled=lambda: self._supervisor.is_stop_requested)
        while (left := list_orphans()) and time.monotonic() < until_s:
            time.sleep(_POLL_INTERVAL_S)
        if left:
            names = ", ".join(left[:_MAX_NAMED]) + (", ..." if len(left) > _MAX_NAMED else "")
            message = plural_phrase(
                tr_noop("The script left 1 process behind, which will be killed when the run ends: {names}."),
                tr_noop(
                    "The script left {n} processes behind, which will be killed when the run ends: {names}."
                ),
                len(left),
                names=names,
            )
            advice = phrase(
                "Make the script wait for these processes, or start them outside the run if they must "
                "outlive it."
            )
            self._supervisor.report_problem(
                Problem("left-behind", message, advice=advice, severity="warning")
            )

    def close(self) -> None:
        self._report_lost_output()
        super().close()

    def _report_lost_output(self) -> None:
        reason = next(
            (outlet.lost_reason for outlet in self._outputs if outlet.lost_reason is not None), None
        )
        if reason is not None and not self._has_lost_output:
            self._has_lost_output = True
            self._supervisor.report_problem(
                Problem(
                    events.OUTPUT_LOST,
                    phrase(
                        "The script's output can no longer be written to its destination: {why}.", why=reason
                    ),
                    advice=phrase(
                        "The script continues; its output is in {folder}.", folder=self._run.logs_folder
                    ),
                    severity="warning",
                )
            )

    def adapt_cause(self, cause: Cause) -> Cause:
        problem = cause.problem
        if problem.code in ("communication", "hang"):
            problem = self._script_watch.early_exit_problem() or problem
        self._cause_rank = problem.rank
        return Cause(adapt_script_problem(problem, len(self._ranks)), 1)

    def restart_text(self) -> Phrase:
        return phrase("The script starts again")

    def script_status(self) -> int | None:
        """Return the first nonzero exit status, starting with the rank at fault; 0 if all are 0, None if no
        rank has ended."""
        codes = [rank.exit_code for rank in self._ranks if rank.exit_code is not None]
        if self._cause_rank is not None and self._ranks[self._cause_rank].exit_code is not None:
            codes.insert(0, self._ranks[self._cause_rank].exit_code or 0)
        return _shell_status(next((code for code in codes if code), 0)) if codes else None


def adapt_script_problem(problem: Problem, num_ranks: int) -> Problem:
    """Return the problem with its texts replaced by those for scripts, and without the rank if there is only
    one rank."""
    otherwise = {name: text for name in ("message", "advice") if (text := _script_message(problem, name))}
    if problem.code in _ADVICE:
        otherwise["advice"] = _ADVICE[problem.code]
    return problem.replace_fields(**otherwise, rank=problem.rank if num_ranks > 1 else None)


def _script_message(problem: Problem, name: str) -> Phrase | None:
    template = _SCRIPT_TEXTS.get(problem.templates.get(name, ""))
    return None if template is None else phrase(template, **problem.arguments[name])


class ScriptRank(RankProcess):
    """One rank of a script.

    Raises:
        MachineError: the rank cannot be started.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        streams: RankStreams,
    ) -> None:
        super().__init__(rank)
        self.streams, self.relays = streams, streams.relays
        supervisor = os.getpid()

        def before_exec() -> None:
            die_with_parent(supervisor)
            # The supervisor ignores SIGINT, and a signal that is ignored stays ignored after exec.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if streams.terminal is not None:
                # As the controlling terminal, it turns keys into signals.
                fcntl.ioctl(streams.terminal, termios.TIOCSCTTY, 0)

        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except OSError as error:
            raise MachineError(
                phrase(
                    "{program} could not be started: {why}.",
                    program=error.filename or command[0],
                    why=error.strerror,
                ),
                code="cannot-start",
                advice=phrase("Check that the program exists and is executable."),
            ) from None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        if self.exit_code is None:
            self.exit_code = self._process.poll()
        return self.exit_code

    def forward_signal(self, number: int) -> None:
        """Send signal `number`, which the foreground command received, to this rank's processes or
        terminal."""
        if self.poll() is not None:
            return
        if number in (signal.SIGTSTP, signal.SIGSTOP):
            # A rank's process group is orphaned, without a shell that could continue it: the kernel ignores
            # SIGTSTP there.
            signal_sessions({self.pid}, signal.SIGSTOP)
        elif number == signal.SIGCONT:
            signal_sessions({self.pid}, signal.SIGCONT)
        elif number == signal.SIGWINCH:
            self.streams.resize()
        elif number in _GROUP_SIGNALS:
            self._send_to_foreground(number)
        else:
            self.send_signal(number)

    def _send_to_foreground(self, number: int) -> None:
        try:
            os.killpg(self.streams.foreground_group() or self.pid, number)
        except OSError:
            self.send_signal(number)


def _shell_status(exit_code: int) -> int:
    """Return the exit status that a shell would report: 128 + n for signal n."""
    return 128 - exit_code if exit_code < 0 else exit_code
