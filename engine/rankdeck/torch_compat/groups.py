"""How long the collectives of process groups wait, also of those that others have made without saying it.

Source: torch/distributed/distributed_c10d.py.
"""

from __future__ import annotations

import datetime

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from rankdeck.torch_compat.places import Private

_WITHOUT = "a rank that is suspended or looked at with a debugger may end its run after half an hour"
PLACES = (
    Private("torch.distributed.distributed_c10d:_set_pg_timeout", _WITHOUT, takes=("timeout", "group")),
    Private("torch.distributed.distributed_c10d:_world.pg_map", _WITHOUT),
)


def set_timeouts(seconds: float) -> None:
    """Of every group that this process is in by now."""
    for group in list(c10d._world.pg_map) if dist.is_initialized() else ():
        c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)
