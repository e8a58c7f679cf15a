"""The allocator's model, against what torch's documentation and source say of it."""

from __future__ import annotations

import random

from rankdeck.planner.allocator import CachingAllocator, peak_reserved_bytes

MIB = 2**20


def test_small_requests_share_segments_of_two_mib() -> None:
    allocator = CachingAllocator()
    for key in range(4):
        allocator.allocate(key, 512 * 1024)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(4, 512)
    assert allocator.reserved_bytes == 4 * MIB


def test_medium_requests_share_segments_of_twenty_mib() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 9 * MIB)
    allocator.allocate(1, 9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_large_requests_get_their_own_segments() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 11 * MIB + 512)
    assert allocator.reserved_bytes == 12 * MIB
    allocator.allocate(1, 10 * MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_a_remainder_of_one_mib_is_not_split_off() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 11 * MIB)
    assert allocator.active_bytes == 12 * MIB


def test_freed_neighbours_are_merged() -> None:
    allocator = CachingAllocator()
    for key in range(3):
        allocator.allocate(key, 6 * MIB)
    for key in (0, 2, 1):
        allocator.free(key)
    assert allocator.active_bytes == 0
    allocator.allocate(9, 20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_separate_free_blocks_do_not_serve_a_large_request() -> None:
    allocator = CachingAllocator()
    for key in range(2):
        allocator.allocate(key, 12 * MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.allocate(2, 24 * MIB)
    assert allocator.reserved_bytes == 48 * MIB


def test_streams_do_not_share_blocks() -> None:
    log = [(1, 16 * MIB, False), (1, 0, False), (2, 16 * MIB, True)]
    assert peak_reserved_bytes(log, side_streams=False) == 16 * MIB
    assert peak_reserved_bytes(log, side_streams=True) == 32 * MIB


def test_cached_segments_are_released_at_the_limit() -> None:
    log = [
        (1, 30 * MIB, False), (2, 6 * MIB, False), (3, 6 * MIB, False), (4, 9 * MIB, True),
        (1, 0, False), (2, 0, False), (4, 0, True),  # 3 still holds its segment of 20 MiB
        (5, 40 * MIB, False),
    ]  # fmt: skip
    assert peak_reserved_bytes(log, side_streams=True) == (30 + 20 + 20 + 40) * MIB
    assert peak_reserved_bytes(log, side_streams=True, limit_bytes=109 * MIB) == (30 + 20 + 20) * MIB
    assert peak_reserved_bytes(log, side_streams=True, limit_bytes=60 * MIB) == (30 + 20 + 20) * MIB, (
        "too little"
    )


def test_random_requests_are_freed_completely() -> None:
    chance = random.Random(0)
    allocator = CachingAllocator()
    taken: dict[int, int] = {}
    for key in range(3000):
        if taken and chance.random() < 0.5:
            allocator.free(taken.popitem()[0])
        else:
            taken[key] = 512 * chance.choice((1, 3, 700, 3000, 15000, 50000))
            allocator.allocate(key, taken[key])
        assert sum(taken.values()) <= allocator.active_bytes <= allocator.reserved_bytes
    for key in taken:
        allocator.free(key)
    assert allocator.active_bytes == 0
    before = allocator.reserved_bytes
    allocator.allocate(-1, 20 * MIB)
    assert allocator.reserved_bytes == before
