"""Watches the ranks of a person's own script: which processes are ranks, whether they go on, and all the
evidence at the end.

An observed process tells where it is through the page of heartbeats and its own file of events, whether we
started it or the script did. A script is never ended because it stands still: that is told, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import HeartbeatPage
from rankdeck.config.script import ScriptConfig
from rankdeck.diagnose.exceptions import is_communication, read_last_lines
from rankdeck.diagnose.tracebacks import failure_of
from rankdeck.launch.children import Child
from rankdeck.launch.watch import Watch
from rankdeck.rundir import RunDir

NUM_SLOTS = 64
"""A script may start ranks of its own."""


class ScriptWatch(Watch):
    """Hears every rank of a script."""

    def __init__(
        self, run: RunDir, attempt: int, config: ScriptConfig, raise_problem: Callable[[Problem], None]
    ) -> None:
        super().__init__(run, attempt, 0.0, raise_problem)
        self._config = config

    def begin(self, ranks: Sequence[Child]) -> None:
        self.ranks = ranks

    def prepare(self) -> str:
        """The page of heartbeats, which ranks are told of when they are started."""
        self._page = HeartbeatPage(max(NUM_SLOTS, self._config.script.ranks))
        return self._page.path

    def attempts_log(self, name: str) -> Path:
        return self._run.logs_folder / f"{name}.{self._attempt}.err"

    def poll(self) -> bool:
        return False

    def failure(self, rank: int) -> events.RankFailed | None:
        """What the rank's stderr says of its end, and its exit code where that says more."""
        code = self.ranks[rank].exit_code
        several = len(self.ranks) > 1
        log = self.log(rank, "err")
        if code in (None, 1) or (code or 0) < 0:
            raised = failure_of(rank, log, folder=self._config.script.folder, of_several=several)
            if raised is not None and ((code or 0) >= 0 or raised.is_communication):
                return raised
        if code is None or code <= 0:
            return None
        return self._exited(rank, code, log, of_several=several)

    def _exited(self, rank: int, code: int, log: Path, *, of_several: bool) -> events.RankFailed:
        who = f" (rank {rank})" if of_several else ""
        lines = read_last_lines(log)
        said = f". Its last line: {lines[-1]}" if lines and code in (1, 2) else "."
        problem = Problem(
            "rank-exited",
            f"{Path(self._config.script.run).name} exited with {code}{who}{said}",
            advice="All that it wrote is in the logs of the run.",
            rank=rank if of_several else None,
            last_lines=lines,
        )
        try:
            at = log.stat().st_mtime
        except OSError:
            at = time.time()
        return events.RankFailed(
            rank=rank, problem=problem, is_communication=is_communication("\n".join(lines)), t=at
        )

    def dropped_lines(self) -> int:
        return sum(
            event.lines
            for path in self._run.events_folder.glob(f"rank-*.{self._attempt}.jsonl")
            for event in self._tail_of(path)
            if isinstance(event, events.Dropped)
        )
