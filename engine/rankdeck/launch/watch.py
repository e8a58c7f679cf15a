"""Watch a run's ranks: read heartbeats, warn of hangs, collect the evidence after a failure.

A rank makes progress while it sends heartbeats or its checkpoint grows on disk. Time during which the machine
slept, or a rank was suspended or in a debugger, does not count. All timeouts are shorter than torch's own.
"""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.heartbeat import (
    CHECK_STEP,
    FINISHED,
    NOT_STARTED,
    STEP,
    Beat,
    HeartbeatPage,
    HeartbeatReader,
)
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.schema import LaunchConfig
from rankdeck.diagnose.exceptions import last_resource_error, read_last_lines
from rankdeck.diagnose.hang import HangState, HangTimeouts, awaited_ranks, hang_warning
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.diagnose.stacks import CollectiveCall, is_debugged
from rankdeck.diagnose.tracebacks import crash_frames
from rankdeck.launch.lost_events import NUM_TAIL, LostEvents, find_lost_events
from rankdeck.launch.processes import ProcessWork, is_suspended, is_traced, signal_if_handled, work_of
from rankdeck.launch.rank_process import RankProcess
from rankdeck.launch.save_watch import SaveWatch
from rankdeck.launch.stacks import StackReport, mtime_and_size, rank_log, read_calls, request_stacks
from rankdeck.run_dir import RunDir, events_from_end

_log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
"""Seconds between two checks for a hang."""
# Excusing a long gap as a whole is not enough: a rank may send a heartbeat between the last check and its own
# suspension. With this limit 0 of 200 healthy runs, 31 of them suspended, gave a false alarm; before, 1 in 5.
_MAX_COUNTED_S = 1.5
"""Maximum time between two checks that counts towards a hang; a longer gap may be due to suspension."""
_MIN_SLEEP_S = 5.0
"""Time between two checks above which the machine or this process must have slept."""
VICTIM_TIMEOUT_S = 1.0
"""How long to wait for the cause to appear after a failure that another rank may have caused."""
INPUT_ERROR_TIMEOUT_S = 1.5
"""How long to wait, after one rank's input error, for the other ranks to report the same error."""
RECHECK_INTERVAL_S = 10.0
"""Seconds between two inspections of a run that hangs but must not be ended."""


class Watch:
    """Monitor of the ranks. Warnings go to `report_problem`; `compiles` is set if torch.compile is used."""

    def __init__(
        self,
        run: RunDir,
        attempt: int,
        launch: LaunchConfig,
        report_problem: Callable[[Problem], None],
        *,
        compiles: bool = False,
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._on_hang = launch.on_hang
        self._timeouts = HangTimeouts(launch.timeout_s, compiles)
        self._report_problem = report_problem
        self.saves = SaveWatch(run.path)
        self.ranks: Sequence[RankProcess] = ()
        self._num_ranks = 0
        self._page: HeartbeatPage | None = None
        self._started_s = self._polled_s = self._rechecked_s = self._excused_s = 0.0
        self._hang_start_s = self._hang_s = 0.0  # when progress stopped, and how long this was observed
        self._sleep_s = _system_sleep_s()
        self._suspected: tuple[int, int] | None = None
        self._work: tuple[float, dict[int, ProcessWork]] | None = None
        self._hang_state = HangState({})

    def prepare(self, num_slots: int) -> str:
        """Create the heartbeat page and return its path; call this before `start` if ranks need the path."""
        self._page = HeartbeatPage(num_slots)
        return self._page.path

    def start(self, ranks: Sequence[RankProcess], world_size: int | None = None) -> None:
        """Start watching this host's `ranks`; the run has `world_size` ranks in all."""
        self.ranks, self._started_s = ranks, time.monotonic()
        self._polled_s = self._started_s
        self._num_ranks = world_size or len(ranks)
        if self._page is None:
            self.prepare(self._num_ranks)

    @property
    def heartbeats(self) -> str:
        """Path of the page to which the ranks write their heartbeats."""
        assert self._page is not None
        return self._page.path

    @property
    def _readers(self) -> list[HeartbeatReader]:
        return self._page.readers if self._page is not None else []

    def log(self, rank: int, kind: str) -> Path:
        """Return a rank's log path. `kind` is out | err | stacks | calls."""
        return rank_log(self._run, self._attempt, rank, kind)

    def errors_log(self, rank: int) -> Path:
        return self.log(rank, "err")

    def beats(self) -> dict[int, Beat]:
        return {
            rank: beat for rank, reader in enumerate(self._readers) if (beat := reader.read()) is not None
        }

    def poll(self) -> bool:
        """Read the heartbeats; return True if a hang has lasted so long that the run must end."""
        now_s = time.monotonic()
        if now_s - self._polled_s < POLL_INTERVAL_S:
            return False
        since_s = now_s - self._polled_s
        self._excuse_sleep(now_s)
        beats = self.living_beats()
        return bool(beats) and self._check(beats, now_s, since_s)

    def living_beats(self) -> dict[int, Beat]:
        return self.beats() | self.silent_ranks()

    def silent_ranks(self) -> dict[int, Beat]:
        """Return the living ranks that have sent no heartbeat yet, each with a placeholder heartbeat that
        carries the start time. A rank that has written events is left out: it works without a heartbeat page.
        """
        beats, beat = self.beats(), Beat(0, NOT_STARTED, self._started_s)
        return {
            rank.rank: beat
            for rank in self.ranks
            if rank.rank not in beats
            and rank.exit_code is None
            and not mtime_and_size(self._events(rank.rank))[1]
        }

    def _excuse_sleep(self, now_s: float) -> None:
        """Restart the hang timer if the machine or this process has slept since the last check."""
        asleep_s = _system_sleep_s()
        if now_s - self._polled_s > _MIN_SLEEP_S or asleep_s - self._sleep_s > _MIN_SLEEP_S:
            _log.info("not polled for %.1f s, the hang timer restarts", now_s - self._polled_s)
            self._excused_s = now_s
        self._polled_s, self._sleep_s = now_s, asleep_s

    def _check(self, beats: dict[int, Beat], now_s: float, since_s: float) -> bool:
        """Check for a hang, `since_s` seconds after the last check; return True if the run must end."""
        until_told_s = self.warning_after_s(beats)
        began_s = max(self._excused_s, *(beat.at_s for beat in beats.values()))
        if began_s != self._hang_start_s:
            self._hang_start_s, self._hang_s = began_s, 0.0
        self._hang_s = still_s = min(self._hang_s + min(since_s, _MAX_COUNTED_S), now_s - began_s)
        if still_s <= until_told_s / 2:
            self._work, self._hang_state = None, HangState({})
            return False
        if self._work is None:  # From here on, measure whether the ranks are working.
            self._work = now_s, self._work_by_rank(beats)
        # A save explains the wait, unless a rank that others wait for is inside its step.
        if self.saves.is_progressing() and not any(
            beat.phase == STEP for beat in awaited_ranks(beats).values()
        ):
            self._excused_s = now_s
        elif still_s > until_told_s:
            return self.judge(beats, now_s, still_s, self._timeouts.stop_after_s(until_told_s))
        return False

    def warning_after_s(self, beats: Mapping[int, Beat]) -> float:
        """Return how many seconds these ranks may go without progress before a hang is reported."""
        slowest_s = {rank: self._readers[rank].longest_gap_s for rank in beats}
        return self._timeouts.warning_after_s(beats, slowest_s)

    def judge(self, beats: dict[int, Beat], now_s: float, still_s: float, until_ended_s: float) -> bool:
        """Report a hang once per stuck step and rank; return True if the run must end because of the hang."""
        key = min((beat.step, rank) for rank, beat in beats.items())
        is_over = still_s > until_ended_s and now_s - self._rechecked_s > RECHECK_INTERVAL_S
        is_over = is_over and self._on_hang != "wait"
        if key == self._suspected and not is_over:
            return False
        self._hang_state = self._inspect(beats, now_s)
        if self._is_debugged(beats):
            self._excused_s = now_s
            return False
        if key != self._suspected:
            _log.info("no progress for %.1f s: %s", still_s, self._hang_state.beats)
            self._suspected = key
            self._report_problem(self.hang_warning(self._hang_state, now_s, until_ended_s - still_s))
        # A user has suspended a rank: this time does not count.
        if self._hang_state.suspended:
            self._excused_s = now_s
        elif is_over and self._may_end():
            _log.info("the hang has lasted %.1f s and ends the run", still_s)
            return True
        elif is_over:
            self._rechecked_s = now_s
        return False

    def _is_debugged(self, beats: Mapping[int, Beat]) -> bool:
        in_debugger = any(map(is_debugged, self._hang_state.stacks.values()))
        return in_debugger or any(map(is_traced, self._pids(beats).values()))

    @property
    def _is_single_rank(self) -> bool:
        """Whether the run has only one rank across all hosts."""
        return max(self._num_ranks, len(self.ranks)) == 1

    def _may_end(self) -> bool:
        """Check whether a hang may end the run because no progress can be expected. A run's only rank may
        just be slow while it computes, and so may all ranks while they load data and build the model."""
        hang_state = self._hang_state
        has_begun = all(beat.step > 0 or beat.phase == CHECK_STEP for beat in hang_state.beats.values())
        if self._on_hang == "wait":
            return False
        if self._is_single_rank:
            return has_begun and not hang_state.is_computing
        return has_begun or hang_state.has_waiting_rank

    def hang_warning(self, hang_state: HangState, now_s: float, left_s: float) -> Problem:
        """Return the warning about a hang, including what will happen to the run."""
        return hang_warning(hang_state, now_s, self._outlook(hang_state, left_s))

    def _outlook(self, hang_state: HangState, left_s: float) -> Phrase:
        run = self._run.name
        if hang_state.suspended:
            pids = " ".join(str(self._pid(rank)) for rank in hang_state.suspended)
            return phrase("To continue, resume the suspended processes: kill -CONT {pids}", pids=pids)
        if self._is_single_rank and hang_state.is_computing:
            return phrase(
                "The rank is computing and may just be slow. Inspect it with rankdeck stacks "
                "{run}, or end the run with rankdeck stop {run}.",
                run=run,
            )
        if not self._may_end():
            return phrase(
                "Rankdeck will not end the run on its own. Inspect the run with rankdeck "
                "stacks {run}, or end it with rankdeck stop {run}.",
                run=run,
            )
        if self._on_hang == "restart":
            return phrase(
                "In {seconds:.0f} s, the run will restart from its newest checkpoint (launch.on_hang).",
                seconds=left_s,
            )
        return phrase(
            "Rankdeck will end the run in {seconds:.0f} s (launch.timeout_s, launch.on_hang). You can "
            "also stop the run now.",
            seconds=left_s,
        )

    def _pid(self, rank: int) -> int:
        return next(process.pid for process in self.ranks if process.rank == rank)

    def _pids(self, beats: Mapping[int, Beat]) -> dict[int, int]:
        return {rank: self._pid(rank) for rank in beats}

    def _work_by_rank(self, beats: Mapping[int, Beat]) -> dict[int, ProcessWork]:
        return {rank: work_of(pid) for rank, pid in self._pids(beats).items()}

    def _inspect(self, beats: dict[int, Beat], now_s: float) -> HangState:
        """Collect stacks, collectives and CPU use of all ranks."""
        pids = self._pids(beats)
        suspended = sorted(rank for rank, pid in pids.items() if is_suspended(pid))
        traced = {rank for rank, pid in pids.items() if is_traced(pid)}
        answers = self._request_stacks(
            # The signal would stop a traced process in its debugger, and a suspended one does not answer.
            [rank for rank in beats if rank not in traced and rank not in suspended]
        )
        cores, io_rates = {}, {}
        if self._work is not None and now_s > self._work[0]:
            since_s, before = now_s - self._work[0], self._work[1]
            for rank, work in self._work_by_rank(beats).items():
                earlier = before.get(rank, work)
                cores[rank] = (work.cpu_s - earlier.cpu_s) / since_s
                io_rates[rank] = (work.io_bytes - earlier.io_bytes) / since_s
        return HangState(
            beats,
            stacks={rank: answer.frames for rank, answer in answers.items() if answer.frames},
            suspended=suspended,
            calls={rank: answer.calls for rank, answer in answers.items() if answer.calls},
            microbatches={rank: answer.microbatch for rank, answer in answers.items() if answer.microbatch},
            cores=cores,
            io_rates=io_rates,
            last_lines={rank: read_last_lines(self.errors_log(rank)) for rank in pids},
        )

    def _request_stacks(self, ranks: Sequence[int]) -> dict[int, StackReport]:
        """Ask these ranks for their stacks."""
        senders = {
            rank.rank: partial(signal_if_handled, rank.pid, signal.SIGUSR1)
            for rank in self.ranks
            if rank.rank in ranks
        }
        return request_stacks(self._run, self._attempt, senders, with_calls=not self._is_single_rank)

    def failure_timeout_s(self) -> float:
        """Return how long to wait after a failure for more evidence of its cause. An input error on one rank
        usually appears on all ranks, unless the bad input is only on that rank."""
        if all(rank.exit_code is not None for rank in self.ranks):
            return 0.0
        signals = {rank.exit_code for rank in self.ranks if rank.exit_code is not None and rank.exit_code < 0}
        if signals:
            # gloo aborts the receiver of a mismatched collective ("Received data size doesn't match"). The
            # abort is the cause, and the other ranks' flight recorders show which collective it was.
            return VICTIM_TIMEOUT_S if signals == {-signal.SIGABRT} else 0.0
        failures = [failure for rank in self.ranks if rank.exit_code and (failure := self.failure(rank.rank))]
        root_failures = [failure for failure in failures if not failure.is_communication]
        if not root_failures:
            return VICTIM_TIMEOUT_S
        return (
            INPUT_ERROR_TIMEOUT_S
            if all(failure.exit_code == ConfigError.exit_code for failure in root_failures)
            else 0.0
        )

    def evidence(self) -> list[RankEvidence]:
        """Return the evidence about each rank from which to find the cause of a failure."""
        beats = self.beats()
        return [
            RankEvidence(
                rank=rank.rank,
                # The exit code of a rank that the supervisor has ended is no evidence.
                exit_code=None if rank.terminated_at is not None else rank.exit_code,
                has_finished=self.has_finished(rank),
                was_asked_to_stop=self._end_reason(rank.rank) == events.ASKED_TO_STOP,
                failure=self._failure_before_end(rank),
                beat=beats.get(rank.rank),
                is_suspended=rank.rank in self._hang_state.suspended or rank.was_suspended,
                last_lines=read_last_lines(self.errors_log(rank.rank)),
                frames=self._hang_state.stacks.get(rank.rank) or crash_frames(self.log(rank.rank, "stacks")),
                calls=self._hang_state.calls.get(rank.rank) or self._calls_at_end(rank),
                microbatch=self._hang_state.microbatches.get(rank.rank),
                resource_error=last_resource_error(self.errors_log(rank.rank)),
            )
            for rank in self.ranks
        ]

    def _calls_at_end(self, rank: RankProcess) -> Sequence[CollectiveCall]:
        """Return the collectives that the rank had reached when it lost its connections."""
        failure = self._failure_before_end(rank)
        has_lost_others = failure is not None and failure.is_communication
        return read_calls(self.log(rank.rank, "calls")) if has_lost_others else ()

    def has_finished(self, rank: RankProcess) -> bool:
        """Check whether the rank reported, in its last heartbeat or its events, that its work was done."""
        beat = self.beats().get(rank.rank)
        return (beat is not None and beat.phase.startswith(FINISHED)) or self._end_reason(
            rank.rank
        ) == "completed"

    def _end_reason(self, rank: int) -> str | None:
        """Return the reason that the rank gave for its exit."""
        ends = (event for event in self._tail(rank) if isinstance(event, events.RankEnded))
        return next((event.reason for event in ends), None)

    def _failure_before_end(self, rank: RankProcess) -> events.RankFailed | None:
        """Return the failure that the rank reported, unless the supervisor was already ending the rank."""
        failure = self.failure(rank.rank)
        late = failure is not None and rank.terminated_at is not None and failure.t > rank.terminated_at
        return None if late else failure

    def failure(self, rank: int) -> events.RankFailed | None:
        """Return the failure that the rank reported."""
        failures = [event for event in self._tail(rank) if isinstance(event, events.RankFailed)]
        return failures[0] if failures else None

    def lost_events(self) -> list[LostEvents]:
        """Return the events that ranks could not write."""
        return find_lost_events(self._run, self._attempt, self.beats())

    def close(self) -> None:
        """Remove empty stack logs."""
        for rank in self.ranks:
            if mtime_and_size(self.log(rank.rank, "stacks"))[1] == 0:
                self.log(rank.rank, "stacks").unlink(missing_ok=True)

    def _tail(self, rank: int) -> list[events.AnyEvent]:
        """Return the last events of a rank, newest first."""
        return self._tail_of(self._events(rank))

    def _events(self, rank: int) -> Path:
        return self._run.events_folder / f"rank-{rank}.{self._attempt}.jsonl"

    @staticmethod
    def _tail_of(path: Path) -> list[events.AnyEvent]:
        return list(itertools.islice(events_from_end(path), NUM_TAIL))


def _system_sleep_s() -> float:
    """Return how long this machine has been suspended since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
