"""Checks whether the graphs of earlier steps stay in memory.

In every 16th step, marks are put into the metadata of a few nodes of each loss's graph. A mark lives as long
as its node, and only weak references to marks are stored here. If every mark of the last 128 steps is alive,
holders.py searches once for the container or the tensor that refers to the graphs. If it finds none, the
marks must also survive a full garbage collection, which the observer waits for. Read losses.py first.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections import deque

from .frames import script_line
from .holders import find_holder
from .readings import has_active_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "graphs"
MARK_KEY = "rankdeck: graph"
_MARK_EVERY, _CHECK_EVERY = 16, 32
_NUM_FIRST = 8
_MIN_AGE = 16
"""Number of steps after which the graph of a loss is expected to be freed."""
_MIN_SPAN = 128
"""Number of steps whose graphs must all be alive: storing fewer recent losses does no harm."""
_MIN_MARKS = 6
_MAX_MARKS = 64
_MAX_LOSSES = 4
"""Number of backward calls per step whose graphs are marked."""
_DEPTH, _SAMPLED_DEPTH = 8, 400
_LEAF = "torch::autograd::AccumulateGrad"


class GraphMark:
    """Mark in the metadata of a node of a graph; it lives as long as the node."""

    __slots__ = ("__weakref__",)


class RetainedGraphs:
    """Checks whether marks in the graphs of earlier steps are still alive."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._marks: dict[tuple[int, str], deque[tuple[int, Any]]] = {}
        """(step, weak reference to the mark), by the number of the backward call in its step and the position
        of the node."""
        self._node_names: set[str] = set()
        self._step = self._number = self._end_step = 0
        self._since: tuple[int, int, int] | None = None
        """(step, bytes of the process, bytes on its GPU) at the first check."""
        self._is_suspected = self._is_done = False
        self._line = ""
        self._num_collections = -1

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the marks and the measured memory, because another optimizer leads from now on."""
        self.forget()

    def on_backward(self, tensors: Any) -> None:
        """Mark the loss's graph at the start of a backward pass that is not nested in another."""
        session = self._session
        step = session.step + 1
        if self._is_done or (step % _MARK_EVERY and not session.is_step_sampled):
            return
        # Not more often even if every step is sampled: the marks must cover enough steps.
        is_end_due = session.is_step_sampled and (
            step == self._end_step or step >= self._end_step + _MARK_EVERY
        )
        if step % _MARK_EVERY and not is_end_due:
            return
        if step != self._step:
            self._step, self._number = step, 0
        self._number += 1
        if self._number > _MAX_LOSSES or len(tensors) != 1 or has_active_modes(self._torch):
            return
        node = tensors[0].grad_fn
        # The first steps may build what later steps share.
        if node is None or step <= session.first_step + _NUM_FIRST:
            return
        if self._is_suspected:
            self._line = script_line()
        if step % _MARK_EVERY == 0:
            self._mark("root", node)
            self._mark("middle", _descend(node, _DEPTH))
        if is_end_due:
            self._end_step = step
            self._mark("end", _descend(node, _SAMPLED_DEPTH))

    def _mark(self, position: str, node: Any) -> None:
        # A node that has a mark is the end of a short graph, or belongs to a graph that many losses share.
        if MARK_KEY not in node.metadata:
            mark = node.metadata[MARK_KEY] = GraphMark()
            self._node_names.add(node.name())
            marks = self._marks.setdefault((self._number, position), deque(maxlen=_MAX_MARKS))
            marks.append((self._step, weakref.ref(mark)))

    def on_step(self, _: Any) -> None:
        """Check the marks after every 32nd step of the leading optimizer."""
        step = self._session.step
        if self._is_done or (step % _CHECK_EVERY and not self._is_suspected):
            return
        if self._since is None:
            self._since = (step, *memory_bytes(self._torch))
        found = self._find_alive(step)
        if found is None:
            self._is_suspected = False
        elif self._is_suspected and self._line:
            self._report(step, *found)
        else:
            # The next backward determines the line.
            self._is_suspected = True

    def _find_alive(self, step: int) -> tuple[str, int] | None:
        """Return (position of the marked nodes, first step) of a series of marks that are all alive; None if
        there is no such series."""
        for (_, position), marks in self._marks.items():
            first, last, count = 0, 0, 0
            for marked, reference in reversed(marks):
                if marked > step - _MIN_AGE:
                    continue
                if reference() is None:
                    break
                first, last, count = marked, last or marked, count + 1
            if count >= _MIN_MARKS and last - first >= _MIN_SPAN:
                return position, first
        return None

    def _report(self, step: int, position: str, first: int) -> None:
        torch = self._torch
        self._is_suspected = False
        num_collections = gc.get_stats()[-1]["collections"]
        if has_active_modes(torch) or self._num_collections == num_collections:
            return
        holder = None
        if self._num_collections < 0:
            holder = find_holder(torch, MARK_KEY, self._node_names, self._line)
            if holder is None:
                # A cycle of references is freed only by a full collection.
                self._num_collections = num_collections
                return
        self._is_done = True
        self._marks.clear()
        kind, name, num_elements, shape, line = holder or ("", "", 0, "", "")
        # A window of losses with a limit costs memory once, and is no growth.
        if kind == "bounded":
            return
        since, host, device = self._since or (step, 0, 0)
        now_host, now_device = memory_bytes(torch)
        steps = max(1, step - since)
        self._session.report_anomaly(
            "graphs-retained" + (kind and "-" + kind),
            names=[name, shape, position],
            line=line or self._line,
            step=step,
            graphs=step - first,
            first=first,
            elements=num_elements,
            host_bytes=max(0, now_host - host) // steps,
            device_bytes=max(0, now_device - device) // steps,
        )


def _descend(node: Any, depth: int) -> Any:
    """Return the last node before a leaf on one path through the graph, at most `depth` nodes from `node`."""
    for _ in range(depth):
        following = next(
            (inner for inner, _ in node.next_functions if inner is not None and inner.name() != _LEAF), None
        )
        if following is None:
            break
        node = following
    return node


def memory_bytes(torch: Any) -> tuple[int, int]:
    """Return (private resident bytes of this process, allocated bytes on its current GPU).

    The first number excludes file pages and shared memory, and is 0 except on Linux."""
    host = 0
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
        host = (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    if not torch.cuda.is_initialized():
        return host, 0
    stats = torch.cuda.memory_stats_as_nested_dict(torch.cuda.current_device())
    return host, int(stats["allocated_bytes"]["all"]["current"]) if stats else 0


def install(torch: Any, session: RankSession) -> None:
    """Mark the graphs of losses, and check the marks after steps."""
    graphs = RetainedGraphs(torch, session)
    session.on_some_backward.add(PART, graphs.on_backward)
    session.on_some_step.add(PART, graphs.on_step)
    session.on_leader_chosen.add(PART, graphs.on_leader_chosen)
    session.on_fork.add(PART, graphs.forget)
