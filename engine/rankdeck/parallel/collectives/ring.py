"""Ring all-reduce: every rank sends only to the next rank, and a sum needs two laps.

    flat = [chunk 0 | chunk 1 | ... | chunk n-1]
    lap 1, reduce-scatter   n-1 times: send a chunk on, add the received chunk to its local counterpart.
                            Rank r then holds the complete sum of chunk r+1.
    lap 2, all-gather       n-1 times: send a finished chunk on, keep the received chunk.

Every rank sends 2(n-1)/n times the tensor's bytes, which is less than twice its size for any number of ranks.
A chunk is summed along one path and then copied, so all ranks get bitwise identical results. Each chunk is
cut into pieces: while one piece is added, the next is in flight.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009). Read peers.py first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdeck.parallel.collectives.peers import Peers

PIECE_BYTES = 2**19


def ring_sum(flat: Tensor, peers: Peers) -> None:
    """Sum the contiguous tensor `flat` (N,) over all ranks of the group, in place."""
    if peers.size == 1:
        return
    chunks = [
        torch.tensor_split(chunk, num_pieces(flat, peers.size)) for chunk in flat.tensor_split(peers.size)
    ]
    _reduce_scatter(chunks, peers)
    _all_gather(chunks, peers)


def num_pieces(flat: Tensor, num_chunks: int) -> int:
    """Return the number of pieces into which each chunk is cut for sending."""
    chunk_bytes = flat.numel() * flat.element_size() // num_chunks
    return max(1, chunk_bytes // PIECE_BYTES)


def _reduce_scatter(chunks: list[tuple[Tensor, ...]], peers: Peers) -> None:
    rank, size = peers.rank, peers.size
    arriving = [torch.empty_like(piece) for piece in chunks[0]]
    for lap in range(size - 1):
        out, into = chunks[(rank - lap) % size], chunks[(rank - lap - 1) % size]
        landings = [room[: piece.numel()] for room, piece in zip(arriving, into, strict=True)]
        waiting = [
            peers.start([(piece, (rank + 1) % size)], [(landing, (rank - 1) % size)])
            for piece, landing in zip(out, landings, strict=True)
        ]
        for works, piece, landing in zip(waiting, into, landings, strict=True):
            for work in works:
                work.wait()
            piece.add_(landing)


def _all_gather(chunks: list[tuple[Tensor, ...]], peers: Peers) -> None:
    rank, size = peers.rank, peers.size
    for lap in range(size - 1):
        out, into = chunks[(rank + 1 - lap) % size], chunks[(rank - lap) % size]
        waiting = [
            work
            for piece, landing in zip(out, into, strict=True)
            for work in peers.start([(piece, (rank + 1) % size)], [(landing, (rank - 1) % size)])
        ]
        for work in waiting:
            work.wait()
