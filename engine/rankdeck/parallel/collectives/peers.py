"""Point-to-point messages between the ranks of one group, with a count of the bytes sent.

The algorithms in ring.py and grad_sync.py call `start` and `exchange`. Ranks are relative to the
group: 0 to size - 1. Source: torch.distributed.batch_isend_irecv. Without that function, NCCL would start
mutually dependent sends and receives one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

Message = tuple[Tensor, int]
"""A contiguous tensor and the rank that it is sent to or received from."""


class Peers:
    """This rank's connections to the ranks of `group`, by default all ranks of the run."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group if group is not None else dist.group.WORLD
        assert self.group is not None, "there is no process group"
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        self.global_ranks: list[int] = dist.get_process_group_ranks(self.group)
        self.sent_bytes = [0] * self.size
        """Bytes sent to each rank of the group; the caller resets them."""

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def start(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> list[dist.Work]:
        """Start sending and receiving messages, and return the handles to wait for.

        Empty tensors are not sent: the sender and the receiver both know which tensors are empty.
        """
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
        """Send and receive messages concurrently; return when all are complete."""
        for work in self.start(sends, receives):
            work.wait()
