"""One of two test ranks, run in a project's interpreter: they connect, sum tensors and measure the speed.

    python probe_rendezvous.py RANK BACKEND TIMEOUT_S

Rank 0 opens a store on loopback and prints its port; rank 1 reads the port from stdin. Each finished step is
printed as one line of JSON, so that the caller knows in which step a rank hangs. Read rendezvous.py first.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

_LARGE_ELEMENTS = 4 << 20
"""Number of elements of the tensor whose all_reduce is timed (16 MiB of float32)."""
_NUM_ROUNDS = 8


def _report(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def _open_store(distributed: Any, rank: int, patience: timedelta) -> Any:
    if rank == 0:
        # A store that waits for its workers would wait forever: rank 1 gets the port only from the next line.
        store = distributed.TCPStore("127.0.0.1", 0, 2, True, patience, wait_for_workers=False)
        _report("store", port=store.port)
        return store
    port = int(sys.stdin.readline())
    store = distributed.TCPStore("127.0.0.1", port, 2, False, patience, wait_for_workers=False)
    _report("store")
    return store


def _pattern(torch: Any, rank: int, device: Any) -> Any:
    return torch.arange(_LARGE_ELEMENTS, dtype=torch.float32, device=device) % 1021 + rank


def _time_all_reduce(torch: Any, distributed: Any, tensor: Any) -> float:
    began_s = time.monotonic()
    distributed.all_reduce(tensor)
    # all_reduce on a GPU returns before it has finished.
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.monotonic() - began_s


def main(rank: int, backend: str, timeout_s: float) -> None:
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    _report("torch")
    patience = timedelta(seconds=timeout_s)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        # A barrier has no tensor from which NCCL could take the device, so it uses the current one.
        torch.cuda.set_device(device)
    store = _open_store(distributed, rank, patience)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=patience)
    _report("met")
    summed = _pattern(torch, rank, device)
    distributed.all_reduce(summed)
    expected = 2 * _pattern(torch, 0, device) + 1
    num_wrong = int((summed != expected).sum())
    _report("summed", num_wrong=num_wrong)
    tensor = torch.ones(_LARGE_ELEMENTS, device=device)
    rounds = [_time_all_reduce(torch, distributed, tensor) for _ in range(_NUM_ROUNDS)]
    # A rank that left early would close its connections while the other still measures.
    distributed.barrier()
    seconds = sorted(rounds)[len(rounds) // 2]
    _report("measured", num_bytes=4 * _LARGE_ELEMENTS, seconds=seconds)
    distributed.destroy_process_group()


if __name__ == "__main__":
    here = Path(__file__).resolve().parent  # added by Python for the script; not one of the project's folders
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
