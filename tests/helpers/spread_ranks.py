"""Ranks of a RankSet as those of several hosts: each host has a folder of its own. Called on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from rankdeck.checkpoint import replication
from rankdeck.checkpoint.replication import HostLeaders, make_host_leaders
from rankdeck.checkpoint_files import committed_files


def _led(hosts: list[int]) -> HostLeaders | None:
    rank = dist.get_rank()
    return make_host_leaders(rank, len(hosts), hosts[:rank].count(hosts[rank]))


def _host_checkpoints(folder: str, hosts: list[int]) -> Path:
    return Path(folder) / f"host-{hosts[dist.get_rank()]}" / "checkpoints"


def newest_intact(folder: str, hosts: list[int], chunk_bytes: int = 1000) -> Any:
    """[step, complaints] or the error's words, of a rank that leads its host; `hosts` are these by rank."""
    led = _led(hosts)
    if led is None:
        return None
    with mock.patch.object(replication, "_CHUNK_BYTES", chunk_bytes):
        try:
            checkpoint, complaints = led.newest_intact(_host_checkpoints(folder, hosts))
        except OSError as error:
            return str(error)
    return [None if checkpoint is None else checkpoint.step, complaints]


def replicate(folder: str, hosts: list[int], step: int) -> Any:
    """As after a save: whoever has a file has it as it was written. The error's words, "" where there is
    none."""
    led, path = _led(hosts), _host_checkpoints(folder, hosts) / str(step)
    if led is None:
        return None
    listed = led.gather(committed_files(path))[0]
    try:
        led.distribute(path, listed, lambda name: (path / name).exists())
    except OSError as error:
        return str(error)
    return ""
