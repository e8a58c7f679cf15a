"""The allocator's model, against what torch's documentation and source say of it."""

from __future__ import annotations

import random

from rankdeck.planner.allocator import CachingAllocator, reserved_bytes

MIB = 2**20


def test_small_requests_share_segments_of_two_mib() -> None:
    allocator = CachingAllocator()
    for key in range(4):
        allocator.take(key, 512 * 1024)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.take(4, 512)
    assert allocator.reserved_bytes == 4 * MIB


def test_requests_up_to_ten_mib_are_cut_from_segments_of_twenty() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 9 * MIB)
    allocator.take(1, 9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_large_requests_get_segments_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 11 * MIB + 512)
    assert allocator.reserved_bytes == 12 * MIB
    allocator.take(1, 10 * MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_a_rest_of_at_most_one_mib_goes_along_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.take(0, 11 * MIB)
    assert allocator.active_bytes == 12 * MIB


def test_freed_neighbours_join_and_are_used_again() -> None:
    allocator = CachingAllocator()
    for key in range(3):
        allocator.take(key, 6 * MIB)
    for key in (0, 2, 1):
        allocator.give_back(key)
    assert allocator.active_bytes == 0
    allocator.take(9, 20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_free_pieces_that_do_not_touch_do_not_serve_a_large_request() -> None:
    allocator = CachingAllocator()
    for key in range(2):
        allocator.take(key, 12 * MIB)
    allocator.give_back(0)
    allocator.give_back(1)
    allocator.take(2, 24 * MIB)
    assert allocator.reserved_bytes == 48 * MIB


def test_streams_do_not_share_blocks() -> None:
    log = [(1, 16 * MIB, False), (1, 0, False), (2, 16 * MIB, True)]
    assert reserved_bytes(log, side_streams=False) == 16 * MIB
    assert reserved_bytes(log, side_streams=True) == 32 * MIB


def test_cached_segments_are_given_back_before_memory_runs_out() -> None:
    log = [
        (1, 30 * MIB, False), (2, 6 * MIB, False), (3, 6 * MIB, False), (4, 9 * MIB, True),
        (1, 0, False), (2, 0, False), (4, 0, True),  # 3 still holds its segment of 20 MiB
        (5, 40 * MIB, False),
    ]  # fmt: skip
    assert reserved_bytes(log, side_streams=True) == (30 + 20 + 20 + 40) * MIB
    assert reserved_bytes(log, side_streams=True, limit_bytes=109 * MIB) == (30 + 20 + 20) * MIB
    assert reserved_bytes(log, side_streams=True, limit_bytes=60 * MIB) == (30 + 20 + 20) * MIB, "too little"


def test_whatever_comes_and_goes_is_given_back_whole() -> None:
    chance = random.Random(0)
    allocator = CachingAllocator()
    taken: dict[int, int] = {}
    for key in range(3000):
        if taken and chance.random() < 0.5:
            allocator.give_back(taken.popitem()[0])
        else:
            taken[key] = 512 * chance.choice((1, 3, 700, 3000, 15000, 50000))
            allocator.take(key, taken[key])
        assert sum(taken.values()) <= allocator.active_bytes <= allocator.reserved_bytes
    for key in taken:
        allocator.give_back(key)
    assert allocator.active_bytes == 0
    before = allocator.reserved_bytes
    allocator.take(-1, 20 * MIB)
    assert allocator.reserved_bytes == before
