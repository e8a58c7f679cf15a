"""fp16's loss scaling as rank 0 told it: the factor, and the steps that were left out for it.

Every rank finds the same gradients, so one tells what all do. Source: torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from rankdeck import events

_MAX_STEPS = 1 << 16


class LossScaleHistory:
    """Of one attempt. `scale` is None where nobody scales; `skipped_steps` are its newest such steps."""

    def __init__(self) -> None:
        self.scale: float | None = None
        self.skipped_steps: deque[int] = deque(maxlen=_MAX_STEPS)

    def add_event(self, event: events.LossScale, last: int | None) -> None:
        """What was left out after `last` is history."""
        if event.rank != 0 or not math.isfinite(event.scale):
            return
        is_history = last is not None and event.step - 1 > last
        if self.scale is not None and event.scale < self.scale and not is_history:
            self.skipped_steps.append(event.step - 1)
        self.scale = event.scale

    def cut(self, last: int) -> None:
        while self.skipped_steps and self.skipped_steps[-1] > last:
            self.skipped_steps.pop()


class LossScalingSummary(msgspec.Struct, frozen=True):
    """Of a whole run: the factor now, and how many of its steps were left out."""

    scale: float
    num_left_out: int


def summarize_loss_scaling(attempts: Iterable[LossScaleHistory]) -> LossScalingSummary | None:
    """Of attempts in their order; None where nobody scales."""
    told = [one for one in attempts if one.scale is not None]
    if not told:
        return None
    return LossScalingSummary(told[-1].scale or 0.0, sum(len(one.skipped_steps) for one in told))
