"""The check as a run takes it: rank 0 writes the result, and what differs from one device for no reason in
the strategy's nature ends the run. Read check.py and verdict.py before, ../worker.py next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.training.verify.check import EqualityCheck
from rankdeck.training.verify.verdict import event_of, notes_of, refusal
from rankdeck.training.workload import Workload


def verify(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    num_devices: int,
    known: dict[str, Any],
    beat: Callable[[str], object],
    write: Callable[[events.Event], object],
) -> list[Problem] | None:
    """What differs from one device by nature; None where nothing could be compared. All ranks of the run call
    this together, and rank 0 writes the result. `known` gets what was found out about the model,
    for assembly.py.

    Raises: ModelError where the strategy computes something else than one device.
    """
    config = workload.config
    check = EqualityCheck(
        workload,
        rank=rank,
        world_size=world_size,
        devices=devices,
        num_devices=num_devices,
        known=known,
        full=config.train.verify == "full",
        beat=beat,
    )
    result = check.run()
    if rank == 0:
        write(event_of(result))
    if result.finding is not None:
        raise refusal(result.finding, config, check.cut)
    return None if result.unchecked is not None else notes_of(result, config, check.cut)
