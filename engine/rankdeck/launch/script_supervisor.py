"""The supervisor of a person's own script: `python -P -m rankdeck.launch.script_supervisor RUN`, started by
the guard.

    tell that the run has begun  ->  listen for the store  ->  start the ranks  ->  relay what they write,
    pass signals on, watch them  ->  name the one cause if one fails  ->  tell that the run has ended

It never imports torch: the script's own may be another one. supervising.py has what it shares with a
configuration's supervisor. Read children.py, streams.py and script_watch.py next.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rankdeck import events
from rankdeck.base import cgroups
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase, counted, marked, phrase
from rankdeck.config.script import ScriptConfig
from rankdeck.diagnose.cause import ENDED_EARLY, SENT, SENT_OR_NO_MEMORY, Cause
from rankdeck.launch import supervising
from rankdeck.launch.children import ScriptRank, end_ranks, script_status
from rankdeck.launch.processes import left_behind
from rankdeck.launch.script_watch import ScriptWatch
from rankdeck.launch.store import ScriptStore
from rankdeck.launch.streams import NOWHERE, Attached, Outlet, RankStreams, Typing, finish, from_argument
from rankdeck.launch.torchrun import observing, torchrun_variables
from rankdeck.rundir import RunDir

GRACE_S = 30.0
"""From TERM to KILL, as torchrun's: a script may save itself meanwhile."""
_POLL_S = 0.02
_LEAVING_S = 1.0
"""How long what a rank has started may take to leave after it."""
_CLOSING_S = 0.3
_NUM_NAMED = 5
_ADVICE = {
    "out-of-memory": phrase("Lower the batch size or the size of the model, or use more devices."),
    "shared-memory": phrase("Set num_workers=0 in the DataLoader, or give /dev/shm more room."),
    "hang": phrase("Look at what it does there, and whether every rank comes to the same collectives."),
}
_OF_SCRIPTS = {
    ENDED_EARLY: marked("The process was ended by {signal}."),
    SENT: marked("The script itself, somebody or something outside Rankdeck sent it."),
    SENT_OR_NO_MEMORY: marked(
        "The script itself, somebody or something outside Rankdeck sent it. If nobody did: the kernel does "
        "it when memory runs out (see dmesg)."
    ),
}
"""What a sentence about a configuration's rank is, about a script's."""


@dataclasses.dataclass(frozen=True)
class ScriptArguments(supervising.Arguments):
    """`signals` is the pipe of signals to pass on, `attached` the streams of the command that stays."""

    signals: int | None = None
    attached: Attached = NOWHERE


class ScriptSupervisor(supervising.Supervising):
    """One attempt of one run of a script."""

    def __init__(self, arguments: ScriptArguments) -> None:
        super().__init__(arguments)
        config = arguments.run.script()
        assert config is not None
        self._config: ScriptConfig = config
        self._attached = arguments.attached
        self._outlets = Outlet(self._attached.stdout), Outlet(self._attached.stderr)
        self._has_lost_output = False
        self._signals = arguments.signals
        self._watch = ScriptWatch(arguments.run, arguments.attempt, config, self.raise_problem)
        self._ranks: list[ScriptRank] = []
        self._store: ScriptStore | None = None
        self._caller = dict(os.environ)
        self._typed: deque[int] = deque()
        self._passed_on: set[int] = set()
        self._gives_up = False
        self._caused_by: int | None = None
        self.max_restarts = config.script.max_restarts

    @property
    def ranks(self) -> Sequence[ScriptRank]:
        return self._ranks

    @property
    def watch(self) -> ScriptWatch:
        return self._watch

    def start_event(self) -> events.RunStarted:
        return events.RunStarted(
            run=self._run.name,
            attempt=self._arguments.attempt,
            world_size=self._config.script.ranks,
            devices=self._devices,
            started=self.began(),
            source=events.SCRIPT,
            cores=cgroups.num_cores(),
        )

    def run_ranks(self) -> bool:
        self.write_phase(marked("starting"), range(self._config.script.ranks))
        self._start_ranks()
        self._start_sampler()
        for rank in self._ranks:
            rank.streams.begin()
        self._listen_to_keyboard()
        self.write_phase(marked("running"), range(self._config.script.ranks))
        asked_until_s: float | None = None
        while True:
            self._wait()
            codes = [rank.poll() for rank in self._ranks]
            if any(codes) and self._was_asked(codes):
                # The others heard the same signal, and may be saving themselves.
                asked_until_s = asked_until_s or time.monotonic() + GRACE_S
                if None not in codes or time.monotonic() > asked_until_s:
                    raise supervising.StopAsked
            elif any(codes):
                self._end_after_failure()
                return False
            elif None not in codes:
                self._ending = True
                leaves_until_s = time.monotonic() + _LEAVING_S
                self._finish(_LEAVING_S)
                self._tell_left_behind(leaves_until_s)
                return True
            self.poll()
            self._serve_store()
            self._tell_lost_output()

    def end_ranks(self, *, stopped: bool) -> None:
        end_ranks(self._ranks, GRACE_S if stopped else 0)
        self._finish(_CLOSING_S)
        self._tell_lost_output()
        if self._store is not None:
            self._store.close()

    def script_status(self) -> int | None:
        """The first cause's where one failed, else the first that is not 0."""
        codes = [rank.exit_code for rank in self._ranks if rank.exit_code is not None]
        if self._caused_by is not None and self._ranks[self._caused_by].exit_code is not None:
            codes.insert(0, self._ranks[self._caused_by].exit_code or 0)
        return script_status(next((code for code in codes if code), 0)) if codes else None

    def cause(self, oom_kills: int, disk: str) -> Cause:
        problem = super().cause(oom_kills, disk).problem
        if problem.code in ("communication", "hang"):
            problem = self._watch.who_left() or problem
        self._caused_by = problem.rank
        return Cause(in_words_of_scripts(problem, len(self._ranks)), 1)

    def next_words(self) -> Phrase:
        return phrase("The script begins again")

    def _start_ranks(self) -> None:
        script = self._config.script
        self._store = ScriptStore(script.master_port, self._watch.attempts_log("store"))
        caller = self._environment_given()
        watched = observing(
            caller,
            run=self._run.path,
            attempt=self._arguments.attempt,
            heartbeats=self._watch.prepare(),
            observe=script.observe,
            port=self._store.port,
        )
        for rank in range(script.ranks):
            variables = {} if script.plain else self._torchrun_variables(rank, self._store.port, caller)
            attached = self._attached.of_rank(rank)
            started = ScriptRank(
                rank,
                self._config.command(),
                folder=script.folder,
                environment={**caller, **variables, **watched},
                streams=RankStreams(
                    attached, self._outlets, (self._logs(rank, "out"), self._logs(rank, "err"))
                ),
            )
            self._ranks.append(started)
        self._watch.begin(self._ranks)
        if script.ranks > 1:
            self._begin_store()

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
            error_file=str(self._watch.log(rank, "error.json")),
        )

    def _environment_given(self) -> dict[str, str]:
        """What the command had, with what was given for this run and the devices that were named."""
        given = {**self._caller, **self._config.script.environment}
        if self._config.devices is not None:
            uuids = [device.uuid for device in self._devices if device.uuid is not None]
            given["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
            if uuids:
                given["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return given

    def _logs(self, rank: int, kind: str) -> list[Path]:
        """Where a stream of a rank goes: the run's own log, and a copy as torchrun's --log-dir has it."""
        logs = [self._watch.log(rank, kind)]
        script = self._config.script
        if script.log_folder is not None:
            of_rank = f"attempt_{self._arguments.restarts}/{rank}/std{kind}.log"
            logs.append(Path(script.folder, script.log_folder, self._run.name, of_rank))
        return logs

    def _start_sampler(self) -> None:
        """Of a device without a GPU it tells how busy the rank's threads are: as many as torch takes."""
        if self._devices:
            cores = len(os.sched_getaffinity(0))
            given = self._environment_given().get("OMP_NUM_THREADS", "")
            threads = given if given.isdecimal() else str(cores if self._config.script.ranks == 1 else 1)
            os.environ["OMP_NUM_THREADS"] = threads
            self.start_sampler("--trees")

    def _begin_store(self) -> None:
        assert self._store is not None
        script = self._config.script
        self._store.begin(script.python, self._environment_given(), script.folder)

    def _serve_store(self) -> None:
        assert self._store is not None
        if not self._store.has_begun:
            if self._store.is_asked_for:
                self._begin_store()
            return
        problem = self._store.problem()
        if problem is not None:
            self.raise_problem(problem)

    def _listen_to_keyboard(self) -> None:
        master = self._ranks[0].streams.keyboard
        if master is not None and self._attached.keyboard is not None:
            Typing(self._attached.keyboard, master, self._typed.append).start()

    def _wait(self) -> None:
        """A moment; signals that come meanwhile are passed on."""
        handles = [] if self._signals is None else [self._signals]
        if select.select(handles, [], [], _POLL_S)[0] and self._signals is not None:
            numbers = os.read(self._signals, 4096)
            if not numbers:
                self._signals = None  # the guard has gone, and this process goes too
            for number in numbers:
                self._pass_on(number, self._ranks)
        while self._typed:
            # The terminal of rank 0 does it there.
            self._pass_on(self._typed.popleft(), self._ranks[1:])

    def _pass_on(self, number: int, ranks: Sequence[ScriptRank]) -> None:
        self._passed_on.add(number)
        if number in (signal.SIGTSTP, signal.SIGSTOP, signal.SIGCONT):
            self._watch.is_paused = number != signal.SIGCONT
        for rank in ranks:
            rank.pass_on(number)

    def _was_asked(self, codes: Sequence[int | None]) -> bool:
        """Whether those that failed ended by a signal that was passed on: nobody's fault."""
        ends = {end for number in self._passed_on for end in (-number, 128 + number)}
        return all(code in ends for code in codes if code)

    def _end_after_failure(self) -> None:
        """A victim may be seen first: the cause gets a moment, and what it said time to arrive."""
        self._ending = True
        began_s = time.monotonic()
        while True:
            exited = [rank for rank in self._ranks if rank.poll() is not None]
            relays = [relay for rank in exited for relay in rank.streams.relays]
            finish(relays, _CLOSING_S, patient=False)
            if time.monotonic() - began_s >= self._watch.patience_s():
                break
            time.sleep(_POLL_S)
        end_ranks(self._ranks, GRACE_S)
        self._finish(_CLOSING_S)

    def _finish(self, timeout_s: float) -> None:
        relays = [relay for rank in self._ranks for relay in rank.streams.relays]
        begun = [relay for relay in relays if relay.ident is not None]
        finish(begun, timeout_s, given_up=lambda: self._gives_up)

    def _tell_left_behind(self, until_s: float) -> None:
        """What has not ended by then is ended with the run."""
        while (left := left_behind()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        if left:
            names = ", ".join(left[:_NUM_NAMED]) + (", ..." if len(left) > _NUM_NAMED else "")
            message = counted(
                marked("The script left 1 process behind, ended with the run: {names}."),
                marked("The script left {n} processes behind, ended with the run: {names}."),
                len(left),
                names=names,
            )
            advice = phrase("Wait for what it starts, or start outside of the run what is to outlive it.")
            self.raise_problem(Problem("left-behind", message, advice=advice, severity="warning"))

    def _tell_lost_output(self) -> None:
        reason = next((outlet.lost for outlet in self._outlets if outlet.lost is not None), None)
        if reason is not None and not self._has_lost_output:
            self._has_lost_output = True
            self.raise_problem(
                Problem(
                    events.OUTPUT_LOST,
                    phrase("What the script writes no longer arrives where it was sent: {why}.", why=reason),
                    advice=phrase("It goes on; its output is in {folder}.", folder=self._run.logs_folder),
                    severity="warning",
                )
            )

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        # Whoever reads what the script has written is waited for until then.
        self._gives_up = True
        super()._on_term(number, frame)

    def _begin_next_attempt(self) -> NoReturn:
        for handle in (self._signals, self._arguments.words, *self._attached.handles()):
            if handle is not None:
                os.set_inheritable(handle, True)
        super()._begin_next_attempt()


def in_words_of_scripts(problem: Problem, num_ranks: int) -> Problem:
    """A cause without the words of configurations, and without the number of an only rank."""
    otherwise = {name: said for name in ("message", "advice") if (said := _of_scripts(problem, name))}
    if problem.code in _ADVICE:
        otherwise["advice"] = _ADVICE[problem.code]
    return problem.but(**otherwise, rank=problem.rank if num_ranks > 1 else None)


def _of_scripts(problem: Problem, name: str) -> Phrase | None:
    template = _OF_SCRIPTS.get(problem.templates.get(name, ""))
    return None if template is None else phrase(template, **problem.arguments[name])


def _make(argv: list[str]) -> ScriptSupervisor:
    parser = supervising.parser("rankdeck.launch.script_supervisor")
    parser.add_argument("--signals", type=int, help="a pipe of signals to pass on")
    parser.add_argument("--attached", type=from_argument, default=NOWHERE, help="the command's streams")
    given = parser.parse_args(argv)
    for handle in (given.signals, given.words, *given.attached.handles()):
        if handle is not None:
            os.set_inheritable(handle, False)
    run, of_guard = RunDir(given.run), (given.signals, given.attached)
    return ScriptSupervisor(
        ScriptArguments(run, given.attempt, given.words, given.restarts, given.failed, *of_guard)
    )


if __name__ == "__main__":
    supervising.main(_make)
