"""Probe a host for a multi-host run: its software and GPUs, its connections to other hosts, and a collective
with the coordinator.

`run_host_probe` listens on the host's address, reports the host's software and GPUs, and then, when it is
this host's turn, runs an all_reduce with the coordinator. `probe_endpoints` tries to connect to the other
hosts. Both print each result as one line of JSON as soon as it is known. multi_host.py starts both functions
on each host from the client.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil

from rankdeck import run_dir
from rankdeck.base import packages
from rankdeck.base.errors import MachineError
from rankdeck.doctor.disk_space import disk_space, existing_folder
from rankdeck.telemetry.listing import query_gpus

PROBE_LIFETIME_S = 40.0
"""Time after which the probe exits on its own, in case the client can no longer end it."""
REACH_TIMEOUT_S = 4.0
LARGE_BYTES = 256 << 10
"""Size of a message that fills many packets: a network may deliver small packets and drop large ones."""
_PAIR_TIMEOUT_S = 12.0
_SMALL_ELEMENTS, _LARGE_ELEMENTS = 1 << 18, 1 << 22
"""Numbers of float32 values in 1 and 16 MiB; the time for 1 MiB decides how many times 16 MiB is measured."""
_MEASURE_S = 0.5
_MAX_ROUNDS = 8
Endpoint = tuple[str, int]


def _report(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def interface_of(address: str) -> str | None:
    """Return the interface that has this address; None if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def run_host_probe(address: str, number: int, num_hosts: int, store: Endpoint | None) -> None:
    """Run this host's part of the probe until the process is killed.

    `number` is this host's number; host 0 is the coordinator. On the other hosts, `store` is the address of
    the coordinator's store.

    Raises:
        OSError: this host does not have the address.
    """
    # sys.exit would end only the timer's thread, and the main thread may be blocked in a collective.
    threading.Timer(PROBE_LIFETIME_S, os._exit, [0]).start()
    reach = socket.create_server((address, 0), backlog=64)
    store_socket = socket.create_server((address, 0), backlog=512) if number == 0 else None
    ports = {
        "reach": reach.getsockname()[1],
        "store": store_socket.getsockname()[1] if store_socket is not None else None,
    }
    threading.Thread(target=_serve_reach, args=(reach,), daemon=True).start()
    interface = interface_of(address)
    _report("listens", interface=interface, **ports)
    # In a thread, because a slow driver must not delay the collective.
    threading.Thread(target=lambda: _report("facts", **_facts()), daemon=True).start()
    if interface is not None:
        # As in a run (launch/forked_ranks.py): by default gloo uses the hostname's interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    _run_collectives(number, num_hosts, store or (address, ports["store"] or 0), store_socket)
    # Other hosts may still connect: the client ends this process when all are done.
    threading.Event().wait()


def _serve_reach(server: socket.socket) -> None:
    while True:
        end, _ = server.accept()
        threading.Thread(target=_handle_connection, args=(end,), daemon=True).start()


def _handle_connection(end: socket.socket) -> None:
    """Echo the first five bytes, then confirm once `LARGE_BYTES` more bytes have arrived."""
    with end, suppress(OSError):
        end.settimeout(REACH_TIMEOUT_S)
        end.sendall(end.recv(5))
        left = LARGE_BYTES
        while left and (got := len(end.recv(left))):
            left -= got
        if not left:
            end.sendall(b"large")


def _facts() -> dict[str, object]:
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": packages.package_version("torch"),
        "nccl": packages.nccl_version(),
        "installed": packages.installed_versions(),
        "free_bytes": disk_space(existing_folder(run_dir.runs_folder(None)))[0],
    }
    try:
        listing = query_gpus()
    except MachineError:
        return {**facts, "driver": None, "gpus": 0, "free_gpus": 0}
    free = [gpu for gpu in listing.gpus if gpu.is_available]
    return {**facts, "driver": listing.driver, "gpus": len(listing.gpus), "free_gpus": len(free)}


def _run_collectives(
    number: int, num_hosts: int, store: Endpoint, store_socket: socket.socket | None
) -> None:
    """Run the collective between a node and the coordinator; the coordinator runs it with each node in
    turn."""
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except Exception as error:
        _report("torch", error=_error_text(error))
        return
    torch.set_num_threads(1)
    _report("torch")
    # A node waits for its turn; the coordinator must reach the next node even if this one hangs.
    patience = timedelta(seconds=PROBE_LIFETIME_S if number else _PAIR_TIMEOUT_S)
    # The store's port is reported before torch is imported, so the nodes can start in the meantime. torch
    # owns and closes the descriptor, hence `detach`.
    store_args = {} if store_socket is None else {"master_listen_fd": store_socket.detach()}
    try:
        at = distributed.TCPStore(
            *store, None, store_socket is not None, patience, wait_for_workers=False, **store_args
        )
    except Exception as error:
        _report("pair", number=number, error=_error_text(error))
        return
    for other in range(1, num_hosts) if number == 0 else [number]:
        try:
            facts = _measure_pair(
                # All pairs use one store, so each needs a prefix for its keys.
                torch,
                distributed,
                distributed.PrefixStore(f"pair-{other}", at),
                number,
                patience,
            )
            _report("pair", number=other, **facts)
        except Exception as error:
            _report("pair", number=other, error=_error_text(error))
        finally:
            # A process has one default group, so the next pair needs this one destroyed, also after an error.
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _measure_pair(
    torch: Any, distributed: Any, store: Any, number: int, patience: timedelta
) -> dict[str, float]:
    rank = int(number > 0)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
    # float32 holds sums of small integers exactly: any difference is an error of the transport.
    summed = torch.arange(_SMALL_ELEMENTS, dtype=torch.float32) % 1021 + rank
    seconds = _time_all_reduce(distributed, summed)
    expected = 2 * (torch.arange(_SMALL_ELEMENTS, dtype=torch.float32) % 1021) + 1
    num_wrong = int((summed != expected).sum())
    count = torch.tensor(
        [max(1, min(_MAX_ROUNDS, int(_MEASURE_S / (seconds * _LARGE_ELEMENTS / _SMALL_ELEMENTS))))]
    )
    # Both ranks must measure the same number of rounds.
    distributed.broadcast(count, 0)
    tensor = torch.ones(_LARGE_ELEMENTS)
    rounds = sorted(_time_all_reduce(distributed, tensor) for _ in range(int(count)))
    return {"num_wrong": num_wrong, "num_bytes": 4 * _LARGE_ELEMENTS, "seconds": rounds[len(rounds) // 2]}


def _time_all_reduce(distributed: Any, tensor: Any) -> float:
    began_s = time.monotonic()
    distributed.all_reduce(tensor)
    return time.monotonic() - began_s


def _error_text(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def probe_endpoints(endpoints: Sequence[Endpoint]) -> None:
    """Connect to all endpoints in parallel; report for each whether it answers and receives a large
    message."""
    threads = [
        threading.Thread(target=_probe_endpoint, args=(number, endpoint))
        for number, endpoint in enumerate(endpoints)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _accepts_large(end: socket.socket) -> bool:
    with suppress(OSError):
        end.sendall(bytes(LARGE_BYTES))
        return end.recv(5) == b"large"
    return False


def _probe_endpoint(number: int, endpoint: Endpoint) -> None:
    began_s = time.monotonic()
    result: dict[str, object] = {}
    try:
        with socket.create_connection(endpoint, REACH_TIMEOUT_S) as end:
            end.sendall(b"there")
            if end.recv(5) != b"there":
                raise OSError(0, "another program answers")
            result["seconds"] = time.monotonic() - began_s
            result["takes_large"] = _accepts_large(end)
    except OSError as error:
        result["error"] = str(error.strerror or error)[:300]
    # `print` writes the line feed separately, which would mix the lines of parallel threads.
    sys.stdout.write(json.dumps({"stage": "reach", "number": number, **result}) + "\n")
    sys.stdout.flush()
