"""`--observe=full` and `check`: tracks a few steps operation by operation with rankdeck's memory ledger.

The ledger is a dispatch mode, entered on an empty mode stack between two steps of the leading optimizer. It
tracks two consecutive steps and reports the second. During the first step, it records which tensors outlive a
step, such as DistributedDataParallel's buckets, which it first observes when they are sent. Exiting a mode
pops whichever mode is on top of the stack: if the script does not exit a mode of its own, the ledger stays
below that mode, observes nothing more and is abandoned.

The ledger is loaded from rankdeck's files under a private name and needs only torch. On GPUs, this part is
off, because torch's allocator measures the memory there. Read memory/ledger.py in rankdeck next.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from .frames import drop_own_frame
from .ledger_loader import load_ledger, watch_owners
from .models import uses_compiler
from .wrappers import SHARDED_WRAPPERS

if TYPE_CHECKING:
    from types import ModuleType

    from .session import RankSession

PART = "full"
TRACKED_SOURCE = "measured in full observation"
"""Name of this measurement, the same text as `FOLLOWED` in events.py; a test compares the two."""
TRACK_AFTER_STEPS = (3, 30, 300, 3000)
"""Numbers of steps after which two steps are tracked, as soon as tracking is possible."""
_MIN_PYTHON, _MIN_TORCH = (3, 11), (2, 11)


class MemoryTracker:
    """Tracks the memory of this process during a few steps. `ledger` is set while they are tracked."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._remaining_steps = list(TRACK_AFTER_STEPS)
        self.ledger: Any = None
        self._context: Any = None
        self._leader: Any = None
        self._thread = 0
        self._num_steps = -1

    def on_sampled_step(self, optimizer: Any) -> None:
        """Handle a sampled step of the leading optimizer: start tracking the next two steps if tracking is
        due."""
        session = self._session
        done = session.step - session.first_step
        if self._context is not None or not self._remaining_steps or done < self._remaining_steps[0]:
            return
        reason = self._refusal_reason()
        if reason is not None:
            self._remaining_steps.clear()
            if session.level == "full":
                session.disable_part(PART, reason)
        elif not _num_modes(self._torch):
            del self._remaining_steps[0]
            self._enter(optimizer)

    def _refusal_reason(self) -> str | None:
        if self._torch.cuda.is_initialized():
            return "on GPUs, torch's allocator measures the memory"
        if self._session.facts.get("wrapper") in SHARDED_WRAPPERS:
            # Such a resize is only visible if storages are wrapped, and the observer does not wrap them.
            return "sharded weights are resized outside of torch operations"
        if uses_compiler():
            return "operations in compiled code cannot be tracked"
        return None

    def _enter(self, optimizer: Any) -> None:
        session = self._session
        self.ledger = ledger = load_ledger(lambda error: session.disable_part(PART, error))
        watch_owners(
            ledger,
            optimizer,
            [other for other in (ref() for ref in session.optimizers) if other not in (None, optimizer)],
            [model for model in (ref() for ref in session.models) if model is not None],
        )
        self._leader, self._thread, self._num_steps = optimizer, threading.get_ident(), -1
        self._context = ledger.tracking()
        self._context.__enter__()

    def on_step(self, optimizer: Any, *_: Any) -> None:
        """Handle the end of an optimizer's step. The step at whose end tracking starts is not tracked."""
        if optimizer is not self._leader or threading.get_ident() != self._thread:
            return
        self._num_steps += 1
        ledger = self.ledger
        # After a step in which the ledger learns which tensors live on, the peak equals that of a ledger that
        # tracked from the start, except for 64 bytes.
        if self._num_steps == 1:
            ledger.reset_peaks()
        elif self._num_steps == 2:
            (usage,) = ledger.devices()
            if self.leave() and PART not in self._session.disabled_parts:
                self._emit_memory(usage)
        elif self._num_steps > 2:  # The script's own mode was on top when the step ended.
            self.leave()

    def pause(self) -> Any:
        """Return a context in which the ledger observes nothing. If the script has entered a mode of its own,
        the context has no effect."""
        ledger = self.ledger
        if ledger is None or _num_modes(self._torch) != 1 or not ledger.is_on_top():
            return contextlib.nullcontext()
        return ledger.pause()

    def leave(self) -> bool:
        """Exit the ledger's mode; return whether that was possible."""
        if self._context is None:
            return False
        ledger = self.ledger
        if not ledger.is_on_top():
            ledger.give_up()
            self._session.disable_part(
                PART, "the script entered its own TorchDispatchMode during a tracked step"
            )
            return False
        context, self._context, self.ledger, self._leader = self._context, None, None, None
        context.__exit__(None, None, None)
        return True

    def _emit_memory(self, usage: Any) -> None:
        session = self._session
        session.has_tracked_step = True
        session.emit(
            "memory",
            step=session.step,
            source=TRACKED_SOURCE,
            devices=[
                {
                    "device": int(os.environ.get("LOCAL_RANK") or 0),
                    "live_bytes": usage.live_bytes,
                    "peak_bytes": usage.peak_bytes,
                    "live_by_kind": usage.live_by_kind,
                    "peak_by_kind": usage.peak_by_kind,
                }
            ],
        )


_trackers: list[MemoryTracker] = []


def install(torch: Any, session: RankSession) -> None:
    """Enable step tracking if the run requests it and the versions of Python and torch support it."""
    if not session.tracks_operations:
        return
    version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if sys.version_info < _MIN_PYTHON or version < _MIN_TORCH:
        session.disable_part(PART, "needs Python 3.11 and torch 2.11, or newer")
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    session.tracker = full = MemoryTracker(torch, session)
    _trackers.append(full)
    session.on_sampled_step.add(PART, full.on_sampled_step)
    session.on_fork.add(PART, full.leave)
    register_optimizer_step_post_hook(_make_hook(full, session))
    atexit.register(session.wrap_part(PART, full.leave))


def _make_hook(full: MemoryTracker, session: RankSession) -> Any:
    """Return the step hook. It runs even if the part is disabled, because a dispatch mode that has been
    entered must also be exited."""

    def stepped(optimizer: Any, *_: Any) -> None:
        try:
            full.on_step(optimizer)
        except Exception as error:
            session.disable_part(PART, error)

    return stepped


def name_batches(module: ModuleType, session: RankSession) -> None:
    """Label batches that a loader returns during a tracked step as inputs in the ledger."""
    if not _trackers:
        return
    full = _trackers[0]
    base: Any = module._BaseDataLoaderIter
    fetch = base.__next__

    def adopt(batch: Any) -> None:
        if full.ledger is not None:
            full.ledger.adopt(_tensors(batch, 4), 0, "inputs")

    named = session.wrap_part(PART, adopt)

    @functools.wraps(fetch)
    def observed(self: Any) -> Any:
        try:
            batch = fetch(self)
        except BaseException as error:
            drop_own_frame(error)
            raise
        named(batch)
        return batch

    base.__next__ = observed


def _tensors(batch: Any, deep: int) -> list[Any]:
    if hasattr(batch, "untyped_storage"):
        return [batch]
    if hasattr(batch, "values"):
        batch = list(batch.values())
    if not isinstance(batch, (list, tuple)) or not deep:
        return []
    return [tensor for item in batch for tensor in _tensors(item, deep - 1)]


def _num_modes(torch: Any) -> int:
    return int(torch._C._len_torch_dispatch_stack())
