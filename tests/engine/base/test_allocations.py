"""What torch says of an allocation that failed, in the words of its versions, as figures."""

from __future__ import annotations

import pytest

from rankdeck.base.allocations import Allocation, parse_allocation
from tests.helpers.hungry import CUDA_WORDS

MIB, GIB = 2**20, 2**30


def size(value: float, unit: int) -> int:
    return int(value * unit)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            CUDA_WORDS,
            Allocation(
                asked_bytes=size(1.95, GIB), device=0, capacity_bytes=size(14.57, GIB),
                free_bytes=size(1.58, GIB), in_use_bytes=966 * MIB, allocated_bytes=size(734.07, MIB),
                unused_bytes=size(33.93, MIB), others_bytes=size(12.02, GIB),
            ),
        ),
        (  # 2.1 and 2.2, with their own spelling; nobody else is on the device
            "CUDA out of memory. Tried to allocate 27.12 GiB. GPU 3 has a total capacty of 11.99 GiB of "
            "which 0 bytes is free. Of the allocated memory 16.16 GiB is allocated by PyTorch, and "
            "144.59 MiB is reserved by PyTorch but unallocated.",
            Allocation(
                asked_bytes=size(27.12, GIB), device=3, capacity_bytes=size(11.99, GIB), free_bytes=0,
                allocated_bytes=size(16.16, GIB), unused_bytes=size(144.59, MIB),
            ),
        ),
        (  # with CUDA graphs, and a share that was set
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of "
            "which 60.44 MiB is free. 39.55 GiB allowed; Including non-PyTorch memory, this process has "
            "39.50 GiB memory in use. Of the allocated memory 38.00 GiB is allocated by PyTorch, with "
            "200.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.25 GiB is reserved by PyTorch "
            "but unallocated.",
            Allocation(
                asked_bytes=512 * MIB, device=1, capacity_bytes=size(79.10, GIB),
                free_bytes=size(60.44, MIB), in_use_bytes=size(39.5, GIB), allocated_bytes=38 * GIB,
                unused_bytes=size(1.25, GIB),
            ),
        ),
        (  # 2.0 and before
            "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB "
            "already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)",
            Allocation(
                asked_bytes=size(2.26, GIB), device=0, capacity_bytes=6 * GIB, free_bytes=size(3.03, GIB),
                allocated_bytes=size(781.59, MIB),
            ),
        ),
        (
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)",
            Allocation(asked_bytes=2**50),
        ),
        ("HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 64.00 GiB of which "
         "2.00 MiB is free.",
         Allocation(asked_bytes=20 * MIB, device=0, capacity_bytes=64 * GIB, free_bytes=2 * MIB)),
        ("", Allocation()),
        ("Tried to allocate a thing. GPU x has a total capacity of much", Allocation()),
    ],
    ids=["2.4 and later", "2.1", "graphs", "2.0", "cpu", "rocm", "nothing", "other words"],
)  # fmt: skip
def test_out_of_memory_messages_of_all_torch_versions_are_parsed(message: str, expected: Allocation) -> None:
    assert parse_allocation(message) == expected
