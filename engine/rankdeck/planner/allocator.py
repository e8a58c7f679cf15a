"""Predict what torch's CUDA allocator would reserve, by replaying a log of storages in an allocator model.

    request of <= 1 MiB   from the small pool, with segments of 2 MiB
               < 10 MiB   from the large pool, with segments of 20 MiB
              >= 10 MiB   its own segment, rounded up to a multiple of 2 MiB
    every request is first rounded up to a multiple of 512 bytes
    the smallest free block that is large enough is used, and split if the remainder is large enough
    a freed block merges with its free neighbours
    if a new segment does not fit on the device, segments without an allocated block are released first

A request never uses a free block of another stream: FSDP's gathered weights have their own streams. Read
plan_ledger.py first.

Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h, with torch's default settings.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from rankdeck.planner.plan_ledger import StorageChange

_MIB = 2**20
SMALL_REQUEST_BYTES = 1 * _MIB
SMALL_SEGMENT_BYTES = 2 * _MIB
LARGE_SEGMENT_BYTES = 20 * _MIB
MIN_LARGE_ALLOC_BYTES = 10 * _MIB
ROUND_LARGE_BYTES = 2 * _MIB
MIN_SMALL_REMAINDER_BYTES = 512
MIN_LARGE_REMAINDER_BYTES = 1 * _MIB


@dataclass(eq=False, slots=True)
class _Block:
    """A block of a segment, linked to its neighbours in the segment."""

    num_bytes: int
    pool: tuple[bool, bool]
    index: int
    is_free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.num_bytes, self.index

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None


class CachingAllocator:
    """Model of torch's caching allocator, which can reserve up to `limit_bytes` of a device (None: no limit).

    Even a request that does not fit is granted; `peak_reserved_bytes` then shows how much memory the device
    would need.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.active_bytes = 0
        self.peak_active_bytes = 0
        self._free: dict[tuple[bool, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, _Block] = {}
        self._allocated: dict[int, _Block] = {}
        self._num_blocks = 0

    def allocate(self, key: int, num_bytes: int, *, side_stream: bool = False) -> None:
        """Allocate `num_bytes`, a multiple of 512, under a key that is not in use."""
        is_small = num_bytes <= SMALL_REQUEST_BYTES
        block = self._find_block((is_small, side_stream), num_bytes)
        min_remainder = MIN_SMALL_REMAINDER_BYTES if is_small else MIN_LARGE_REMAINDER_BYTES
        rest = block.num_bytes - num_bytes
        if rest >= min_remainder if is_small else rest > min_remainder:
            self._split(block, num_bytes)
        block.is_free = False
        self._allocated[key] = block
        self.active_bytes += block.num_bytes
        self.peak_active_bytes = max(self.peak_active_bytes, self.active_bytes)

    def free(self, key: int) -> None:
        """Free the block allocated under the key."""
        block = self._allocated.pop(key)
        self.active_bytes -= block.num_bytes
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                self._remove_free(neighbour)
                block = self._merge(
                    *((neighbour, block) if neighbour is block.before else (block, neighbour))
                )
        block.is_free = True
        self._add_free(block)

    def _find_block(self, pool: tuple[bool, bool], num_bytes: int) -> _Block:
        free = self._free.setdefault(pool, [])
        # Best fit; -1 sorts before every block index of the same size.
        index = bisect.bisect_left(free, (num_bytes, -1))
        if index < len(free):
            return self._blocks.pop(free.pop(index)[1])
        segment_bytes = _segment_bytes(num_bytes)
        if self._limit_bytes is not None and self.reserved_bytes + segment_bytes > self._limit_bytes:
            # As torch does when cudaMalloc fails. Without this, ResNet-50 in fp32 did not fit 4 GiB from
            # batch 38 on; with it, from batch 40 on.
            self._release_cached_segments()
        self.reserved_bytes += segment_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return self._new_block(segment_bytes, pool)

    def _release_cached_segments(self) -> None:
        """Release all segments that consist of one free block, in every pool, as torch does when cudaMalloc
        fails."""
        for free in self._free.values():
            whole_keys = [key for key in free if self._blocks[key[1]].is_whole_segment]
            for num_bytes, index in whole_keys:
                del self._blocks[index]
                self.reserved_bytes -= num_bytes
            free[:] = [key for key in free if key[1] in self._blocks]

    def _new_block(self, num_bytes: int, pool: tuple[bool, bool]) -> _Block:
        self._num_blocks += 1
        return _Block(num_bytes, pool, self._num_blocks)

    def _split(self, block: _Block, num_bytes: int) -> None:
        rest = self._new_block(block.num_bytes - num_bytes, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.num_bytes = rest, num_bytes
        self._add_free(rest)

    def _merge(self, first: _Block, second: _Block) -> _Block:
        first.num_bytes += second.num_bytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _add_free(self, block: _Block) -> None:
        self._blocks[block.index] = block
        bisect.insort(self._free.setdefault(block.pool, []), block.key)

    def _remove_free(self, block: _Block) -> None:
        free = self._free[block.pool]
        del free[bisect.bisect_left(free, block.key)]
        del self._blocks[block.index]


def _segment_bytes(num_bytes: int) -> int:
    if num_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if num_bytes < MIN_LARGE_ALLOC_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-num_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def peak_reserved_bytes(
    log: Iterable[StorageChange],
    *,
    preallocated_bytes: Iterable[int] = (),
    side_streams: bool,
    limit_bytes: int | None = None,
) -> int:
    """Return the peak of reserved bytes of an allocator that replays the log.

    Blocks of the sizes in `preallocated_bytes` are allocated first and never freed. If `side_streams` is
    true, communication buffers are allocated on their own streams. `limit_bytes` is the memory that the
    allocator can reserve; the result exceeds it only if the log cannot fit.
    """
    allocator = CachingAllocator(limit_bytes)
    for index, num_bytes in enumerate(preallocated_bytes):
        allocator.allocate(-1 - index, num_bytes)
    for key, num_bytes, is_communication in log:
        if num_bytes:
            allocator.allocate(key, num_bytes, side_stream=side_streams and is_communication)
        else:
            allocator.free(key)
    # Not monotonic: a segment with one small tensor is not released, so batch 15 may need 4 MiB more than 16.
    return allocator.peak_reserved_bytes
