"""Finds containers of tensors that grow with every step and use more and more memory.

The memory of the process (without files) and of its GPUs is read after every eighth step, later less often
if steps are very short. The minimum of each block of three readings must rise four times in a row by similar
amounts. Warm-up, page caches and buffers cause such a rise too, so a rise alone is not reported: the
elements of all containers are then counted twice, one block apart, and a container is reported if it has
grown with the steps and explains the rise. A container with a maximum length is left out, and so is a
container of an object that can be reset, such as a metric, or of a dataset that has more samples than the
container. Read retained_graphs.py first.
"""

from __future__ import annotations

import re
import sys
import time

from .frames import script_line
from .holders import find_containers, name_of
from .readings import has_active_modes
from .retained_graphs import memory_bytes
from .source_lines import find_growing_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "memory growth"
_READ_EVERY = 8
_BLOCK = 3
"""Number of readings in a block."""
_NUM_BLOCKS = 5
_NUM_DENSE = 256
"""Number of steps after which the memory is read less often if reading it takes too long."""
_MAX_TIME_SHARE = 1 / 500
"""Maximum share of the run time that the readings may take."""
_MIN_BYTES_PER_STEP = 1 << 16
_MAX_RATIO = 4.0
"""Maximum ratio between the largest and the smallest rise: elements added in every step cause even rises."""
_MIN_SHARE = 0.5
"""Minimum number of new elements per step, and minimum share of the rise that they explain."""
_RETRY_FACTOR = 4
_LIMIT_NAMES = re.compile(
    "capacity|max_?len|max_?size|limit|(buffer|memory|replay)_size|window", re.IGNORECASE
)
_LIMITED_NAMES = re.compile("replay|buffer|memory|queue|cache|pool|reservoir", re.IGNORECASE)


class MemoryGrowth:
    """Minima of the memory in the last blocks of steps and, once the minima have risen, the lengths of all
    containers."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._blocks: list[tuple[int, int]] = []
        """(host bytes, GPU bytes): minima of the last blocks."""
        self._lowest: tuple[int, int] | None = None
        self._containers: dict[int, int] | None = None
        """Lengths of all containers of tensors, by id, in the first of two searches; None if no second search
        is due."""
        self._slope = 0.0
        self._is_on_gpu = False
        self._next_search = 0
        self._read_every = _READ_EVERY
        self._block_steps = _BLOCK * _READ_EVERY
        self._block_began_s = 0.0

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the readings, because another optimizer leads from now on."""
        self.forget()

    def on_step(self, _: Any) -> None:
        """Read the memory after every eighth step of the leading optimizer."""
        # Not in the steps whose graphs are marked: no step should pay for both.
        step = self._session.step + _READ_EVERY // 2
        if step % self._read_every:
            return
        start_s = time.perf_counter()
        host, device = memory_bytes(self._torch)
        end_s = time.perf_counter()
        lowest = self._lowest
        self._lowest = (host, device) if lowest is None else (min(host, lowest[0]), min(device, lowest[1]))
        if step % self._block_steps:
            return
        # The first block has the warm-up.
        if step - self._session.first_step > self._block_steps:
            self._blocks.append(self._lowest)
            del self._blocks[:-_NUM_BLOCKS]
        self._lowest = None
        share = _BLOCK * (end_s - start_s) / (end_s - self._block_began_s)
        self._block_began_s = end_s
        if step > _NUM_DENSE and share > _MAX_TIME_SHARE and self._containers is None:
            self._read_every *= 2
            self._block_steps *= 2
            self._blocks = []
            return
        if has_active_modes(self._torch) or step < self._next_search:
            return
        if self._containers is not None:
            self._compare()
        elif self._has_risen():
            self._containers = {key: length for key, (_, length, _) in self._find().items()}

    def _has_risen(self) -> bool:
        for on_gpu in (True, False):
            series = [block[1 if on_gpu else 0] for block in self._blocks]
            rises = [series[number + 1] - series[number] for number in range(len(series) - 1)]
            if len(series) < _NUM_BLOCKS or min(rises) < _MIN_BYTES_PER_STEP * self._block_steps / _MAX_RATIO:
                continue
            # The mean over all blocks, because a single rise depends on when the allocator gets pages.
            slope = (series[-1] - series[0]) / (self._block_steps * len(rises))
            if slope >= _MIN_BYTES_PER_STEP and max(rises) <= _MAX_RATIO * min(rises):
                self._slope, self._is_on_gpu = slope, on_gpu
                return True
        return False

    def _find(self) -> dict[int, tuple[Any, int, int]]:
        torch, arrays = self._torch, sys.modules.get("numpy")
        array_type = getattr(arrays, "ndarray", torch.Tensor)

        def num_bytes(thing: Any) -> int:
            if type(thing) is torch.Tensor:
                on_gpu = thing.device.type != "cpu"
                return thing.numel() * thing.element_size() if on_gpu is self._is_on_gpu else 0
            return int(thing.nbytes) if type(thing) is array_type and not self._is_on_gpu else 0

        return find_containers(num_bytes)

    def _compare(self) -> None:
        """Report the container that has grown most since the last block."""
        lengths, self._containers = self._containers or {}, None
        session = self._session
        self._next_search = _RETRY_FACTOR * session.step
        grown, least = [], _MIN_SHARE * self._block_steps
        for key, (container, length, element_bytes) in self._find().items():
            new = length - lengths.get(key, length)
            if new >= least and new * element_bytes >= least * self._slope:
                grown.append((new * element_bytes, container, length, new))
        # A dataset that was loaded before has the same length in both searches.
        if not grown:
            return
        size, container, length, new = max(grown, key=lambda item: item[0])
        grown.clear()
        owners: list[Any] = []
        name = name_of(container, owners=owners)
        if _LIMITED_NAMES.search(name) or any(_has_limit(owner, length) for owner in owners):
            return
        line, found_name = find_growing_line(script_line(), name, "container")
        session.report_anomaly(
            "growing-memory",
            names=[name or found_name, type(container).__name__],
            line=line,
            step=session.step,
            slope=int(self._slope),
            gpu=float(self._is_on_gpu),
            elements=length,
            new=new / self._block_steps,
            element_bytes=size // new,
        )


def _has_limit(owner: Any, length: int) -> bool:
    """Check whether the owner of a container seems to limit the container's length, or can reset it."""
    if not isinstance(owner, dict):
        if callable(getattr(type(owner), "reset", None)):
            return True
        if _has_samples_to_come(owner, length):
            return True
        owner = owner.__dict__
    return any(
        type(value) is int
        and value >= length
        and isinstance(key, str)
        and _LIMIT_NAMES.search(key) is not None
        for key, value in list(owner.items())
    )


def _has_samples_to_come(owner: Any, length: int) -> bool:
    """Check whether `owner` seems to be a dataset with more samples than the `length` stored ones."""
    kind = type(owner)
    if not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
        return False
    # A list of results that counts its own elements has no more of them.
    return len(owner) > length


def install(torch: Any, session: RankSession) -> None:
    """Read the memory after steps of the leading optimizer."""
    growth = MemoryGrowth(torch, session)
    session.on_some_step.add(PART, growth.on_step)
    session.on_leader_chosen.add(PART, growth.on_leader_chosen)
    session.on_fork.add(PART, growth.forget)
