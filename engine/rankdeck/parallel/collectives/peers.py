"""The ranks of one group, and messages between two of them, each counted as it is sent.

Explicit algorithms (ring.py, reduce_broadcast.py, all_to_all.py) are written with `exchange` alone. Ranks are
those of the group: 0 to size - 1. Source: torch.distributed.batch_isend_irecv, which NCCL needs so that
sends and receives that wait for each other start together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

Message = tuple[Tensor, int]
"""A contiguous tensor and the rank that it goes to, or comes from."""


class Peers:
    """This rank among the ranks of `group`, by default all of the run."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group if group is not None else dist.group.WORLD
        assert self.group is not None, "the process group is made before the strategy"
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        self.global_ranks: list[int] = dist.get_process_group_ranks(self.group)
        self.sent_bytes = [0] * self.size
        """By rank of the group, since `reset`."""

    def reset(self) -> None:
        self.sent_bytes = [0] * self.size

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def start(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> list[dist.Work]:
        """Start messages and return what to wait for. Empty tensors are not sent: both sides know them."""
        operations = []
        for tensor, to in sends:
            if tensor.numel():
                operations.append(dist.P2POp(dist.isend, tensor, self.global_ranks[to], self.group))
                self.sent_bytes[to] += tensor.numel() * tensor.element_size()
        for tensor, source in receives:
            if tensor.numel():
                operations.append(dist.P2POp(dist.irecv, tensor, self.global_ranks[source], self.group))
        return dist.batch_isend_irecv(operations) if operations else []

    def exchange(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """Messages out and in, all under way at once; returns when all are through."""
        for work in self.start(sends, receives):
            work.wait()
