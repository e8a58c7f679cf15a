"""Counts the collectives that a script calls: number, bytes and seconds on this rank.

Functions of torch.distributed are wrapped under the names by which scripts call them. Calls from inside torch
(FSDP, ZeroRedundancyOptimizer) are not counted, and the gradient sync of DistributedDataParallel runs in C++,
where it cannot be observed. torch compares some functions by identity: `isend` and `irecv` are not wrapped,
because torch's P2POp accepts only the original functions. torch.compile also looks collectives up by
identity, so the wrappers are added to its table once the table's module is imported, and they do nothing
during tracing. While a rank is in a collective or is waiting for the process group, its heartbeat reports it.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .collective_counts import CollectiveCounts
from .frames import drop_own_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .session import RankSession

_TENSOR_ARGUMENTS = {
    "all_reduce": ("tensor", 0),
    "all_reduce_coalesced": ("tensors", 0),
    "broadcast": ("tensor", 0),
    "reduce": ("tensor", 0),
    "all_gather": ("tensor", 1),
    "all_gather_coalesced": ("input_tensor_list", 1),
    "all_gather_into_tensor": ("input_tensor", 1),
    "all_gather_single": ("input_tensor", 1),
    "gather": ("tensor", 0),
    "scatter": ("scatter_list", 1),
    "reduce_scatter": ("input_list", 1),
    "reduce_scatter_tensor": ("input", 1),
    "reduce_scatter_single": ("input", 1),
    "all_to_all": ("input_tensor_list", 1),
    "all_to_all_single": ("input", 1),
    "send": ("tensor", 0),
    "recv": ("tensor", 0),
    "batch_isend_irecv": ("p2p_op_list", 0),
    "barrier": None,
    "monitored_barrier": None,
    "all_gather_object": None,
    "gather_object": None,
    "broadcast_object_list": None,
    "scatter_object_list": None,
    "send_object_list": None,
    "recv_object_list": None,
}
"""Function -> (name, position) of the argument with this rank's data; None if there is no tensor argument."""
PART = "collectives"
_INIT = "init_process_group"
_AVERAGING = "torch.distributed.algorithms.model_averaging"
"""Module of torch that averages weights on the script's behalf; its collectives count as the script's own."""
_FLUSH_INTERVAL_S = 1.0


class CollectiveCalls:
    """Collective calls since the last `take`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all calls and create a new lock; called by the constructor and in a forked child."""
        self._lock = threading.Lock()
        self._counts: dict[str, list[Any]] = {}

    def add(self, name: str, num_bytes: int | None, seconds: float) -> None:
        with self._lock:
            row = self._counts.get(name)
            if row is None:
                row = self._counts[name] = [0, None, 0.0]
            row[0] += 1
            row[2] += seconds
            if num_bytes is not None:
                row[1] = (row[1] or 0) + num_bytes

    def take(self) -> dict[str, dict[str, float]] | None:
        """Return the calls as the fields of an event, with bytes for calls that pass tensors, and reset the
        counts; None if there were no calls."""
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return None
        return {
            "calls": {name: row[0] for name, row in counts.items()},
            "num_bytes": {name: row[1] for name, row in counts.items() if row[1] is not None},
            "seconds": {name: round(row[2], 7) for name, row in counts.items()},
        }


def install(torch: ModuleType, session: RankSession) -> None:
    """Wrap the collectives that exist in this version of `torch.distributed`."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return
    calls = CollectiveCalls()
    counts = CollectiveCounts(distributed, session)
    for name, passed in _TENSOR_ARGUMENTS.items():
        original = getattr(distributed, name, None)
        if original is not None:
            setattr(distributed, name, _wrap_collective(original, name, passed, calls, counts, session))
    if (join := getattr(distributed, _INIT, None)) is not None:
        setattr(distributed, _INIT, _wrap_init_process_group(join, session))
    reported_at = [0.0]

    def flush() -> None:
        now = time.monotonic()
        # The observer's thread collects calls for a second; any other thread calls this at an exit or a fork.
        if now - reported_at[0] >= _FLUSH_INTERVAL_S or threading.current_thread().name != "rankdeck":
            fields = calls.take()
            if fields is not None:
                reported_at[0] = now
                session.emit("collectives", step=session.step, **fields, **counts.take())

    session.on_tick.add(PART, flush)
    session.on_fork.add(PART, calls.forget)
    session.on_leader_chosen.add(PART, counts.on_leader_chosen)
    session.on_fork.add(PART, counts.forget)


def _wrap_init_process_group(original: Callable[..., Any], session: RankSession) -> Callable[..., Any]:
    """Wrap `original`, init_process_group, which waits until all other ranks have joined."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        session.beat("joining the other ranks")
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            session.beat("script")

    return call


def let_compile(table: ModuleType, session: RankSession) -> None:
    """Make torch.compile treat each wrapper like the function that it wraps; `table` is the module that
    contains torch.compile's lookup table."""
    remaps = getattr(table, "traceable_collective_remaps", {})
    distributed = sys.modules.get("torch.distributed")
    for name in _TENSOR_ARGUMENTS:
        wrapper = getattr(distributed, name, None)
        inside = getattr(wrapper, "_rankdeck_inside", None)
        if inside is not None and inside in remaps:
            remaps[wrapper] = remaps[inside]


def _wrap_collective(
    original: Callable[..., Any],
    name: str,
    passed: tuple[str, int] | None,
    calls: CollectiveCalls,
    counts: CollectiveCounts,
    session: RankSession,
) -> Callable[..., Any]:
    busy, clock, frame = "collective " + name, time.perf_counter, sys._getframe
    beat, off = session.beat, session.disabled_parts
    is_tracing = sys.modules["torch.compiler"].is_dynamo_compiling

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        # torch.compile traces the original function; the wrapper's own work must stay out of the graph.
        if is_tracing():
            return original(*args, **kwargs)
        calling_frame = frame(1)
        caller = calling_frame.f_globals.get("__name__", "")
        if PART in off or (caller.partition(".")[0] == "torch" and not caller.startswith(_AVERAGING)):
            return original(*args, **kwargs)
        beat(busy)
        start_s = clock()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            seconds = clock() - start_s
            try:
                beat("script")
                num_bytes = passed and _passed_bytes(passed, args, kwargs)
                calls.add(name, num_bytes, seconds)
                counts.add(name, calling_frame, (*args, *kwargs.values()))
                session.synced_bytes += num_bytes or 0
                session.on_collective.call(name)
            except Exception as error:
                session.disable_part(PART, error)

    # pickle then finds the wrapper here; the module that defines the function still has the original.
    call.__module__ = "torch.distributed"
    call._rankdeck_inside = original  # type: ignore[attr-defined]
    return call


def _passed_bytes(passed: tuple[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    name, position = passed
    value = kwargs.get(name) if name in kwargs else args[position] if position < len(args) else None
    return _num_bytes(value)


def _num_bytes(value: Any) -> int:
    """Return the size in bytes of a tensor, a list of tensors, or a list of point-to-point operations."""
    if value is None:
        return 0
    if isinstance(value, (list, tuple)):
        return sum(map(_num_bytes, value))
    # A P2POp holds its tensor in `tensor`.
    value = getattr(value, "tensor", value) if not hasattr(value, "element_size") else value
    return int(value.numel() * value.element_size())
