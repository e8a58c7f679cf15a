"""Gradient scalers: losses as they were before scaling, and the steps that a scaler skipped.

A scaler that finds infinite gradients does not call the optimizer: that step is none, and its loss nobody's.
Counted are those of the optimizer that leads. One that skips inside its own step (fused) has stepped.
"""

from __future__ import annotations

import functools
import weakref

from .frames import drop_own_frame
from .loss_scale import record_scale

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_PART = "scaler"


def install(module: Any, session: RankSession) -> None:
    """Follow torch's own scaler."""
    skipped = SkippedSteps(session)
    session.on_leader_chosen.append(session.wrap_part(_PART, skipped.set_leader))
    session.on_fork.append(skipped.forget)
    _wrap_scale(module.GradScaler, session)
    _wrap_step(module.GradScaler, session, skipped)


def install_sharded(module: Any, session: RankSession) -> None:
    """Follow the scaler of sharded gradients, which scales by itself, and steps as torch's own does."""
    if "scale" in vars(module.ShardedGradScaler):
        _wrap_scale(module.ShardedGradScaler, session)


class SkippedSteps:
    """Steps of each optimizer that were skipped, until it is known whether it leads."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._leader: Any = None
        self._counts: Any = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> None:
        """A step of this optimizer was skipped."""
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._leader is not None and self._leader() is optimizer:
            self.set_leader(optimizer)
        if self._session.losses is not None:
            self._session.losses.share()

    def set_leader(self, optimizer: Any) -> None:
        """This optimizer leads: what it skipped is the run's."""
        self._leader = weakref.ref(optimizer)
        count = self._counts.pop(optimizer, 0)
        if count:
            self._session.record_facts(skipped=self._session.facts.get("skipped", 0) + count)


def _wrap_scale(scaler: Any, session: RankSession) -> None:
    scale = scaler.scale

    marked = session.wrap_part(_PART, record_scale)

    @functools.wraps(scale)
    def observed(self: Any, outputs: Any) -> Any:
        try:
            scaled = scale(self, outputs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        losses = session.losses
        if scaled is not outputs and losses is not None:  # It is not switched off.
            losses.with_scaler = True
            if not marked(scaled, outputs, getattr(self, "_scale", None)):
                losses.with_unknown_scale = True
        return scaled

    scaler.scale = observed


def _wrap_step(scaler: Any, session: RankSession, skipped: SkippedSteps) -> None:
    step = scaler.step
    add = session.wrap_part(_PART, skipped.add)

    @functools.wraps(step)
    def observed(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        fired = session.num_outermost_steps
        try:
            result = step(self, optimizer, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        if session.num_outermost_steps == fired and "steps" not in session.disabled_parts:
            add(optimizer)
        return result

    scaler.step = observed
