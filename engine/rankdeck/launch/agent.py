"""torch's elastic agent over our rank processes.

Processes are ours: torch's own take up to 38 s to end after a failure, name victims as causes and outlive a
killed agent. What the agent needs of torch is in torch_compat/elastic.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rankdeck.launch.children import GRACE_S, Child, end_ranks
from rankdeck.launch.rank_processes import RankProcess
from rankdeck.torch_compat.elastic import HostAgent, Rendezvous

MONITOR_S = 0.05


class RankAgent(HostAgent):
    """Runs ranks that wait to be released.

    `release` is called for each with torch's part of its environment; `watch` at every poll, and ends the run
    by returning True; `patience_s` after a failure: for how long more may be learnt of it. `has_finished`: of
    a rank that is over, whether its work was done, which no exit status tells. `is_saving`: whether a save
    goes on, which a stop waits for.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        ranks: Sequence[RankProcess],
        release: Callable[[RankProcess, Mapping[str, str]], None],
        watch: Callable[[], bool],
        patience_s: Callable[[], float],
        has_finished: Callable[[Child], bool],
        is_saving: Callable[[], bool],
    ) -> None:
        super().__init__(rendezvous, len(ranks), poll_every_s=MONITOR_S)
        self._ranks = ranks
        self._release = release
        self._watch = watch
        self._patience_s = patience_s
        self._has_finished = has_finished
        self._is_saving = is_saving
        self._has_failed = False

    def start(self, rank: int, environment: Mapping[str, str]) -> int:
        self._release(self._ranks[rank], environment)
        return self._ranks[rank].pid

    def poll(self) -> bool | None:
        over = [rank for rank in self._ranks if rank.poll() is not None]
        if not all(map(self._has_finished, over)):
            self._settle()
            self._has_failed = True
        elif self._watch():
            self._has_failed = True
        if self._has_failed:
            return False
        return True if len(over) == len(self._ranks) else None

    def _settle(self) -> None:
        """A victim may be seen first: the cause gets a moment to be seen before the others are ended."""
        began = time.monotonic()
        while time.monotonic() - began < self._patience_s():
            time.sleep(MONITOR_S)
            for rank in self._ranks:
                rank.poll()

    def end(self) -> None:
        """What was asked to stop may end its save; whose group has failed cannot."""
        end_ranks(self._ranks, GRACE_S, (lambda: False) if self._has_failed else self._is_saving)
