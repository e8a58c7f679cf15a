"""Ranks of a RankSet as those of several hosts: each host has a folder of its own. Called on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from rankdeck.checkpoint import spreading
from rankdeck.checkpoint.spreading import hosts_of


def newest_whole(folder: str, hosts: list[int], chunk_bytes: int = 1000) -> Any:
    """[step, complaints] or the error's words, of a rank that leads its host; `hosts` are these by rank."""
    rank = dist.get_rank()
    local = hosts[:rank].count(hosts[rank])
    led = hosts_of(rank, len(hosts), local)
    if led is None:
        return None
    own = Path(folder) / f"host-{hosts[rank]}"
    with mock.patch.object(spreading, "_CHUNK_BYTES", chunk_bytes):
        try:
            found, complaints = led.newest_whole(own / "checkpoints")
        except OSError as error:
            return str(error)
    return [None if found is None else found.step, complaints]
