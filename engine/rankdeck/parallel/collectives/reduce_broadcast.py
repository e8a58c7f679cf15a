"""reduce-broadcast: a star. Every rank sends its gradients to rank 0, which adds up and sends the sum back.

Sent: (n-1) times the bytes by rank 0, once by every other rank; rank 0's link is busy for 2(n-1) messages
while the others wait. This is what a parameter server does, and why it does not grow. Rank 0 adds in the
order of the ranks. Read peers.py before, ring.py for the cure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdeck.parallel.collectives.peers import Peers

LEAD = 0


def star_sum(flat: Tensor, peers: Peers) -> None:
    """Make `flat` (N,), contiguous, the sum over all ranks of the group, in place."""
    if peers.rank != LEAD:
        peers.exchange(sends=[(flat, LEAD)])
        peers.exchange(receives=[(flat, LEAD)])
        return
    others = range(1, peers.size)
    arriving = torch.empty_like(flat)
    for source in others:
        peers.exchange(receives=[(arriving, source)])
        flat.add_(arriving)
    peers.exchange(sends=[(flat, to) for to in others])
