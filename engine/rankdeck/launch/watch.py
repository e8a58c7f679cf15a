"""Watches the ranks of a run: heartbeats in, suspicions out, and all the evidence at the end.

Read diagnose/ for what is made of it.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.heartbeat import FINISHED, Beat, HeartbeatPage, HeartbeatReader
from rankdeck.diagnose.cause import RankEvidence
from rankdeck.diagnose.exceptions import read_last_lines
from rankdeck.diagnose.hang import Frame, find_laggard, is_still, parse_stack, suspicion
from rankdeck.launch.children import Child
from rankdeck.rundir import RunDir, events_from_end

POLL_S = 1.0
"""Seconds between two searches for a hang."""
OVERTIME_S = 10.0
"""How long after launch.timeout_s the ranks' own timeouts may take to end them."""
VICTIM_S = 1.0
"""How long after a victim the cause may take to show itself."""
INPUT_S = 3.0
"""How long after a rank that calls the input bad the others may take to agree."""
_NUM_TAIL = 2_000
_DUMP_S = 0.5


class Watch:
    """Hears every rank. `raise_problem` writes a warning."""

    def __init__(
        self, run: RunDir, attempt: int, timeout_s: float, raise_problem: Callable[[Problem], None]
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._raise_problem = raise_problem
        self.ranks: Sequence[Child] = ()
        self._page: HeartbeatPage | None = None
        self._polled_s = 0.0
        self._suspected: tuple[int, int] | None = None
        self._frames: dict[int, list[Frame]] = {}
        self._suspended: set[int] = set()

    def begin(self, ranks: Sequence[Child]) -> None:
        self.ranks = ranks
        self._page = HeartbeatPage(len(ranks))

    @property
    def heartbeats(self) -> str:
        """The page that ranks write their beats to."""
        assert self._page is not None
        return self._page.path

    @property
    def _readers(self) -> list[HeartbeatReader]:
        return self._page.readers if self._page is not None else []

    def log(self, rank: int, kind: str) -> Path:
        """`kind`: out | err | stacks."""
        return self._run.logs_folder / f"rank-{rank}.{self._attempt}.{kind}"

    def errors_log(self, rank: int) -> Path:
        """Where what the rank wrote to stderr is."""
        return self.log(rank, "err")

    def beats(self) -> dict[int, Beat]:
        return {
            rank: beat for rank, reader in enumerate(self._readers) if (beat := reader.read()) is not None
        }

    def poll(self) -> bool:
        """Take heartbeats in; True when a hang has lasted so long that the run has to end."""
        beats = self.beats()
        now_s = time.monotonic()
        if now_s - self._polled_s < POLL_S:
            return False
        self._polled_s = now_s
        if not is_still(beats, now_s, max(reader.longest_gap_s for reader in self._readers)):
            return False
        key = min((beat.step, rank) for rank, beat in beats.items())
        if key != self._suspected:
            self._suspected = key
            self._suspect(beats, now_s)
        newest_s = max(beat.at_s for beat in beats.values())
        # Before the first step a collective waits longer than launch.timeout_s; the ranks know how long.
        return key[0] > 1 and now_s - newest_s > self._timeout_s + OVERTIME_S

    def _suspect(self, beats: dict[int, Beat], now_s: float) -> None:
        self._suspended = {rank.rank for rank in self.ranks if rank.is_suspended}
        self._frames = self._dump_stacks(beats)
        laggard = find_laggard(beats, sorted(self._suspended), self._frames)
        if laggard is not None:
            self._raise_problem(
                suspicion(
                    laggard,
                    beats,
                    now_s,
                    suspended=laggard in self._suspended,
                    frames=self._frames.get(laggard, ()),
                )
            )

    def _dump_stacks(self, beats: dict[int, Beat]) -> dict[int, list[Frame]]:
        """Where every rank that runs stands now. Only ranks that have beaten know what SIGUSR1 means."""
        running = [rank for rank in self.ranks if rank.rank in beats and rank.rank not in self._suspended]
        by_rank = {rank.rank: rank for rank in running}
        return self._read_dumps(list(by_rank), lambda rank: by_rank[rank].send(signal.SIGUSR1))

    def _read_dumps(self, ranks: Sequence[int], ask: Callable[[int], object]) -> dict[int, list[Frame]]:
        """The stacks that these ranks write once they are asked."""
        sizes = before = {rank: _num_bytes(self.log(rank, "stacks")) for rank in ranks}
        for rank in ranks:
            ask(rank)
        deadline = time.monotonic() + _DUMP_S
        # A report is written in pieces: it is whole when it has grown and grows no more.
        while time.monotonic() < deadline:
            time.sleep(0.02)
            earlier, sizes = sizes, {rank: _num_bytes(self.log(rank, "stacks")) for rank in before}
            if sizes == earlier and all(sizes[rank] > before[rank] for rank in before):
                break
        return {rank: frames for rank in before if (frames := self._read_stack(rank))}

    def _read_stack(self, rank: int) -> list[Frame]:
        try:
            return parse_stack(files.read_text(self.log(rank, "stacks")))
        except OSError:
            return []

    def patience_s(self) -> float:
        """After a failure: for how long more may be learnt of its cause. What one rank says of bad input, the
        others are about to say too, unless it is that rank's alone.
        """
        if all(rank.exit_code is not None for rank in self.ranks):
            return 0.0
        if any(rank.exit_code is not None and rank.exit_code < 0 for rank in self.ranks):
            return 0.0
        failures = [failure for rank in self.ranks if rank.exit_code and (failure := self.failure(rank.rank))]
        own = [failure for failure in failures if not failure.is_communication]
        if not own:
            return VICTIM_S
        return INPUT_S if all(failure.exit_code == ConfigError.exit_code for failure in own) else 0.0

    def evidence(self) -> list[RankEvidence]:
        """All that is known of every rank, for the search for the cause."""
        beats = self.beats()
        return [
            RankEvidence(
                rank=rank.rank,
                exit_code=None if rank.ended_at is not None else rank.exit_code,
                has_finished=self.has_finished(rank),
                failure=self._own_failure(rank),
                beat=beats.get(rank.rank),
                suspended=rank.rank in self._suspended or rank.was_suspended,
                last_lines=read_last_lines(self.errors_log(rank.rank)),
                frames=self._frames.get(rank.rank, ()),
            )
            for rank in self.ranks
        ]

    def has_finished(self, rank: Child) -> bool:
        """Whether it said that its work was done: in its last beat, or in its events where it had no page."""
        beat = self.beats().get(rank.rank)
        return (beat is not None and beat.phase == FINISHED) or any(
            isinstance(event, events.RankEnded) and event.reason == "completed"
            for event in self._tail(rank.rank)
        )

    def _own_failure(self, rank: Child) -> events.RankFailed | None:
        """What the rank said, unless it said so because we were ending it."""
        failure = self.failure(rank.rank)
        late = failure is not None and rank.ended_at is not None and failure.t > rank.ended_at
        return None if late else failure

    def failure(self, rank: int) -> events.RankFailed | None:
        """What the rank said of its own end."""
        failures = [event for event in self._tail(rank) if isinstance(event, events.RankFailed)]
        return failures[0] if failures else None

    def dropped_lines(self) -> int:
        """Lines that ranks could not write, as far as their last events tell."""
        return sum(
            event.lines
            for rank in self.ranks
            for event in self._tail(rank.rank)
            if isinstance(event, events.Dropped)
        )

    def close(self) -> None:
        """Nobody looks at stacks that were never asked for."""
        for rank in self.ranks:
            if _num_bytes(self.log(rank.rank, "stacks")) == 0:
                self.log(rank.rank, "stacks").unlink(missing_ok=True)

    def _tail(self, rank: int) -> list[events.AnyEvent]:
        """The last events of a rank, the newest first."""
        return self._tail_of(self._run.events_folder / f"rank-{rank}.{self._attempt}.jsonl")

    @staticmethod
    def _tail_of(path: Path) -> list[events.AnyEvent]:
        return list(itertools.islice(events_from_end(path), _NUM_TAIL))


def _num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
