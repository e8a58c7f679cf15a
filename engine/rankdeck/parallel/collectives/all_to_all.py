"""all-to-all: every rank sends all of its gradients to every other rank, and each adds up for itself.

Sent: (n-1) times the bytes by every rank, n(n-1) messages at once. One step only, so it wins where messages
are small and latency is all; it needs room for the gradients of all ranks. Every rank adds in the order of
the ranks, so that all end with the same bits. Read peers.py before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdeck.parallel.collectives.peers import Peers


def all_to_all_sum(flat: Tensor, peers: Peers) -> None:
    """Make `flat` (N,), contiguous, the sum over all ranks of the group, in place."""
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    arriving = {rank: torch.empty_like(flat) for rank in others}
    peers.exchange(
        sends=[(flat, rank) for rank in others], receives=[(arriving[rank], rank) for rank in others]
    )
    in_order = [flat if rank == peers.rank else arriving[rank] for rank in range(peers.size)]
    total = in_order[0].clone()
    for part in in_order[1:]:
        total.add_(part)
    flat.copy_(total)
