"""Gradient scalers: losses as they were before scaling, and the steps that a scaler skipped.

A scaler that finds infinite gradients does not call the optimizer: that step is none, and its loss nobody's.
"""

from __future__ import annotations

import functools

from .losses import follow_scaled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession


def install(module: Any, session: RankSession) -> None:
    """Follow torch's own scaler."""
    _follow_scale(module.GradScaler, session)
    _follow_step(module.GradScaler, session)


def install_sharded(module: Any, session: RankSession) -> None:
    """Follow the scaler of sharded gradients, which scales by itself."""
    if "scale" in vars(module.ShardedGradScaler):
        _follow_scale(module.ShardedGradScaler, session)
    if "step" in vars(module.ShardedGradScaler):
        _follow_step(module.ShardedGradScaler, session)


def _follow_scale(scaler: Any, session: RankSession) -> None:
    scale = scaler.scale
    follow = session.guarded("scaler", follow_scaled)

    @functools.wraps(scale)
    def observed(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if session.sampled and session.losses is not None:
            follow(session.losses, scaled, outputs)
        return scaled

    scaler.scale = observed


def _follow_step(scaler: Any, session: RankSession) -> None:
    step = scaler.step

    def skipped() -> None:
        session.see(skipped=session.seen.get("skipped", 0) + 1)
        if session.losses is not None:
            session.losses.take()

    skipped = session.guarded("scaler", skipped)

    @functools.wraps(step)
    def observed(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        fired = session.fired
        result = step(self, optimizer, *args, **kwargs)
        if session.fired == fired:
            skipped()
        return result

    scaler.step = observed
