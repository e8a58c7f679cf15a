"""Where an attempt goes on from: the newest checkpoint that is whole, the same one for all ranks."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.checkpoint.spreading import LeadingRanks
from rankdeck.checkpoint_files import Checkpoint, newest_whole
from rankdeck.rundir import EventWriter


def newest_checkpoint(
    folder: Path, rank: int, world_size: int, hosts: LeadingRanks | None, writer: EventWriter
) -> Checkpoint | None:
    """What rank 0 finds, or the leading ranks of several hosts find together. Damaged ones that were passed
    over are reported.
    """
    newest: Checkpoint | None = None
    complaints: list[str] = []
    if hosts is not None:
        newest, complaints = hosts.newest_whole(folder)
    elif rank == 0:
        newest, complaints = newest_whole(folder)
    for complaint in complaints if rank == 0 else ():
        advice = (
            phrase("An older checkpoint is used. Look at the disk.")
            if newest
            else phrase("The run begins anew.")
        )
        problem = Problem("checkpoint-damaged", complaint, advice=advice, severity="warning")
        writer.write(events.ProblemRaised(problem=problem), sync=True)
    if world_size == 1:
        return newest
    shared = [None if newest is None else newest.step]
    dist.broadcast_object_list(shared, src=0)
    return None if shared[0] is None else Checkpoint(folder / str(shared[0]))
