"""torch's elastic agent over processes that are ours, with a rendezvous of one host on loopback only.

The agent brings what torch has settled: the store, ranks and sizes, the environment of a rank. Four methods
of it are made for subclasses, and one is not: `_construct_event`.

Source: torch.distributed.elastic.agent.server.api.
"""

from __future__ import annotations

import abc
import signal
import socket
from collections.abc import Mapping
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

from rankdeck.torch_compat.places import Private

LOOPBACK = "127.0.0.1"
_STORE_TIMEOUT = timedelta(seconds=60)
_AGENT = "torch.distributed.elastic.agent.server.api:SimpleElasticAgent"
_RUNS = "runs cannot start, or do not end as they should"
PLACES = (
    Private(f"{_AGENT}.__init__", _RUNS, takes=("self", "spec", "exit_barrier_timeout")),
    Private(f"{_AGENT}._start_workers", _RUNS, takes=("self", "worker_group")),
    Private(f"{_AGENT}._monitor_workers", _RUNS, takes=("self", "worker_group")),
    Private(f"{_AGENT}._stop_workers", _RUNS),
    Private(f"{_AGENT}._shutdown", _RUNS),
    Private(f"{_AGENT}._construct_event", "runs take seconds to start", takes=("self", "state", "source")),
    Private("torch.distributed.elastic.events.api:Event", _RUNS, takes=("name", "source")),
    Private(
        "torch.distributed.elastic.rendezvous:RendezvousStoreInfo",
        _RUNS,
        takes=("master_addr", "master_port"),
    ),
    Private(
        "torch.distributed.elastic.rendezvous:RendezvousInfo",
        _RUNS,
        takes=("store", "rank", "world_size", "bootstrap_store_info"),
    ),
)


class HostAgent(SimpleElasticAgent, abc.ABC):
    """Runs the ranks of this host, whatever they are: a subclass starts, polls and ends them."""

    def __init__(self, rendezvous: Rendezvous, num_ranks: int, *, poll_every_s: float) -> None:
        spec = WorkerSpec(
            role="rank",
            local_world_size=num_ranks,
            rdzv_handler=rendezvous,
            entrypoint="rank",
            max_restarts=0,
            monitor_interval=poll_every_s,
            local_addr=rendezvous.address,
        )
        super().__init__(spec, exit_barrier_timeout=rendezvous.others_end_s)

    @abc.abstractmethod
    def start(self, rank: int, environment: Mapping[str, str]) -> int:
        """Start a rank with torch's part of its environment; its process id."""

    @abc.abstractmethod
    def poll(self) -> bool | None:
        """True once all ranks have done their work, False when one has failed, None while they work."""

    @abc.abstractmethod
    def end(self) -> None:
        """End what is left of the ranks; called more than once."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        return {
            worker.local_rank: self.start(worker.local_rank, _environment(worker, worker_group))
            for worker in worker_group.workers
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        done = self.poll()
        if done is None:
            return RunResult(state=WorkerState.HEALTHY)
        if not done:
            return RunResult(state=WorkerState.FAILED)
        ranks = [worker.global_rank for worker in worker_group.workers]
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.end()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        # torch passes a timeout of 30 s from some of its paths; a person waits for ours.
        self.end()

    def _construct_event(
        self, state: str, source: EventSource, worker: Worker | None = None, *_: Any, **__: Any
    ) -> Event:
        # torch's own event looks up the host's full name each time, which takes seconds without a network;
        # nobody reads it.
        return Event(state, source=source)


def listening_store(listener: socket.socket) -> TCPStore:
    """A store at a socket that listens. Left to itself, TCPStore listens on every address."""
    address, port = listener.getsockname()
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listener.fileno(),
    )
    listener.detach()  # the store owns the socket now
    return store


class Rendezvous(RendezvousHandler):
    """Where the ranks of this host meet those of the others. Ranks use the agent's store: nothing else
    listens.

    Who is there is known before: `index` is this host's among `num_hosts`. Each round has a new store: ranks
    that start again find the keys of the last attempt in the old one.
    """

    others_end_s = 1.0
    """How long hosts that are done wait for the others."""

    def __init__(self, run: str, address: str = LOOPBACK, index: int = 0, num_hosts: int = 1) -> None:
        self.address = address
        self._run, self._index, self._num_hosts = run, index, num_hosts
        self._stores: list[TCPStore] = []

    def store(self) -> TCPStore:
        """Of one round."""
        return listening_store(socket.create_server((LOOPBACK, 0), backlog=512))

    def get_backend(self) -> str:
        return "c10d"

    def get_run_id(self) -> str:
        return self._run

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = self.store()
        self._stores.append(store)
        return RendezvousInfo(
            store, self._index, self._num_hosts, RendezvousStoreInfo(store.host, store.port)
        )

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


class RendezvousOfHosts(Rendezvous):
    """At the head's store: `listener` is its socket there, None elsewhere."""

    others_end_s = 30.0

    def __init__(
        self,
        run: str,
        address: str,
        index: int,
        num_hosts: int,
        at: tuple[str, int],
        listener: socket.socket | None,
    ) -> None:
        super().__init__(run, address, index, num_hosts)
        self._at, self._listener = at, listener

    def store(self) -> TCPStore:
        if self._listener is not None:
            return listening_store(self._listener)
        return TCPStore(*self._at, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)


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
