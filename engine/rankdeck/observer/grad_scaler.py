"""Observes gradient scalers: unscaled losses, and steps that a scaler skipped.

A scaler that finds non-finite gradients does not call the optimizer. Such a step does not count, and its loss
is dropped. Only skipped steps of the leading optimizer are reported. If a fused optimizer skips the update
inside its own step, the step still counts.
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
    """Observe torch's own scaler."""
    skipped = SkippedSteps(session)
    session.on_leader_chosen.add(_PART, skipped.set_leader)
    session.on_fork.add(_PART, skipped.forget)
    _wrap_scale(module.GradScaler, session)
    _wrap_unscale(module.GradScaler, session)
    _wrap_step(module.GradScaler, session, skipped)


def install_sharded(module: Any, session: RankSession) -> None:
    """Observe the scaler for sharded gradients, which has its own `scale` and inherits `step`."""
    if "scale" in vars(module.ShardedGradScaler):
        _wrap_scale(module.ShardedGradScaler, session)


class SkippedSteps:
    """Number of skipped steps per optimizer, collected until the leading optimizer is chosen."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._leader: Any = None
        self._counts: Any = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> None:
        """Count a skipped step of this optimizer."""
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._leader is not None and self._leader() is optimizer:
            self.set_leader(optimizer)
        if self._session.losses is not None:
            # The loss of a skipped step must not count for the next one.
            self._session.losses.share()

    def set_leader(self, optimizer: Any) -> None:
        """Make this optimizer the leading one, and report its skipped steps."""
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
        if scaled is not outputs and losses is not None:  # The scaler is enabled.
            losses.with_scaler = True
            if not marked(scaled, outputs, getattr(self, "_scale", None)):
                losses.with_unknown_scale = True
        return scaled

    scaler.scale = observed


def _wrap_unscale(scaler: Any, session: RankSession) -> None:
    unscale = scaler.unscale_

    @functools.wraps(unscale)
    def observed(self: Any, optimizer: Any) -> None:
        try:
            unscale(self, optimizer)
        except BaseException as error:
            drop_own_frame(error)
            raise
        if session.order is not None:
            session.order.on_unscale()

    scaler.unscale_ = observed


def _wrap_step(scaler: Any, session: RankSession, skipped: SkippedSteps) -> None:
    step = scaler.step
    add = session.wrap_part(_PART, skipped.add)

    @functools.wraps(step)
    def observed(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        fired = session.num_outermost_steps
        session.scaler = weakref.ref(self)
        try:
            result = step(self, optimizer, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        # The scaler did not call the optimizer, so it skipped the step.
        if session.num_outermost_steps == fired and "steps" not in session.disabled_parts:
            add(optimizer)
        return result

    scaler.step = observed
