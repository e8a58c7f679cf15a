"""The ranks of one group, and messages between two of them, each counted as it is sent.

Explicit algorithms (ring.py, grad_sync.py) are written with `exchange` alone. Ranks are
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
        """By rank of the group; whoever reads it sets it back."""

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def start(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> list[dist.Work]:
        """Start messages and return what to wait for. Empty tensors are not sent: both sides know them."""
        for tensor, to in sends:
            self.sent_bytes[to] += tensor.numel() * tensor.element_size()
        operations = [
            dist.P2POp(kind, tensor, self.global_ranks[rank], self.group)
            for kind, messages in ((dist.isend, sends), (dist.irecv, receives))
            for tensor, rank in messages
            if tensor.numel()
        ]
        return dist.batch_isend_irecv(operations) if operations else []

    def exchange(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """Messages out and in, all under way at once; returns when all are through."""
        for work in self.start(sends, receives):
            work.wait()
