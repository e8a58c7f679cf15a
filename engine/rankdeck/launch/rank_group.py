"""Interface between a supervisor and the ranks of one attempt.

There are two implementations: forked_ranks.py for the ranks of a configuration, which are forked once torch
is imported, and script_ranks.py for the ranks of a user's script, which run in new interpreters. Read
rank_process.py for a single rank and supervisor.py for how a group is used.
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
    """Exception raised on SIGTERM, which the guard sends to forward a stop request."""


@dataclasses.dataclass(frozen=True)
class SupervisorArguments:
    """The supervisor's command line, composed by the guard.

    The supervisor writes the reason for a failure to the pipe `report_fd`. `restarts` counts the restarts so
    far. `failed` is the failure signature of the previous attempt, if that attempt ended with an exception.

    For a configuration, `worker` is the module or .py file that every rank runs, `layout` the hosts and their
    ranks in a multi-host run, and `store` the coordinator's socket for the store. For a script, `signals` is
    the pipe of signals to forward, and `attached` the streams of the foreground command.
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
    """Interface through which a rank group uses its supervisor."""

    is_stop_requested: bool

    def check_stop(self) -> None:
        """Check for a stop request.

        Raises:
            StopSignal: a stop was requested.
        """

    def write(self, event: events.Event) -> object:
        """Write an event to the supervisor's file."""

    def report_problem(self, problem: Problem) -> None:
        """Report a problem as an event."""


class RankGroup(abc.ABC):
    """The ranks of this host in one attempt.

    `start` creates the ranks and `release` lets them start working; between these calls and afterwards the
    supervisor serves the ranks' store and calls `wait`. `close` is always called last.
    """

    watch: Watch
    global_ranks: range
    ranks: Sequence[RankProcess]
    """The ranks started so far."""
    store: RankStore | ScriptStore | None = None
    grace_s: float
    """Seconds between SIGTERM and SIGKILL."""
    released_phase: str
    max_restarts: int
    restarts_itself = True
    """Whether the supervisor starts the next attempt itself.

    Otherwise the guard does, if the supervisor reports that a restart may help.
    """
    blamed_host = ""
    """Name of the remote host that caused the failure; empty if there is none."""

    def __init__(self, arguments: SupervisorArguments, supervisor: SupervisorInterface) -> None:
        self._arguments, self._run, self._supervisor = arguments, arguments.run, supervisor
        self.environment = arguments.run.environment()
        self.devices = msgspec.convert(self.environment.get("devices", []), list[events.DeviceInfo])

    @abc.abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Return the facts about the attempt at its start, as fields of `events.RunStarted`."""

    @abc.abstractmethod
    def start(self) -> None:
        """Create the ranks.

        Raises:
            RankdeckError: they cannot be started.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Let the ranks start working.

        Raises:
            RankdeckError: something that the ranks need cannot be created.
        """

    @abc.abstractmethod
    def sampler_options(self) -> Sequence[str] | None:
        """Return the sampler's options; None if the devices are not sampled."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait a moment between two polls of the ranks."""

    def is_excused(self, over: Sequence[RankProcess]) -> bool:
        """Check whether to ignore failures among `over`, the ranks that have ended, rather than fail the run.

        Raises:
            StopSignal: the run was stopped by a forwarded signal.
        """
        return False

    @abc.abstractmethod
    def on_success(self) -> None:
        """Clean up after all ranks have finished."""

    def close(self) -> None:
        """Release the group's resources; called once no rank is left."""
        if self.store is not None:
            self.store.close()

    def adapt_problem(self, problem: Problem) -> Problem:
        """Return the problem with its texts adapted to the kind of ranks in this group."""
        return problem

    @abc.abstractmethod
    def adapt_cause(self, cause: Cause) -> Cause:
        """Return the cause to report; `cause` is the one that the evidence suggests."""

    def may_restart(self, cause: Cause) -> bool:
        """Check whether a restart could help; after bad input, for example, it could not."""
        return cause.exit_code == 1

    @abc.abstractmethod
    def restart_text(self) -> Phrase:
        """Return a sentence, without its full stop, about where the next attempt starts."""

    def script_status(self) -> int | None:
        """Return the exit status of a user's script; None for a configuration."""
        return None
