"""What torch's CUDA allocator would reserve: a log of storages replayed through a model of it.

    request (rounded to 512)   <= 1 MiB: from the small pool, segments of 2 MiB
                               <  10 MiB: from the large pool, segments of 20 MiB
                               else: a segment of its own, rounded to 2 MiB
    the smallest free block that is large enough is taken and, where much is left, split
    a block that becomes free joins its free neighbours
    where a new segment does not fit the device, segments without a taken block are given back first

Blocks of another stream are never taken: what FSDP gathers lives on streams of its own. Read
plan_ledger.py before.

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
    """A piece of a segment, with its neighbours in it."""

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
    """Serves requests as torch's does, on a device with `limit_bytes` for it; None is without end.

    What does not fit even so is served as well: `peak_reserved_bytes` is then what it would take.
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
        """Serve a request of `num_bytes`, a multiple of 512, under a key that is not in use."""
        is_small = num_bytes <= SMALL_REQUEST_BYTES
        block = self._find_block((is_small, side_stream), num_bytes)
        least = MIN_SMALL_REMAINDER_BYTES if is_small else MIN_LARGE_REMAINDER_BYTES
        rest = block.num_bytes - num_bytes
        if rest >= least if is_small else rest > least:
            self._split(block, num_bytes)
        block.is_free = False
        self._allocated[key] = block
        self.active_bytes += block.num_bytes
        self.peak_active_bytes = max(self.peak_active_bytes, self.active_bytes)

    def free(self, key: int) -> None:
        """Free what was taken under the key."""
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
        index = bisect.bisect_left(free, (num_bytes, -1))
        if index < len(free):
            return self._blocks.pop(free.pop(index)[1])
        segment_bytes = _segment_bytes(num_bytes)
        if self._limit_bytes is not None and self.reserved_bytes + segment_bytes > self._limit_bytes:
            self._release_cached_segments()
        self.reserved_bytes += segment_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return self._new_block(segment_bytes, pool)

    def _release_cached_segments(self) -> None:
        """Every segment that is one free block, of whatever pool, as cudaMalloc's failure makes torch do."""
        for free in self._free.values():
            whole = [key for key in free if self._blocks[key[1]].is_whole_segment]
            for num_bytes, place in whole:
                del self._blocks[place]
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
    """The most that the allocator reserves in a log, beside `preallocated_bytes` that are taken for good.

    `side_streams`: communication is allocated on streams of its own. `limit_bytes`: what the device has for
    the allocator; more than that is the answer only where it cannot do with less.
    """
    allocator = CachingAllocator(limit_bytes)
    for index, num_bytes in enumerate(preallocated_bytes):
        allocator.allocate(-1 - index, num_bytes)
    for key, num_bytes, is_communication in log:
        if num_bytes:
            allocator.allocate(key, num_bytes, side_stream=side_streams and is_communication)
        else:
            allocator.free(key)
    return allocator.peak_reserved_bytes
