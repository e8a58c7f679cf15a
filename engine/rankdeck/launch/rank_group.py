"""The ranks of one attempt, as its supervisor deals with them: how they are made, what their end means, what
they leave, and what time they have.

There are two kinds: forked_ranks.py has those of a configuration, which are forked once torch is imported,
script_ranks.py those of a person's own script, which is executed. Read rank_process.py for one rank, and
supervisor.py for what becomes of all.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase
from rankdeck.diagnose.cause import Cause
from rankdeck.launch.layout import Layout
from rankdeck.launch.rank_process import RankProcess
from rankdeck.launch.store import RankStore, ScriptStore
from rankdeck.launch.streams import NO_STREAMS, AttachedStreams
from rankdeck.launch.watch import Watch
from rankdeck.run_dir import RunDir

DEFAULT_WORKER = "rankdeck.training.worker"


class StopSignal(BaseException):
    """SIGTERM: the guard passes on that somebody wants the run to stop."""


@dataclasses.dataclass(frozen=True)
class SupervisorArguments:
    """What the guard passes. `report_fd` is the pipe for the reason of a failure.

    `restarts`: how many attempts this supervisor has begun by itself, this one included; `failed`: what the
    one before came to, where that was an exception. Of a configuration `worker` is the module or .py file
    that every rank runs, `layout` says on which hosts they are where these are several, and `store` is the
    head's socket where they meet. Of a script `signals` is the pipe of signals to pass on, and `attached` are
    the streams of the command that stays.
    """

    run: RunDir
    attempt: int
    report_fd: int | None
    restarts: int
    failed: str
    worker: str = DEFAULT_WORKER
    layout: Layout | None = None
    store: int | None = None
    signals: int | None = None
    attached: AttachedStreams = NO_STREAMS


class SupervisorInterface(Protocol):
    """What ranks need of their supervisor."""

    is_stop_requested: bool

    def check_stop(self) -> None:
        """Raises: StopAsked."""

    def write(self, event: events.Event) -> object:
        """Into the supervisor's file."""

    def raise_problem(self, problem: Problem) -> None:
        """Tell it to everybody."""


class RankGroup(abc.ABC):
    """The ranks of this host. They `start` in a first phase and are released into a second one; all the while
    the supervisor serves their store and waits; `close` comes last, always."""

    watch: Watch
    global_ranks: range
    ranks: Sequence[RankProcess]
    """Those that have been started."""
    store: RankStore | ScriptStore | None = None
    grace_s: float
    """From TERM to KILL."""
    released_phase: str
    max_restarts: int
    restarts_itself = True
    """Else whoever has started the supervisor begins the next attempt, once it has said that this may
    help."""
    blamed_host = ""
    """Where the cause is, if that is another host."""

    def __init__(self, arguments: SupervisorArguments, supervisor: SupervisorInterface) -> None:
        self._arguments, self._run, self._supervisor = arguments, arguments.run, supervisor
        self.environment = arguments.run.environment()
        self.devices = msgspec.convert(self.environment.get("devices", []), list[events.DeviceInfo])

    @abc.abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What is known of the run when it begins, for `events.RunStarted`."""

    @abc.abstractmethod
    def start(self) -> None:
        """Make the ranks. Raises: RankdeckError: they cannot be started."""

    @abc.abstractmethod
    def release(self) -> None:
        """From here on they work. Raises: RankdeckError: what they need cannot be made."""

    @abc.abstractmethod
    def sampler_options(self) -> Sequence[str] | None:
        """How the run's devices are read; None where they are not."""

    @abc.abstractmethod
    def wait(self) -> None:
        """A moment, between two looks at the ranks."""

    def is_excused(self, over: Sequence[RankProcess]) -> bool:
        """Whether nobody is at fault where these have ended, and not all in order. Raises: StopAsked."""
        return False

    @abc.abstractmethod
    def on_success(self) -> None:
        """All have done their work."""

    def close(self) -> None:
        """Nothing is left of them."""
        if self.store is not None:
            self.store.close()

    def adapt_problem(self, problem: Problem) -> Problem:
        """As it is told of these ranks."""
        return problem

    @abc.abstractmethod
    def adapt_cause(self, found: Cause) -> Cause:
        """Why they have failed, from what the evidence says."""

    def may_restart(self, cause: Cause) -> bool:
        """Whether trying again could help; bad input stays bad."""
        return cause.exit_code == 1

    @abc.abstractmethod
    def restart_text(self) -> Phrase:
        """Where the next attempt begins: a sentence that is yet to end."""

    def script_status(self) -> int | None:
        """What a person's own script exited with."""
        return None
