"""torch's elastic agent over our rank processes, with a rendezvous of one host that listens on loopback only.

The agent brings what torch has settled: the store, ranks and sizes, the environment of a rank, restarts.
Processes are ours: torch's own take up to 38 s to end after a failure, name victims as causes and outlive a
killed agent. Everything that depends on torch's private side of the agent is in this file.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rankdeck.launch.rank_processes import GRACE_S, RankProcess, end_ranks

MONITOR_S = 0.05
LOOPBACK = "127.0.0.1"
_STORE_TIMEOUT = timedelta(seconds=60)


def loopback_store() -> TCPStore:
    """A store on a free port of 127.0.0.1. Left to itself, TCPStore listens on every address."""
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    port = listener.getsockname()[1]
    store = TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listener.fileno(),
    )
    listener.detach()  # the store owns the socket now
    return store


class OneHostRendezvous(RendezvousHandler):
    """A rendezvous of this host alone. Ranks use the agent's store: nothing else listens.

    Each round has a new store: ranks that start again find the keys of the last attempt in the old one.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._stores: list[TCPStore] = []

    def get_backend(self) -> str:
        return "c10d"

    def get_run_id(self) -> str:
        return self._run

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = loopback_store()
        self._stores.append(store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, store.port))

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


class RankAgent(SimpleElasticAgent):
    """Runs ranks that wait to be released.

    `release` is called for each with torch's part of its environment; `watch` at every look, and ends the run
    by returning True; `patience_s` after a failure: for how long more may be learnt of it.
    """

    def __init__(
        self,
        run: str,
        ranks: Sequence[RankProcess],
        release: Callable[[RankProcess, Mapping[str, str]], None],
        watch: Callable[[], bool],
        patience_s: Callable[[], float],
    ) -> None:
        self._ranks = ranks
        self._release = release
        self._watch = watch
        self._patience_s = patience_s
        spec = WorkerSpec(
            role="rank",
            local_world_size=len(ranks),
            rdzv_handler=OneHostRendezvous(run),
            entrypoint="rank",
            max_restarts=0,
            monitor_interval=MONITOR_S,
            local_addr=LOOPBACK,
        )
        super().__init__(spec, exit_barrier_timeout=1, shutdown_timeout=int(GRACE_S))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        for worker in worker_group.workers:
            self._release(self._ranks[worker.local_rank], _environment(worker, worker_group))
        return {rank.rank: rank.pid for rank in self._ranks}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = [rank.poll() for rank in self._ranks]
        if any(codes):
            self._settle()
            return RunResult(state=WorkerState.FAILED)
        if self._watch():
            return RunResult(state=WorkerState.FAILED)
        if all(code == 0 for code in codes):
            return RunResult(
                state=WorkerState.SUCCEEDED, return_values={rank.rank: None for rank in self._ranks}
            )
        return RunResult(state=WorkerState.HEALTHY)

    def _settle(self) -> None:
        """A victim may be seen first: the cause gets a moment to be seen before the others are ended."""
        began = time.monotonic()
        while time.monotonic() - began < self._patience_s():
            time.sleep(MONITOR_S)
            for rank in self._ranks:
                rank.poll()

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        # torch passes a timeout of 30 s from some of its paths; a person waits for this one.
        end_ranks(self._ranks, GRACE_S)

    def _construct_event(
        self, state: str, source: EventSource, worker: Worker | None = None, *_: Any, **__: Any
    ) -> Event:
        # torch's own event looks up the host's full name each time, which takes seconds without a network;
        # nobody reads it.
        return Event(state, source=source)


def _environment(worker: Worker, group: WorkerGroup) -> dict[str, str]:
    """What torch's `env://` wants to know."""
    return {
        "RANK": str(worker.global_rank),
        "LOCAL_RANK": str(worker.local_rank),
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(group.spec.local_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RUN_ID": group.spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
